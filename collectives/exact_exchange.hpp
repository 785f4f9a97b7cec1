// Exchange mode `exact`, the ZipCCL paper's Design 2: after the static part the host waits until it has seen every
// rank's header, and only if some rank's entries exceeded its pool the excess follows through ncclBroadcast, with
// sizes that the headers have already told. One chunk stays in flight while the next is enqueued.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/all_gather.hpp"

namespace zipccl::collectives {

// What ended a call: an NCCL result and, if zipccl found the fault, what it was.
struct Outcome {
  ncclResult_t result = ncclSuccess;
  Status status = Status::ok;
  bool ok() const { return result == ncclSuccess; }
  static Outcome of(ncclResult_t result);
  static Outcome of(Status status);
};

// One communicator's part of a batch: its calls one after the other, each in chunks.
class ExactLane {
 public:
  explicit ExactLane(Communicator& communicator);
  void add(const AllGatherCall& call) { calls_.push_back(&call); }

  Communicator& communicator() const { return communicator_; }
  bool has_next() const { return next_call_ < calls_.size(); }

  Outcome encode_next();      // takes the next chunk and enqueues its encode
  Outcome exchange_static();  // inside a real group: the chunk's all-gather
  Outcome decode_next();      // enqueues its decode; the chunk is then in flight

  Outcome await_oldest();  // the host waits for the oldest chunk in flight and reads its headers
  bool has_overflow() const { return next_overflow_ < overflows_.size(); }
  Outcome exchange_overflow();  // inside a real group: broadcasts of as many ranks' overflow as there is room for
  Outcome decode_overflow();    // enqueues the patches for what exchange_overflow brought
  Outcome finish_oldest();      // waits for patches, if there were any, and reads whether they went well
  void abandon() const;         // after a failure: what was enqueued may still use the staging

  // One chunk stays in flight behind the next; none when there is no next.
  bool must_settle() const { return in_flight_.size() > (has_next() ? 1u : 0u); }

 private:
  struct Chunk {
    const AllGatherCall* call = nullptr;
    std::uint64_t first = 0;  // its first value within every rank's shard
    std::uint64_t count = 0;
    std::uint32_t number = 0;
    std::uint64_t sequence = 0;
    std::uint64_t half = 0;
    codec::Layout layout;
  };
  struct Overflow {  // one rank's excess and where it is received
    std::uint32_t rank = 0;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;
  };

  Outcome begin_call(const AllGatherCall& call);
  Outcome check_summaries() const;
  codec::DecodeJob decode_job(const Chunk& chunk) const;
  std::byte* overflow_room(const Chunk& chunk, std::uint64_t* bytes) const;
  Outcome alive() const;       // after an abort the handle must not be used any more
  Outcome nccl_state() const;  // what ncclCommGetAsyncError says
  Outcome wait_for(codec::Event event, Bucket& bucket) const;
  Bucket& bucket(const AllGatherCall& call) const;

  Communicator& communicator_;
  std::vector<const AllGatherCall*> calls_;
  std::size_t next_call_ = 0;
  std::uint64_t next_value_ = 0;
  std::uint32_t next_number_ = 0;
  std::uint64_t chunk_values_ = 0;  // of the current call
  std::uint64_t next_half_ = 0;
  std::vector<Chunk> in_flight_;  // at most two, oldest first
  Chunk current_;                 // between encode_next and decode_next
  Chunk settling_;                // between await_oldest and the last decode_overflow
  std::vector<Overflow> overflows_;
  std::size_t next_overflow_ = 0;
  std::size_t sent_overflow_ = 0;
};

// Runs a batch of compressed calls over one or several communicators.
Outcome exact_all_gather(std::span<const AllGatherCall> calls);

}  // namespace zipccl::collectives
