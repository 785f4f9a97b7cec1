// Device memory of one communicator through which its compressed sends and receives pass (rule R9). Unlike that of
// collectives it grows, in stream order, with the largest group, to what that group's messages take: 0.70 of the
// group's own buffers, up to 0.74 where values need much room for outliers. Nothing is reserved before the first group
// unless `reserved_bytes` says so. Memory that a graph may use stays as it is: what has been grown after a capture
// comes on top.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "codec/device.hpp"

namespace zipccl::collectives {

class TransferStaging {
 public:
  // out_of_memory, device_error.
  static Status create(codec::Device& device, std::uint64_t reserved_bytes, std::unique_ptr<TransferStaging>* staging);
  ~TransferStaging();  // nothing enqueued uses it any more
  TransferStaging(const TransferStaging&) = delete;
  TransferStaging& operator=(const TransferStaging&) = delete;

  // Makes room for a group's messages and the scratch of `encodes` of them. The stream must be behind the latest use of
  // the staging. May allocate, in stream order; not while `capturing`: unsupported then. A group that captures keeps
  // what it got until the end.
  Status reserve(std::uint64_t bytes, std::uint64_t encodes, bool capturing, codec::Stream stream);

  std::byte* messages() const { return memory_ + scratch_bytes_; }  // aligned to codec::section_alignment
  std::byte* scratch() const { return memory_; }                    // codec::encode_scratch_bytes for each encode
  std::uint64_t bytes() const { return scratch_bytes_ + message_bytes_ + kept_bytes_; }

 private:
  explicit TransferStaging(codec::Device& device) : device_(device) {}

  codec::Device& device_;
  std::byte* memory_ = nullptr;  // scratch, then messages
  std::uint64_t scratch_bytes_ = 0;
  std::uint64_t message_bytes_ = 0;
  bool in_graphs_ = false;        // memory_ is
  std::vector<std::byte*> kept_;  // for graphs alone
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace zipccl::collectives
