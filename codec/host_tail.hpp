// A tile's tail as bytes, and what follows from it: for the host engine's two directions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "codec/format.hpp"

namespace zipccl::codec {

inline constexpr std::uint32_t highest_window = 249;

// Bytes with nibbles that follow those of the tail, in mode entry.
constexpr std::uint32_t entry_nibble_bytes(std::uint32_t escapes) {
  return escapes <= tail_nibbles_with_entry ? 0 : (escapes - tail_nibbles_with_entry + 1) / 2;
}

constexpr std::uint32_t units_of(std::uint32_t bytes) { return (bytes + unit_bytes - 1) / unit_bytes; }

struct Tail {
  std::uint8_t window;
  std::uint8_t mode_and_units;
  std::uint8_t nibbles[tail_nibbles_with_entry / 2];
  std::uint32_t first_unit;  // with modes entry and raw; four more bytes of nibbles in mode tail

  TileMode mode() const { return static_cast<TileMode>(mode_and_units & 3); }
  std::uint32_t units() const { return mode() == TileMode::raw ? raw_entry_units : mode_and_units >> tail_units_shift; }
  // Checks that need nothing but these bytes.
  bool plausible() const {
    if (window > highest_window) {
      return false;
    }
    const std::uint32_t upper_bits = mode_and_units >> tail_units_shift;
    switch (mode()) {
      case TileMode::tail:
      case TileMode::raw:
        return upper_bits == 0;
      case TileMode::entry:
        return upper_bits != 0;
    }
    return false;
  }
};
static_assert(sizeof(Tail) == tail_bytes);

inline std::uint32_t values_in_tile(const Layout& layout, std::uint64_t index) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(tile_values, layout.count - index * tile_values));
}

}  // namespace zipccl::codec
