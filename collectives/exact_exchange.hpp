// Exchange mode `exact`, the ZipCCL paper's Design 2: after the static part the host waits until it has seen every
// rank's header, and only if some rank's entries exceeded its pool the excess follows through ncclBroadcast, with
// sizes that the headers have already told. One chunk stays in flight while the next is enqueued.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/host_wait.hpp"

namespace zipccl::collectives {

class ExactLane : public WaitingLane {
 public:
  using WaitingLane::WaitingLane;

  Outcome encode_next();  // takes the next chunk and enqueues its encode
  Outcome decode_next();  // enqueues its decode; the chunk is then in flight

  // One chunk stays in flight behind the next; none when there is no next.
  bool must_settle() const { return in_flight_.size() > (has_next() ? 1u : 0u); }
  Outcome await_oldest();  // the host waits for the oldest chunk in flight and reads its headers
  bool has_overflow() const { return next_overflow_ < overflows_.size(); }
  Outcome exchange_overflow();  // inside a real group: broadcasts of as many ranks' overflow as there is room for
  Outcome decode_overflow();    // enqueues the patches for what exchange_overflow brought
  Outcome finish_oldest();      // waits for patches, if there were any, and reads whether they went well

 private:
  struct Overflow {  // one rank's excess and where it is received
    std::uint32_t rank = 0;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;
  };

  std::byte* overflow_room(const Chunk& chunk, std::uint64_t* bytes) const;

  std::vector<Chunk> in_flight_;  // at most two, oldest first
  Chunk settling_;                // between await_oldest and the last decode_overflow
  std::vector<Overflow> overflows_;
  std::size_t next_overflow_ = 0;
  std::size_t sent_overflow_ = 0;
};

// Runs a batch of compressed calls over one or several communicators.
Outcome exact_all_gather(std::span<const AllGatherCall> calls);

}  // namespace zipccl::collectives
