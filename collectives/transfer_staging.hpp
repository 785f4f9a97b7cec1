// Device memory of one communicator through which its compressed sends and receives pass (rule R9). Unlike that of
// collectives it grows, in stream order, with the largest group, to what that group's messages take: 0.70 of the
// group's own buffers, up to 0.72 where values need much room for outliers. Nothing is reserved before the first group
// unless `reserved_bytes` says so. Memory that a graph may use stays as it is: what has been grown in or after a
// capture comes on top.
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
  // the staging; what is allocated is so in its order. While `capturing`, that is for a graph, nothing can be: growth
  // then waits for the device's own stream and nothing else, and former memory stays, too.
  Status reserve(std::uint64_t bytes, std::uint64_t encodes, bool capturing, codec::Stream stream);

  std::byte* messages() const { return memory_ + scratch_bytes_; }  // aligned to codec::section_alignment
  std::byte* scratch() const { return memory_; }                    // codec::encode_scratch_bytes for each encode
  std::uint64_t bytes() const { return scratch_bytes_ + message_bytes_ + kept_bytes_; }

 private:
  explicit TransferStaging(codec::Device& device) : device_(device) {}
  void give_up(bool capturing, codec::Stream stream);

  codec::Device& device_;
  std::byte* memory_ = nullptr;  // scratch, then messages
  std::uint64_t scratch_bytes_ = 0;
  std::uint64_t message_bytes_ = 0;
  bool in_graph_ = false;         // the memory
  std::vector<std::byte*> kept_;  // former memory that graphs use, or that could not be released within a capture
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace zipccl::collectives
