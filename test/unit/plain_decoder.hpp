// A reader of messages written from codec/FORMAT.md alone, section by section, value by value: slow, and independent
// of the engines that it judges. It uses none of format.hpp's constants.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/status.hpp"

namespace zipccl::test {

// What sender and receiver agreed on.
struct PlainExpectation {
  std::uint64_t count = 0;
  std::uint64_t pool_fraction = 0;
  std::uint64_t sequence = 0;
  std::uint32_t chunk = 0;
};

struct PlainTile {
  Status status = Status::ok;
  unsigned window = 0;
  unsigned mode = 0;
  std::uint64_t first_unit = 0;  // of the entry; 0 in mode tail
  unsigned units = 0;            // of the entry; 0 in mode tail
  unsigned escapes = 0;          // E
  unsigned far_escapes = 0;      // F; 0 in mode raw, which does not say
};

struct PlainMessage {
  Status status = Status::ok;  // of the header; if not ok, nothing below is filled
  std::uint64_t pool_units = 0;
  std::uint64_t entry_units = 0;
  std::uint64_t escapes = 0;
  std::uint64_t far_escapes = 0;
  std::uint64_t overflow_tiles = 0;
  std::vector<PlainTile> tiles;
  std::vector<std::uint16_t> values;  // those of bad tiles are zero
};

std::uint64_t plain_static_bytes(std::uint64_t count, std::uint64_t pool_fraction);

// `message` has at least plain_static_bytes() bytes. An entry that lies in the overflow beyond `overflow` makes its
// tile bad.
PlainMessage plain_decode(std::span<const std::uint8_t> message, std::span<const std::uint8_t> overflow,
                          const PlainExpectation& expected);

// Section 4.2: the window that a writer has to choose for up to 1,024 values.
unsigned plain_window(std::span<const std::uint16_t> values);

// Section 4.5: category of an exponent outside the window.
unsigned plain_nibble(unsigned exponent, unsigned window);

}  // namespace zipccl::test
