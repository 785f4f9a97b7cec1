// Fixed device memory of one communicator, through which its compressed all-gathers pass (rule R9).
//
// Two halves, used in turn. Each half has rank_count slots of slot_bytes: slot r receives rank r's message (slot `rank`
// is where this rank encodes its own, so that NCCL's all-gather runs in place). Without an overflow port there is one
// more, which takes the own message's overflow.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "codec/device.hpp"
#include "codec/format.hpp"
#include "collectives/nccl_table.hpp"
#include "collectives/own_streams.hpp"

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
  static std::uint64_t slot_bytes(std::uint64_t bytes, int rank_count, bool with_overflow);
  // Pure: how many ranks, up to `most`, can share `bytes` so that slot_bytes() is not 0.
  static int most_ranks(std::uint64_t bytes, int most, bool with_overflow);
  // Pure: values of one rank that pass through a slot at once.
  static std::uint64_t chunk_values(std::uint64_t bytes, int rank_count, bool with_overflow,
                                    std::uint32_t pool_fraction);
  // The same for a chunk that has both halves, in mode static (`with_overflow`).
  static std::uint64_t whole_values(std::uint64_t bytes, int rank_count, std::uint32_t pool_fraction);

  // Reserves the memory, for up to `rank_count` ranks. `with_overflow`: for exchange mode static, in which overflow
  // leaves through an overflow port, so that it takes no slot, and chunks overlap on a side stream. With `windows` the
  // memory comes from its ncclMemAlloc, so that it can be registered as a window. out_of_memory if there is too little.
  static Status create(codec::Device& device, std::uint64_t bytes, int rank_count, bool with_overflow,
                       std::unique_ptr<Staging>* staging, const NcclTable* windows = nullptr);
  ~Staging();  // the caller has made sure that nothing enqueued uses it any more
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  struct Half {
    std::byte* slots = nullptr;
    std::byte* overflow = nullptr;  // the last slot; null with an overflow port
    std::byte* scratch = nullptr;   // codec::encode_scratch_bytes
    // For exchange modes in which the host waits; null with an overflow port:
    codec::MessageSummary* summaries = nullptr;  // rank_count of them, mapped
    codec::MessageHeader* headers = nullptr;     // as many, mapped
    codec::Event done = nullptr;                 // after the chunk's first decode pass
  };
  // Uses no more than `bytes`, at most bytes(), as ranks with more agreed with one that has less, for so many ranks, of
  // which `bytes` have room for a slot each. Before the first use.
  void limit(std::uint64_t bytes, int rank_count);
  struct Span {
    void* data;
    std::uint64_t bytes;
  };
  Span memory() const { return {memory_, used_bytes_}; }  // of all slots, as limit() has it
  Half& half(std::uint64_t chunk) { return halves_[chunk % 2]; }
  std::uint64_t slot_bytes() const { return slot_bytes_; }
  std::uint64_t bytes() const { return bytes_; }
  // The stream beside a caller's, on which chunks of one call overlap; idle between calls. It has the caller's
  // priority: with a higher one, codec kernels would keep NCCL's from starting; with a lower one, computation would
  // hold up the codec and with it NCCL. Made when first asked for.
  Status side(codec::Stream caller, codec::Stream* side) { return sides_.find(caller, side); }

 private:
  Staging(codec::Device& device, std::uint64_t bytes, int rank_count, bool with_overflow, const NcclTable* windows);
  Status reserve();
  Status reserve_for_waiting();

  codec::Device& device_;
  const NcclTable* windows_;
  std::uint64_t bytes_;
  std::uint64_t used_bytes_;
  std::uint64_t slot_bytes_;
  int rank_count_;
  bool with_overflow_;
  std::byte* memory_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::byte* mapped_ = nullptr;  // summaries and headers of both halves
  std::array<Half, 2> halves_{};
  OwnStreams sides_;
};

}  // namespace zipccl::collectives
