// A tile on its way between the message's bytes and arrays that the host engine's loops vectorise over. The layouts
// are those of FORMAT.md 4.3 to 4.6.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "codec/format.hpp"

namespace zipccl::codec {

using TileBytes = std::array<std::uint8_t, tile_values>;  // one byte a value, by value

struct HostTile {
  alignas(64) TileBytes exponents;
  alignas(64) TileBytes codes;
  alignas(64) TileBytes nibbles;  // by escape, in escape order
  alignas(64) TileBytes far;      // by far escape, in escape order
  // Codes of pair q of lane l in pairs[q][l]: the low half's in bits 0 to 2, the high half's in bits 16 to 18.
  alignas(64) std::array<std::array<std::uint32_t, lane_count>, lane_values / 2> pairs;
  alignas(64) std::array<std::uint32_t, lane_count> escape_masks;  // by lane
  std::uint32_t escapes;                                           // bits set in escape_masks
};

// Position of a lane's value among the tile's values, by its bit in the escape mask; lane l adds 8 l.
inline constexpr auto mask_bit_position = [] {
  std::array<std::uint16_t, lane_values> positions{};
  for (std::uint32_t bit = 0; bit < lane_values; ++bit) {
    const std::uint32_t pair = bit % 16;
    positions[bit] = static_cast<std::uint16_t>(256 * (pair / 4) + 2 * (pair % 4) + bit / 16);
  }
  return positions;
}();

// Calls visit(position of the value) for every escape, in escape order.
template <typename Visit>
void for_each_escape(const HostTile& tile, Visit visit) {
  for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
    for (std::uint32_t mask = tile.escape_masks[lane]; mask != 0; mask &= mask - 1) {
      visit(mask_bit_position[static_cast<std::uint32_t>(std::countr_zero(mask))] + 8 * lane);
    }
  }
}

// Between value order and the byte order of the sign-mantissa section and of raw entries; 1,024 bytes each.
void to_plane_order(const TileBytes& by_value, std::uint8_t* plane);
void from_plane_order(const std::uint8_t* plane, TileBytes& by_value);

// Between codes and pairs, and between pairs and the 384 bytes of the code section.
void codes_to_pairs(HostTile& tile);
void pairs_to_codes(HostTile& tile);
void pack_pairs(const HostTile& tile, std::uint8_t* section);
void unpack_pairs(const std::uint8_t* section, HostTile& tile);

// Fills escape_masks and escapes from pairs.
void find_escapes(HostTile& tile);

// Between nibbles begin to end - 1, begin being even, and the ceil((end - begin) / 2) bytes that hold them.
void pack_nibbles(const HostTile& tile, std::uint32_t begin, std::uint32_t end, std::uint8_t* bytes);
void unpack_nibbles(const std::uint8_t* bytes, std::uint32_t begin, std::uint32_t end, HostTile& tile);

}  // namespace zipccl::codec
