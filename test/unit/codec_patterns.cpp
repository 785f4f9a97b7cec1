// All 65,536 patterns at every position that a value can have in a tile, in company of every kind.
#include "test/unit/catch.hpp"
#include "test/unit/codec_messages.hpp"

namespace zipccl::test {
namespace {

constexpr std::uint32_t pattern_count = 65536;
constexpr std::uint32_t scatter = 40503;  // odd, so that i -> i * scatter visits every pattern and mixes neighbours

bool comes_back(const std::vector<std::uint16_t>& values, std::uint32_t pool_fraction) {
  const Result result = decode(encode(values, pool_fraction));
  return result.summary.status == 0 && result.values == values;
}

}  // namespace

TEST_CASE("every pattern at every position among its neighbours") {
  std::vector<std::uint16_t> values(pattern_count);
  for (std::uint32_t shift = 0; shift < codec::tile_values; ++shift) {
    for (std::uint32_t i = 0; i < pattern_count; ++i) {
      values[i] = static_cast<std::uint16_t>(i + shift);
    }
    REQUIRE(comes_back(values, 0));
  }
}

TEST_CASE("every pattern at every position among all others") {
  std::vector<std::uint16_t> values(pattern_count);
  for (std::uint32_t shift = 0; shift < codec::tile_values; ++shift) {
    for (std::uint32_t i = 0; i < pattern_count; ++i) {
      values[i] = static_cast<std::uint16_t>(i * scatter + shift);
    }
    REQUIRE(comes_back(values, shift % 2 == 0 ? codec::max_pool_fraction : 9000));
  }
}

TEST_CASE("every pattern alone in a calm tile, at a position that changes with it") {
  constexpr std::uint32_t tiles = 512;
  for (const std::uint16_t calm : {std::uint16_t{0x3f80}, std::uint16_t{0x0000}, std::uint16_t{0x7f80}}) {
    for (std::uint32_t first = 0; first < pattern_count; first += tiles) {
      std::vector<std::uint16_t> values(tiles * codec::tile_values, calm);
      for (std::uint32_t tile = 0; tile < tiles; ++tile) {
        const std::uint32_t pattern = first + tile;
        values[tile * codec::tile_values + pattern * scatter % codec::tile_values] =
            static_cast<std::uint16_t>(pattern);
      }
      REQUIRE(comes_back(values, 128));
    }
  }
}

TEST_CASE("every position of every partial tile") {
  for (std::uint32_t real = 1; real < codec::tile_values; ++real) {
    std::vector<std::uint16_t> values(real);
    for (std::uint32_t round = 0; round < pattern_count; round += codec::tile_values) {
      for (std::uint32_t i = 0; i < real; ++i) {
        values[i] = static_cast<std::uint16_t>(i * scatter + round + real);
      }
      REQUIRE(comes_back(values, 0));
    }
  }
}

}  // namespace zipccl::test
