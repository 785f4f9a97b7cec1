// How an all-gather is cut: what fits, what the formula says, what all ranks compute alike.
#include "collectives/chunk_plan.hpp"

#include <algorithm>
#include <random>

#include "codec/format.hpp"
#include "test/unit/catch.hpp"

using namespace zipccl;
using collectives::ChunkPlan;

namespace {

constexpr std::uint64_t tile = codec::tile_values;

std::uint64_t last_values(const ChunkPlan& plan, std::uint64_t count) {
  return count - (plan.chunks - 1) * plan.values;
}

}  // namespace

TEST_CASE("chunks cover a call, fit a slot and are whole tiles but for the last") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50000; ++round) {
    const std::uint64_t most = 1 + random() % (round % 2 == 0 ? 40 : 30000);
    const std::uint64_t count = 1 + random() % (most * tile * (1 + random() % 20));
    const std::uint64_t ranks = 2 + random() % 63;
    const bool overlap = random() % 2 == 0;
    const std::uint64_t whole = random() % 2 == 0 ? most : 2 * most;
    const ChunkPlan plan = ChunkPlan::of(count, ranks, {most * tile, whole * tile, overlap, 1000 + random() % 200'000});
    CAPTURE(most, whole, count, ranks, overlap, plan.values, plan.chunks);
    REQUIRE(plan.values % tile == 0);
    REQUIRE(plan.values > 0);
    REQUIRE(plan.values <= (plan.chunks == 1 || !overlap ? whole : most) * tile);
    REQUIRE(plan.chunks >= 1);
    REQUIRE((plan.chunks - 1) * plan.values < count);
    REQUIRE(plan.chunks * plan.values >= count);
  }
}

TEST_CASE("a small call is one chunk, whatever overlaps") {
  for (const bool overlap : {false, true}) {
    const ChunkPlan::Limits limits = {20000 * tile, 20000 * tile, overlap};
    CHECK(ChunkPlan::of(1, 2, limits).chunks == 1);
    CHECK(ChunkPlan::of(8192 * tile, 2, limits).chunks == 1);
  }
}

TEST_CASE("without overlap as few chunks as fit, of equal size") {
  const ChunkPlan plan = ChunkPlan::of(30001 * tile, 8, {5000 * tile, 10000 * tile, false});
  CHECK(plan.chunks == 4);
  CHECK(plan.values == 7501 * tile);
}

TEST_CASE("with overlap a call is cut further where the exposed codec time is worth an NCCL call") {
  // 8 ranks, 90 MiB of output: 43 us of codec in one chunk, 12 us in two, for 25 us more of NCCL.
  const std::uint64_t count = 5760 * tile;
  const ChunkPlan plan = ChunkPlan::of(count, 8, {6000 * tile, 6000 * tile, true});
  CHECK(plan.chunks == 2);
  CHECK(last_values(plan, count) <= plan.values / 4);
  CHECK(ChunkPlan::of(count, 8, {6000 * tile, 6000 * tile, false}).chunks == 1);
  CHECK(ChunkPlan::of(count / 2, 8, {6000 * tile, 6000 * tile, true}).chunks == 1);  // 21 us are not worth it
}

TEST_CASE("with overlap the last chunk is the smallest that the others leave") {
  const std::uint64_t count = 65536 * tile;  // 12 chunks are the least
  const ChunkPlan plan = ChunkPlan::of(count, 8, {5825 * tile, 2 * 5825 * tile, true});
  CHECK(plan.chunks == 12);
  CHECK(plan.values == 5825 * tile);
  CHECK(last_values(plan, count) == (65536 - 11 * 5825) * tile);
}

TEST_CASE("a chunk that needs all of the staging is one alone, where a call costs more than overlap hides") {
  const std::uint64_t count = 12288 * tile;  // 4 ranks, 96 MiB: 46 us of codec
  const std::uint64_t half = 11650 * tile;   // 128 MiB of staging
  using Limits = ChunkPlan::Limits;
  CHECK(ChunkPlan::of(count, 4, Limits{half, half, true}).chunks == 2);
  CHECK(ChunkPlan::of(count, 4, Limits{half, 2 * half, true}).chunks == 2);  // 25 us, of 46 not hidden
  const ChunkPlan alone = ChunkPlan::of(count, 4, Limits{half, 2 * half, true, ChunkPlan::sockets_call_ns});
  CHECK(alone.chunks == 1);
  CHECK(alone.values == count);
  CHECK(ChunkPlan::of(2 * half, 4, Limits{half, 2 * half, true, ChunkPlan::sockets_call_ns}).chunks == 1);
  CHECK(ChunkPlan::of(2 * half + 1, 4, Limits{half, 2 * half, true, ChunkPlan::sockets_call_ns}).chunks == 3);
}
