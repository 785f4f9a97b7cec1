// Fixed device memory of one communicator, through which its compressed collectives pass (rule R9).
//
// Two halves, used in turn. Each half has rank_count + 1 slots of slot_bytes: slot r receives rank r's message (slot
// `rank` is where this rank encodes its own, so that NCCL's all-gather runs in place), the last one takes the own
// message's overflow.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "codec/device.hpp"
#include "codec/format.hpp"
#include "collectives/overflow_port.hpp"

namespace zipccl::collectives {

// How many ranks a communicator will have, where that is not known when its staging is reserved.
struct RankRange {
  RankRange(int exactly) : least(exactly), most(exactly) {}  // NOLINT(google-explicit-constructor): nearly always known
  RankRange(int at_least, int at_most) : least(at_least), most(at_most) {}
  int least;
  int most;
};

class Staging {
 public:
  static constexpr std::uint64_t smallest_chunk_bytes = 64 << 10;  // a slot below this is not worth a collective

  // Pure: bytes of one slot if `bytes` are shared by `rank_count` ranks; 0 where that is below smallest_chunk_bytes.
  static std::uint64_t slot_bytes(std::uint64_t bytes, int rank_count);
  // Pure: values of one rank that pass through a slot at once.
  static std::uint64_t chunk_values(std::uint64_t bytes, int rank_count, std::uint32_t pool_fraction);

  // Reserves the memory, with `with_overflow` an overflow port too. out_of_memory if there is too little.
  static Status create(codec::Device& device, std::uint64_t bytes, RankRange ranks, bool with_overflow,
                       std::unique_ptr<Staging>* staging);
  ~Staging();  // the caller has made sure that nothing enqueued uses it any more
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  struct Half {
    std::byte* slots = nullptr;
    std::byte* overflow = nullptr;               // the last slot
    std::byte* scratch = nullptr;                // codec::encode_scratch_bytes
    codec::MessageSummary* summaries = nullptr;  // rank_count of them, mapped
    codec::Event done = nullptr;                 // after the first decode pass of the chunk in this half
  };
  // Uses no more than `bytes`, at most bytes(), as ranks with more agreed with one that has less, for so many ranks, of
  // those that it was made for; slot_bytes(bytes, rank_count) is not 0. Before the first use.
  void limit(std::uint64_t bytes, int rank_count);
  Half& half(std::uint64_t chunk) { return halves_[chunk % 2]; }
  std::uint64_t slot_bytes() const { return slot_bytes_; }
  std::uint64_t bytes() const { return bytes_; }
  OverflowPort* overflow() const { return overflow_.get(); }  // null without one

  // Orders a call behind the communicator's previous one, whatever streams they use. Every end() needs a begin() on its
  // stream after the latest end(), or the chain loses that one's work.
  Status begin(codec::Stream stream);
  Status end(codec::Stream stream);
  // Whether everything up to the last end() is done. Never blocks.
  Status idle(bool* done);

 private:
  Staging(codec::Device& device, std::uint64_t bytes);
  Status reserve(RankRange ranks, bool with_overflow);

  codec::Device& device_;
  std::uint64_t bytes_;
  std::uint64_t slot_bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::byte* scratch_ = nullptr;
  codec::MessageSummary* summaries_ = nullptr;
  std::array<Half, 2> halves_{};
  std::unique_ptr<OverflowPort> overflow_;
  codec::Event last_use_ = nullptr;
  bool used_ = false;
};

}  // namespace zipccl::collectives
