// How many chunks an all-gather is cut into, and of what size. A pure function of what all ranks share (rule R2).
//
// Where chunks overlap, codec and NCCL run side by side and only the first chunk's encode and the last one's decode are
// exposed. With K chunks, of which the last has v' values of a rank and the others v, over N ranks:
//
//   time(K) = wire + K * call + (v + (N - 1) * v') * 2 bytes / codec
//
// The wire's own time does not depend on K. `call` is what one more NCCL call costs: 20 to 30 us between H200s on a
// link of 25 GB/s, 130 us over loopback sockets with 2 ranks, more with more. `codec` is what encode and decode move
// (2,200 GB/s of values at some 10 MiB a chunk, scripts/zipccl perf codec). K is the one with the least time(K) among
// those whose chunks fit: two chunks and more into half of the staging each, as they overlap, a single one into all of
// it. The last chunk is a quarter of the others if those still fit: its exchange is then still longer than the decode
// before it. Where chunks do not overlap, all of the codec's time is exposed whatever K is, and each has all of the
// staging: as few as fit, of equal size.
#pragma once

#include <cstdint>

namespace zipccl::collectives {

struct ChunkPlan {
  static constexpr std::uint64_t usual_call_ns = 25'000;
  static constexpr std::uint64_t sockets_call_ns = 130'000;
  static constexpr std::uint64_t codec_bytes_per_us = 2'200'000;

  // What a chunk may be, the same for all calls of a communicator.
  struct Limits {
    std::uint64_t half = 0;   // values of a rank in a chunk that has half of the staging; whole tiles, not 0
    std::uint64_t whole = 0;  // in one that has all of it; at least that
    bool overlap = false;
    std::uint64_t call_ns = usual_call_ns;
  };

  std::uint64_t values = 0;  // of one rank in every chunk but the last, which has the rest; whole tiles
  std::uint64_t chunks = 0;

  // `count` values a rank (not 0).
  static ChunkPlan of(std::uint64_t count, std::uint64_t ranks, const Limits& limits);
};

}  // namespace zipccl::collectives
