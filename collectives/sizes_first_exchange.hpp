// Exchange mode `sizes-first`, the ZipCCL paper's Design 1, for comparison: encode; the headers, which tell every
// message's size, through NCCL; the host waits for them; then one all-gather of whole messages, padded to the largest.
// Chunks follow each other. What a decode finds wrong is returned by the communicator's next chunk or call.
#pragma once

#include <span>

#include "collectives/host_wait.hpp"

namespace zipccl::collectives {

class SizesFirstLane : public WaitingLane {
 public:
  explicit SizesFirstLane(Communicator& communicator);

  // Most values of a rank in a chunk: any message must fit a slot with all its overflow. Pure.
  static std::uint64_t chunk_values(std::uint64_t slot_bytes, std::uint32_t pool_fraction);

  Outcome encode_next();
  Outcome exchange();     // inside a real group: the headers
  Outcome decode_next();  // the headers' way to the host

  Outcome await_sizes();        // the host waits for the headers
  Outcome exchange_messages();  // inside a real group
  Outcome decode_messages();

 private:
  std::byte* own_message() const { return half_of(current()).overflow; }  // the half's last slot

  std::uint64_t overflow_bytes_ = 0;  // of the current chunk: the most that any rank has, whole sections
};

// Runs a batch of compressed calls over one or several communicators.
Outcome sizes_first_all_gather(std::span<const AllGatherCall> calls);

}  // namespace zipccl::collectives
