// The message format of FORMAT.md as constants and layout arithmetic, shared by both engines, the collectives and
// the tests. Everything here is a pure function of its arguments (rule R2): a receiver computes a sender's sizes
// without asking.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zipccl::codec {

enum class Dtype : std::uint8_t { bfloat16 = 1 };

inline constexpr std::uint32_t format_magic = 0x314D435Au;  // "ZCM1", little endian
inline constexpr std::uint16_t format_version = 1;

inline constexpr std::uint32_t tile_values = 1024;  // values coded by one warp
inline constexpr std::uint32_t lane_count = 32;     // lanes of a tile, 32 values each
inline constexpr std::uint32_t lane_values = tile_values / lane_count;

inline constexpr std::uint32_t plane_bytes = 1024;  // sign and mantissa, one byte a value
inline constexpr std::uint32_t code_bytes = 384;    // 3 bits a value
inline constexpr std::uint32_t tail_bytes = 32;     // window, mode, nibbles (see FORMAT.md for the choice of 32)

inline constexpr std::uint32_t window_exponents = 7;  // codes 0 to 6; code 7 is an escape
inline constexpr std::uint32_t escape_code = 7;

// Nibbles that fit a tail, without and with the four bytes that name a pool entry.
inline constexpr std::uint32_t tail_nibbles = (tail_bytes - 2) * 2;
inline constexpr std::uint32_t tail_nibbles_with_entry = (tail_bytes - 6) * 2;

// Byte 1 of a tail: a TileMode in bits 0 and 1; in mode entry the units of the entry (1 to 63) in bits 2 to 7, so that
// a reader can place the entry before it reads it.
inline constexpr std::uint32_t tail_units_shift = 2;
enum class TileMode : std::uint8_t {
  tail = 0,   // every escape is a nibble in the tail
  entry = 1,  // the first tail_nibbles_with_entry nibbles in the tail, the rest and all far bytes in an entry
  raw = 2     // the entry holds all 1,024 exponents; codes and nibbles are ignored
};

// Meaning of an escape's nibble, with w the window's lowest exponent.
inline constexpr std::uint32_t nibble_below = 12;  // n in 0..11: exponent w - 1 - n
inline constexpr std::uint32_t nibble_above = 12;  // 12 and 13: exponents w + 7 and w + 8
inline constexpr std::uint32_t nibble_zero = 14;   // exponent zero (preferred over 0..11)
inline constexpr std::uint32_t nibble_far = 15;    // the full exponent is a byte of the entry

// Entries are counted in units, in the pool and beyond it.
inline constexpr std::uint32_t unit_bytes = 16;
inline constexpr std::uint32_t raw_entry_units = tile_values / unit_bytes;  // the largest entry: 64 units
// What mode entry can hold, 63 units being the most that byte 1 of a tail can say; tiles that need more are raw.
inline constexpr std::uint32_t max_entry_bytes = (raw_entry_units - 1) * unit_bytes;

inline constexpr std::uint64_t section_alignment = 128;  // of the message base (required) and of every section

// The most values a message can hold: units of all tiles raw still fit 32 bits.
inline constexpr std::uint64_t max_count = std::uint64_t{1} << 35;

// Pool fraction: units for every 256 tiles. 0 means no pool; 256 * 64 would hold any tile raw.
inline constexpr std::uint32_t pool_tiles = 256;
inline constexpr std::uint32_t max_pool_fraction = pool_tiles * raw_entry_units;

