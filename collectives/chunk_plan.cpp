#include "collectives/chunk_plan.hpp"

#include <algorithm>

#include "codec/format.hpp"

namespace zipccl::collectives {

namespace {

constexpr std::uint64_t tile_bytes = codec::tile_values * 2;

std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }

// Tiles in every chunk but the last, which is a quarter of them where that fits: tiles = (chunks - 1 + 1 / 4) * size.
std::uint64_t tapered(std::uint64_t tiles, std::uint64_t chunks, std::uint64_t largest) {
  return chunks == 1 ? tiles : std::min(largest, divide_up(4 * tiles, 4 * chunks - 3));
}

std::uint64_t time_ns(std::uint64_t tiles, std::uint64_t chunks, std::uint64_t ranks, std::uint64_t largest,
                      std::uint64_t call_ns) {
  const std::uint64_t size = tapered(tiles, chunks, largest);
  const std::uint64_t last = tiles - (chunks - 1) * size;
  const std::uint64_t exposed = size + (ranks - 1) * last;
  return chunks * call_ns + exposed * tile_bytes * 1000 / ChunkPlan::codec_bytes_per_us;
}

}  // namespace

ChunkPlan ChunkPlan::of(std::uint64_t count, std::uint64_t ranks, const Limits& limits) {
  const std::uint64_t tiles = divide_up(count, codec::tile_values);
  const std::uint64_t half = limits.half / codec::tile_values;
  const std::uint64_t whole = limits.whole / codec::tile_values;
  if (!limits.overlap) {
    const std::uint64_t size = divide_up(tiles, divide_up(tiles, whole));
    return {size * codec::tile_values, divide_up(tiles, size)};
  }
  std::uint64_t best = tiles <= whole ? 1 : divide_up(tiles, half);
  std::uint64_t best_ns = time_ns(tiles, best, ranks, half, limits.call_ns);
  // Further chunks cost at least their calls, so the search ends soon. A last chunk of less than a tile does not exist.
  for (std::uint64_t chunks = std::max(best + 1, divide_up(tiles, half));
       chunks * limits.call_ns < best_ns && tiles >= 4 * chunks; ++chunks) {
    if (const std::uint64_t ns = time_ns(tiles, chunks, ranks, half, limits.call_ns); ns < best_ns) {
      best = chunks;
      best_ns = ns;
    }
  }
  return {tapered(tiles, best, half) * codec::tile_values, best};
}

}  // namespace zipccl::collectives
