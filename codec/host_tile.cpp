#include "codec/host_tile.hpp"

#include <cstddef>
#include <cstring>

namespace zipccl::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian and copied as it is");

constexpr std::uint32_t pair_count = lane_values / 2;
constexpr std::uint32_t last_pair = pair_count - 1;
constexpr std::uint32_t word_count = 3;
constexpr std::uint32_t word_pairs = last_pair / word_count;  // whole pairs of a word; the last pair is spread
constexpr std::uint32_t both_codes = 0x00070007;              // a pair's two codes in a 32-bit word
constexpr std::uint32_t both_bits = 0x00010001;

}  // namespace

// Byte order of the sign-mantissa section and of raw entries (FORMAT.md 4.3): groups of 8 values, those of k = 1 and 3
// behind those of k = 0 and 2.
void to_plane_order(const TileBytes& by_value, std::uint8_t* plane) {
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      std::memcpy(plane + 512 * half + 16 * lane, by_value.data() + 512 * half + 8 * lane, 8);
      std::memcpy(plane + 512 * half + 16 * lane + 8, by_value.data() + 512 * half + 256 + 8 * lane, 8);
    }
  }
}

void from_plane_order(const std::uint8_t* plane, TileBytes& by_value) {
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      std::memcpy(by_value.data() + 512 * half + 8 * lane, plane + 512 * half + 16 * lane, 8);
      std::memcpy(by_value.data() + 512 * half + 256 + 8 * lane, plane + 512 * half + 16 * lane + 8, 8);
    }
  }
}

// Fills escape_masks and escapes from pairs: bit q of a mask for the low half of pair q, bit 16 + q for the high.
void find_escapes(HostTile& tile) {
  tile.escape_masks.fill(0);
  for (std::uint32_t pair = 0; pair < pair_count; ++pair) {
    for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
      const std::uint32_t codes = tile.pairs[pair][lane];
      tile.escape_masks[lane] |= (codes & (codes >> 1) & (codes >> 2) & both_bits) << pair;
    }
  }
  tile.escapes = 0;
  for (const std::uint32_t mask : tile.escape_masks) {
    tile.escapes += static_cast<std::uint32_t>(std::popcount(mask));
  }
}

// Codes by value to pairs by lane: each pair's two code bytes spread to the halves of a word.
void codes_to_pairs(HostTile& tile) {
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      std::array<std::uint16_t, 4> codes;
      std::memcpy(codes.data(), tile.codes.data() + 256 * k + 8 * lane, 8);
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t both = codes[i];
        tile.pairs[4 * k + i][lane] = (both | both << 8) & both_codes;
      }
    }
  }
}

void pairs_to_codes(HostTile& tile) {
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      std::array<std::uint16_t, 4> codes;
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t both = tile.pairs[4 * k + i][lane];
        codes[i] = static_cast<std::uint16_t>(both | both >> 8);
      }
      std::memcpy(tile.codes.data() + 256 * k + 8 * lane, codes.data(), 8);
    }
  }
}

void pack_pairs(const HostTile& tile, std::uint8_t* section) {
  std::array<std::array<std::uint32_t, lane_count>, word_count> words;
  for (std::uint32_t i = 0; i < word_count; ++i) {
    for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
      std::uint32_t word = ((tile.pairs[last_pair][lane] >> i) & both_bits) << 15;
      for (std::uint32_t p = 0; p < word_pairs; ++p) {
        word |= tile.pairs[i + word_count * p][lane] << (3 * p);
      }
      words[i][lane] = word;
    }
  }
  std::memcpy(section, words.data(), code_bytes);
}

void unpack_pairs(const std::uint8_t* section, HostTile& tile) {
  std::array<std::array<std::uint32_t, lane_count>, word_count> words;
  std::memcpy(words.data(), section, code_bytes);
  for (std::uint32_t i = 0; i < word_count; ++i) {
    for (std::uint32_t p = 0; p < word_pairs; ++p) {
      for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
        tile.pairs[i + word_count * p][lane] = (words[i][lane] >> (3 * p)) & both_codes;
      }
    }
  }
  for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
    tile.pairs[last_pair][lane] = ((words[0][lane] >> 15) & both_bits) | ((words[1][lane] >> 15) & both_bits) << 1 |
                                  ((words[2][lane] >> 15) & both_bits) << 2;
  }
}

// Nibbles begin .. end - 1 as bytes, the last one padded.
void pack_nibbles(const HostTile& tile, std::uint32_t begin, std::uint32_t end, std::uint8_t* bytes) {
  for (std::uint32_t i = begin; i < end; i += 2) {
    const std::uint32_t high = i + 1 < end ? tile.nibbles[i + 1] : 0u;
    *bytes++ = static_cast<std::uint8_t>(tile.nibbles[i] | high << 4);
  }
}

void unpack_nibbles(const std::uint8_t* bytes, std::uint32_t begin, std::uint32_t end, HostTile& tile) {
  for (std::uint32_t i = begin; i < end; i += 2, ++bytes) {
    tile.nibbles[i] = *bytes & 15;
    if (i + 1 < end) {
      tile.nibbles[i + 1] = static_cast<std::uint8_t>(*bytes >> 4);
    }
  }
}

}  // namespace zipccl::codec
