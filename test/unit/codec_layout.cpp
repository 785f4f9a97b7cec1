#include <cstddef>

#include "codec/format.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/plain_decoder.hpp"

namespace zipccl::codec {

TEST_CASE("the header's fields lie where the format says") {
  CHECK(offsetof(MessageHeader, magic) == 0);
  CHECK(offsetof(MessageHeader, version) == 4);
  CHECK(offsetof(MessageHeader, dtype) == 6);
  CHECK(offsetof(MessageHeader, count) == 8);
  CHECK(offsetof(MessageHeader, sequence) == 16);
  CHECK(offsetof(MessageHeader, chunk) == 24);
  CHECK(offsetof(MessageHeader, pool_units) == 28);
  CHECK(offsetof(MessageHeader, entry_units) == 32);
  CHECK(offsetof(MessageHeader, escapes) == 40);
  CHECK(offsetof(MessageHeader, far_escapes) == 48);
  CHECK(offsetof(MessageHeader, overflow_tiles) == 56);
}

TEST_CASE("a message without values is a header") {
  for (const std::uint32_t fraction : {0u, 1u, max_pool_fraction}) {
    const Layout layout = Layout::of(0, fraction);
    CHECK(layout.static_bytes == 128);
    CHECK(layout.pool_units == 0);
    CHECK(layout.max_overflow_bytes() == 0);
  }
}

TEST_CASE("a tile takes 1,440 bytes") {
  const Layout layout = Layout::of(std::uint64_t{1024} * 1024, 0);
  CHECK(layout.planes == 128);
  CHECK(layout.codes == 128 + 1024 * 1024);
  CHECK(layout.tails == 128 + 1024 * 1408);
  CHECK(layout.static_bytes == 128 + 1024 * 1440);
}

TEST_CASE("sections are aligned, in order, and agree with the plain reader's") {
  for (const std::uint32_t fraction : {0u, 1u, 7u, 64u, 256u, 1000u, max_pool_fraction}) {
    for (std::uint64_t count = 1; count < 40000; count += 509) {
      CAPTURE(fraction, count);
      const Layout layout = Layout::of(count, fraction);
      REQUIRE(layout.tiles == (count + 1023) / 1024);
      for (const std::uint64_t offset : {layout.planes, layout.codes, layout.tails, layout.pool, layout.static_bytes}) {
        if (offset != layout.tails) {
          REQUIRE(offset % section_alignment == 0);
        }
      }
      REQUIRE(layout.tails % section_alignment == 0);
      REQUIRE(layout.pool >= layout.tails + layout.tiles * tail_bytes);
      REQUIRE(layout.static_bytes >= layout.pool + layout.pool_units * std::uint64_t{unit_bytes});
      REQUIRE(layout.static_bytes == test::plain_static_bytes(count, fraction));
    }
  }
}

TEST_CASE("pool units round up and cover all tiles at the largest fraction") {
  CHECK(Layout::of(1, 1).pool_units == 1);
  CHECK(Layout::of(256 * 1024, 1).pool_units == 1);
  CHECK(Layout::of(257 * 1024, 1).pool_units == 2);
  CHECK(Layout::of(3 * 1024, max_pool_fraction).pool_units == 3 * raw_entry_units);
  CHECK(Layout::of(3 * 1024, max_pool_fraction).max_overflow_bytes() == 0);
}

TEST_CASE("the largest message's units fit 32 bits") {
  const Layout layout = Layout::of(max_count, max_pool_fraction);
  CHECK(layout.pool_units == layout.tiles * raw_entry_units);
}

TEST_CASE("entries lie in the pool whole or in the overflow whole") {
  const Layout layout = Layout::of(64 * 1024, 256);  // 64 units
  REQUIRE(layout.pool_units == 64);
  CHECK(layout.in_pool(0, 64));
  CHECK(layout.in_pool(63, 1));
  CHECK_FALSE(layout.in_pool(63, 2));
  CHECK_FALSE(layout.in_pool(64, 1));
  // The earliest entry that can straddle the pool's end starts the overflow.
  CHECK(layout.overflow_offset(1) == 0);
  CHECK(layout.overflow_offset(64) == 63 * 16);
  CHECK(layout.overflow_bytes(64) == 0);
  CHECK(layout.overflow_bytes(65) == 64 * 16);
  // Every entry ends within the overflow.
  CHECK(layout.overflow_offset(63) + 2 * 16 == layout.overflow_bytes(65));
  CHECK(layout.max_overflow_bytes() == (64 * 64 + 63 - 64) * 16);
}

TEST_CASE("largest_count is the largest that fits") {
  for (const std::uint32_t fraction : {0u, 64u, 640u, max_pool_fraction}) {
    for (const std::uint64_t bytes : {1000u, 2000u, 65536u, 1000000u, 64u << 20}) {
      CAPTURE(fraction, bytes);
      const auto fits = [&](std::uint64_t count) {
        const Layout layout = Layout::of(count, fraction);
        return layout.static_bytes <= bytes && layout.max_overflow_bytes() <= bytes;
      };
      const std::uint64_t count = largest_count(bytes, fraction);
      CHECK(count % tile_values == 0);
      CHECK((count == 0 || fits(count)));
      CHECK_FALSE(fits(count + tile_values));
    }
  }
}

}  // namespace zipccl::codec