// First 128 bytes of a message. Little endian. Reserved bytes are zero and must be ignored by readers of version 1.
struct MessageHeader {
  std::uint32_t magic;           // format_magic
  std::uint16_t version;         // format_version
  std::uint8_t dtype;            // Dtype
  std::uint8_t reserved0;        // zero
  std::uint64_t count;           // values in this message
  std::uint64_t sequence;        // call number on its communicator, or a number of its own
  std::uint32_t chunk;           // chunk number within the call
  std::uint32_t pool_units;      // room of the pool, in units (pure function of count and pool fraction)
  std::uint64_t entry_units;     // units that all entries took together; above pool_units there is overflow
  std::uint64_t escapes;         // values outside their tile's window (statistics; raw tiles included)
  std::uint64_t far_escapes;     // those whose nibble is nibble_far (statistics)
  std::uint64_t overflow_tiles;  // tiles whose entry lies beyond the pool
  std::uint8_t reserved1[64];    // zero
};
static_assert(sizeof(MessageHeader) == 128);

// Where the sections of a message of `count` values lie, in bytes from its base.
struct Layout {
  std::uint64_t count = 0;
  std::uint64_t tiles = 0;         // ceil(count / tile_values)
  std::uint64_t planes = 0;        // sign-mantissa section: tiles x plane_bytes
  std::uint64_t codes = 0;         // code section: tiles x code_bytes
  std::uint64_t tails = 0;         // tail section: tiles x tail_bytes
  std::uint64_t pool = 0;          // pool section: pool_units x unit_bytes
  std::uint64_t static_bytes = 0;  // size of the whole message, a multiple of section_alignment
  std::uint32_t pool_units = 0;

  // Source: FORMAT.md, "Layout". Valid for count <= max_count and pool_fraction <= max_pool_fraction.
  static constexpr Layout of(std::uint64_t count, std::uint32_t pool_fraction) {
    Layout layout;
    layout.count = count;
    layout.tiles = (count + tile_values - 1) / tile_values;
    layout.pool_units = static_cast<std::uint32_t>((layout.tiles * pool_fraction + pool_tiles - 1) / pool_tiles);
    layout.planes = sizeof(MessageHeader);
    layout.codes = layout.planes + layout.tiles * plane_bytes;
    layout.tails = layout.codes + layout.tiles * code_bytes;
    layout.pool = align(layout.tails + layout.tiles * tail_bytes);
    layout.static_bytes = align(layout.pool + std::uint64_t{layout.pool_units} * unit_bytes);
    return layout;
  }

  // An entry of `units` units starting at unit `first` lies in the pool if it fits there whole, else in the overflow
  // (the dynamic part) at overflow_offset(first). Entries never straddle.
  constexpr bool in_pool(std::uint64_t first, std::uint64_t units) const { return first + units <= pool_units; }
  constexpr std::uint64_t overflow_offset(std::uint64_t first) const {
    return (first + raw_entry_units - 1 - pool_units) * unit_bytes;
  }
  // Bytes of the overflow when all entries took `entry_units` units; zero if they fit the pool.
  constexpr std::uint64_t overflow_bytes(std::uint64_t entry_units) const {
    return entry_units <= pool_units ? 0 : (entry_units + raw_entry_units - 1 - pool_units) * unit_bytes;
  }
  // The most that any data can need: every tile raw and the pool wasted by one straddling entry.
  constexpr std::uint64_t max_overflow_bytes() const { return overflow_bytes(tiles * raw_entry_units); }

 private:
  static constexpr std::uint64_t align(std::uint64_t bytes) {
    return (bytes + section_alignment - 1) / section_alignment * section_alignment;
  }
};

// Largest count, a multiple of tile_values, whose message has at most `bytes` static bytes and at most `bytes` of
// overflow; 0 if not even one tile fits. Used to cut collectives into chunks.
constexpr std::uint64_t largest_count(std::uint64_t bytes, std::uint32_t pool_fraction) {
  std::uint64_t low = 0;
  std::uint64_t high = bytes / (plane_bytes + code_bytes + tail_bytes);
  while (low < high) {
    const std::uint64_t middle = (low + high + 1) / 2;
    const Layout layout = Layout::of(middle * tile_values, pool_fraction);
    if (layout.static_bytes <= bytes && layout.max_overflow_bytes() <= bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * tile_values;
}

}  // namespace zipccl::codec
