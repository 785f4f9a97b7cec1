// What the exchange modes share: an all-gather cut into chunks, each of which passes through one half of the staging.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/all_gather.hpp"
#include "collectives/chunk_plan.hpp"
#include "collectives/outcome.hpp"

namespace zipccl::collectives {

struct Chunk {
  const AllGatherCall* call = nullptr;
  std::uint64_t first = 0;  // its first value within every rank's shard
  std::uint64_t count = 0;
  std::uint32_t number = 0;    // within the call
  std::uint64_t sequence = 0;  // of the call on its communicator
  std::uint64_t half = 0;      // of the staging; only its parity counts
  std::uint64_t offset = 0;    // of its slots in the half, in bytes
  codec::Layout layout;
};

// One communicator's calls, one after the other, in chunks. The base of a mode's lane.
class GatherChunks {
 public:
  // Chunks of at most `largest` values of a rank: what passes through a slot of half the staging, or less.
  GatherChunks(Communicator& communicator, std::uint64_t largest)
      : communicator_(communicator), limits_{.half = largest, .whole = largest} {}
  explicit GatherChunks(Communicator& communicator);
  void add(const AllGatherCall& call);

  Communicator& communicator() const { return communicator_; }
  bool has_next() const { return next_call_ < calls_.size(); }

  Outcome alive() const;  // after an abort the handle must not be used any more
  Outcome exchange();     // inside a real group: the all-gather of the current chunk's static bytes
  void abandon() const;   // after a failure: what was enqueued may still use the staging

 protected:
  void begin_next();  // moves on to the next chunk, which becomes current()
  const Chunk& current() const { return current_; }
  void move_current(std::uint64_t offset) { current_.offset = offset; }
  struct PlannedCall {
    const AllGatherCall* call;
    ChunkPlan plan;
    bool whole;  // chunks too large for half of the staging: each has all of it, and no other one beside it
  };
  codec::Stream next_stream() const { return calls_[next_call_].call->stream; }  // of the next chunk, if there is one
  const std::vector<PlannedCall>& calls() const { return calls_; }

  // What an out-of-place call needs beside its chunks: the own shard in the output. Nothing in place.
  bool in_place(const AllGatherCall& call) const { return own_shard(call) == call.send; }
  Status copy_own(const AllGatherCall& call, codec::Stream stream) const;

  codec::EncodeJob encode_job(const Chunk& chunk) const;  // overflow into the half's last slot
  codec::DecodeJob decode_job(const Chunk& chunk) const;
  Staging::Half& half_of(const Chunk& chunk) const { return communicator_.staging->half(chunk.half); }
  std::byte* slots_of(const Chunk& chunk) const {
    const bool whole = chunk.layout.static_bytes > communicator_.staging->slot_bytes();
    return whole ? communicator_.staging->half(0).slots : half_of(chunk).slots + chunk.offset;
  }
  std::byte* own_slot(const Chunk& chunk) const {
    return slots_of(chunk) + static_cast<std::uint64_t>(communicator_.rank) * chunk.layout.static_bytes;
  }
  Bucket& bucket(const AllGatherCall& call) const;
  void count_bytes(const Chunk& chunk, std::uint64_t wire_bytes) const;
  void count_call(const Chunk& chunk) const;  // with its last chunk

 private:
  std::byte* own_shard(const AllGatherCall& call) const;

  Communicator& communicator_;
  ChunkPlan::Limits limits_;
  std::vector<PlannedCall> calls_;
  std::size_t next_call_ = 0;
  std::uint64_t next_value_ = 0;
  std::uint32_t next_number_ = 0;
  Chunk current_;
};

// Runs `operations` between the real GroupStart and GroupEnd. A group that was opened is always closed; the first
// error wins.
template <typename Operations>
Outcome in_group(const NcclTable& nccl, Operations operations) {
  if (const ncclResult_t opened = nccl.ncclGroupStart(); opened != ncclSuccess) {
    return Outcome::of(opened);
  }
  const Outcome inside = attempt(operations);
  const ncclResult_t closed = nccl.ncclGroupEnd();
  return inside.ok() ? Outcome::of(closed) : inside;
}

// Stops at the first that fails.
template <typename Lanes, typename Operation>
Outcome for_each_lane(const Lanes& lanes, Operation operation) {
  for (const auto& lane : lanes) {
    if (const Outcome outcome = operation(*lane); !outcome.ok()) {
      return outcome;
    }
  }
  return {};
}

// The calls by communicator, in the order in which communicators first appear.
template <typename Lane>
std::vector<std::unique_ptr<Lane>> make_lanes(std::span<const AllGatherCall> calls) {
  std::vector<std::unique_ptr<Lane>> lanes;
  for (const AllGatherCall& call : calls) {
    Lane* own = nullptr;
    for (const auto& lane : lanes) {
      own = &lane->communicator() == call.communicator ? lane.get() : own;
    }
    if (own == nullptr) {
      own = lanes.emplace_back(std::make_unique<Lane>(*call.communicator)).get();
    }
    own->add(call);
  }
  return lanes;
}

// Runs all lanes chunk by chunk: encode, one real group of all-gathers, decode, then `after_round(lanes)`, until no
// lane has a next chunk.
template <typename Lane, typename AfterRound>
Outcome run_lanes(std::vector<std::unique_ptr<Lane>> lanes, AfterRound after_round) {
  const NcclTable& nccl = *lanes.front()->communicator().nccl;
  while (!lanes.empty()) {
    const Outcome outcome = attempt([&] {
      Outcome step = for_each_lane(lanes, [](Lane& lane) {
        const Outcome alive = lane.alive();
        return alive.ok() ? lane.encode_next() : alive;
      });
      if (step.ok()) {
        step = in_group(nccl, [&] { return for_each_lane(lanes, [](Lane& lane) { return lane.exchange(); }); });
      }
      if (step.ok()) {
        step = for_each_lane(lanes, [](Lane& lane) { return lane.decode_next(); });
      }
      return step.ok() ? after_round(lanes) : step;
    });
    if (!outcome.ok()) {
      for (const auto& lane : lanes) {
        lane->abandon();
      }
      return outcome;
    }
    std::erase_if(lanes, [](const auto& lane) { return !lane->has_next(); });
  }
  return {};
}

}  // namespace zipccl::collectives
