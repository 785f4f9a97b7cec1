// Encodes beside receives on the host engine: all-gathers in chunks, of which any may overflow.
#include "test/unit/codec_gather.hpp"

#include <random>

#include "test/unit/catch.hpp"
#include "test/unit/codec_host_machine.hpp"

namespace zipccl::test {
namespace {

const std::vector<std::uint64_t> some_counts[] = {
    {8 * 1024, 8 * 1024, 5000}, {1024, 0, 1025, 1}, {0, 3000}, {20000, 20003}, {777}};

// As many fills as the shape's messages, each drawn from `kinds`.
std::vector<Fill> draw(const GatherShape& shape, std::span<const Fill> kinds, std::mt19937_64& random) {
  std::vector<Fill> fills(shape.counts.size() * shape.ranks);
  for (Fill& fill : fills) {
    fill = kinds[random() % kinds.size()];
  }
  return fills;
}

}  // namespace

TEST_CASE("chunks of all kinds, each encode beside the receive of the chunk before") {
  std::mt19937_64 random(5);
  HostMachine machine;
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    for (const std::uint32_t pool_fraction : {0u, 16u, 2000u}) {
      for (const auto& counts : some_counts) {
        for (const Beside form : all_forms) {
          GatherShape shape{.ranks = ranks, .pool_fraction = pool_fraction, .counts = counts};
          shape.input_offset = static_cast<std::uint32_t>(random() % 2 == 0 ? 0 : random() % 9);
          shape.output_offset = static_cast<std::uint32_t>(random() % 2 == 0 ? 0 : random() % 9);
          CAPTURE(ranks, pool_fraction, counts, static_cast<int>(form), shape.input_offset, shape.output_offset);
          REQUIRE(gather(machine, shape, draw(shape, all_fills, random), form) == "");
        }
      }
    }
  }
}

TEST_CASE("all chunks raw, overflowing in both directions at once, in records of many pieces") {
  HostMachine machine;
  const GatherShape shape{.ranks = 3,
                          .pool_fraction = 0,
                          .counts = {20000, 20000, 20000, 7},
                          .outbox_capacity = 1008,
                          .mailbox_capacity = 2064};
  const std::vector<Fill> fills(shape.counts.size() * shape.ranks, Fill::random_bits);
  for (const Beside form : all_forms) {
    CAPTURE(static_cast<int>(form));
    REQUIRE(gather(machine, shape, fills, form) == "");
  }
}

TEST_CASE("of an encode beside a receive neither runs if either is refused") {
  HostMachine machine;
  REQUIRE(refuse_beside(machine) == "");
}

}  // namespace zipccl::test
