// One warp decodes one tile: FORMAT.md's sections 4 and 5 read backwards, with the checks of section 7.
#pragma once

#include "codec/cuda/received.cuh"
#include "codec/cuda/warp.cuh"
#include "codec/format.hpp"

namespace zipccl::codec::cuda {

// The bytes [begin, begin + size) of a message's overflow, of which the entries that start in [begin, begin + step)
// are to be decoded.
struct OverflowPiece {
  const std::uint8_t* bytes;
  std::uint64_t begin;
  std::uint64_t step;
  std::uint64_t size;
};

// An escape's exponent as its distance from the code's own meaning, w + 7, modulo 256. No escape has distance 255,
// which is inside the window, so that it can mark the far ones until their bytes are read.
inline constexpr unsigned far_distance = 255;

__device__ inline unsigned exponent_distance(unsigned exponent, unsigned window) {
  return exponent - window - window_exponents & 0xff;
}

__device__ inline unsigned nibble_distance(unsigned nibble, unsigned window) {
  unsigned distance = nibble < nibble_below ? 0xff - window_exponents - nibble : nibble - nibble_above;
  if (nibble == nibble_zero) distance = exponent_distance(0, window);
  return nibble == nibble_far ? far_distance : distance;
}

// Distances of escapes 2 * pair and 2 * pair + 1; returns whether one of them exists and is far.
__device__ inline bool unpack_nibbles(std::uint8_t* distances, unsigned pair, unsigned byte, unsigned escapes,
                                      unsigned window) {
  const unsigned low = nibble_distance(byte & 15, window);
  const unsigned high = nibble_distance(byte >> 4, window);
  reinterpret_cast<std::uint16_t*>(distances)[pair] = static_cast<std::uint16_t>(low | high << 8);
  return (low == far_distance && 2 * pair < escapes) || (high == far_distance && 2 * pair + 1 < escapes);
}

// What the tail says and where the entry lies.
struct Entry {
  const std::uint8_t* bytes;
  unsigned units;
};

enum class TileFate { decode, leave, corrupt };

// Finds the entry of a tile of mode entry or raw. Warp-wide.
template <bool patch>
__device__ inline TileFate find_entry(const ReceivedPlace& message, const OverflowPiece& piece, unsigned tail_byte,
                                      bool raw, unsigned units, Entry& entry) {
  std::uint32_t first = 0;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) first |= __shfl_sync(all_lanes, tail_byte, tail_bytes - 4 + i) << 8 * i;
  entry.units = raw ? raw_entry_units : units;
  const bool in_pool = message.layout.in_pool(first, entry.units);
  if constexpr (patch) {
    if (in_pool) return TileFate::leave;
    const std::uint64_t offset = message.layout.overflow_offset(first);
    if (offset < piece.begin || offset - piece.begin >= piece.step) {
      return TileFate::leave;
    }
    const std::uint64_t in_piece = offset - piece.begin;
    if (in_piece + entry.units * unit_bytes > piece.size) return TileFate::corrupt;
    entry.bytes = piece.bytes + in_piece;
  } else {
    const std::uint64_t entry_units = message.header().entry_units;
    if (std::uint64_t{first} + entry.units > entry_units) return TileFate::corrupt;
    if (!in_pool) return TileFate::leave;
    entry.bytes = message.bytes + message.layout.pool + std::uint64_t{first} * unit_bytes;
  }
  return TileFate::decode;
}

// Fills in the distances that the entry holds; false if the entry's size is not what the escapes need. Warp-wide.
__device__ inline bool read_entry(const Entry& entry, std::uint8_t* distances, bool far, unsigned escapes,
                                  unsigned window) {
  const unsigned lane = lane_id();
  const unsigned nibble_bytes = entry_nibble_bytes(escapes);
  if (nibble_bytes > entry.units * unit_bytes) return false;
  for (unsigned i = lane; i < nibble_bytes; i += lane_count) {
    far |= unpack_nibbles(distances, tail_nibbles_with_entry / 2 + i, entry.bytes[i], escapes, window);
  }
  __syncwarp();
  unsigned read = nibble_bytes;
  if (__any_sync(all_lanes, far)) {
    const unsigned lanes_below = (1u << lane) - 1;
    for (unsigned begin = 0; begin < escapes; begin += lane_count) {
      const bool mine = begin + lane < escapes && distances[begin + lane] == far_distance;
      const unsigned all_far = __ballot_sync(all_lanes, mine);
      const unsigned position = read + __popc(all_far & lanes_below);
      if (mine && position < entry.units * unit_bytes) {
        distances[begin + lane] = static_cast<std::uint8_t>(exponent_distance(entry.bytes[position], window));
      }
      read += __popc(all_far);
    }
    __syncwarp();
  }
  return bytes_to_units(read) == entry.units;
}

// The exponents that codes and distances say, in bits 7 to 14 of the halves; other bits are undefined.
__device__ inline void decode_exponents(const std::uint32_t (&words)[3], std::uint32_t mask, EscapeRanks ranks,
                                        const std::uint8_t* distances, unsigned window,
                                        std::uint32_t (&pairs)[lane_pairs]) {
  const std::uint32_t base = window * 0x00800080u;
#pragma unroll
  for (unsigned i = 0; i < 3; ++i) {
#pragma unroll
    for (unsigned p = 0; p < 5; ++p) {
      const std::uint32_t shifted = p < 3 ? words[i] << (7 - 3 * p) : words[i] >> (3 * p - 7);
      pairs[i + 3 * p] = (shifted & 0x03800380u) + base;
    }
  }
  pairs[15] = ((words[0] >> 8 & 0x00800080u) | (words[1] >> 7 & 0x01000100u) | (words[2] >> 6 & 0x02000200u)) + base;
  if (ranks.total == 0) return;
  unsigned low_next = shared_address(distances) + ranks.first;
  unsigned high_next = low_next + __popc(mask & 0xffffu);
#pragma unroll
  for (unsigned q = 0; q < lane_pairs; ++q) {
    add_byte_if<7>(mask & 1u << q, low_next, pairs[q]);
    add_byte_if<23>(mask & 0x10000u << q, high_next, pairs[q]);
  }
}

// Decodes one tile of a message, or finds that it is left alone or corrupt. The first pass decodes all tiles but
// those whose entry lies in the overflow, a patch pass only these; `piece` is for patch passes. `distances` is shared
// memory of the warp's own, escape_room bytes, aligned to 2. Warp-wide.
template <bool aligned, bool patch>
__device__ inline TileFate decode_tile(const ReceivedPlace& message, const OverflowPiece& piece, std::uint64_t tile,
                                       std::uint8_t* distances) {
  const unsigned lane = lane_id();
  const unsigned tail_byte = message.bytes[message.layout.tails + tile * tail_bytes + lane];
  if constexpr (patch) {
    if (__shfl_sync(all_lanes, tail_byte, 1) == static_cast<unsigned>(TileMode::tail)) return TileFate::leave;
  }
  const std::uint32_t* code_words =
      reinterpret_cast<const std::uint32_t*>(message.bytes + message.layout.codes + tile * code_bytes);
  std::uint32_t words[3];
#pragma unroll
  for (unsigned i = 0; i < 3; ++i) words[i] = code_words[i * lane_count + lane];
  const uint4* planes = reinterpret_cast<const uint4*>(message.bytes + message.layout.planes + tile * plane_bytes);
  const uint4 rest[2] = {planes[lane], planes[lane_count + lane]};

  const unsigned window = __shfl_sync(all_lanes, tail_byte, 0);
  const unsigned kind = __shfl_sync(all_lanes, tail_byte, 1);
  const TileMode mode = static_cast<TileMode>(kind & 3);
  constexpr unsigned max_window = 256 - window_exponents;
  const bool plausible = mode == TileMode::entry ? kind >> tail_units_shift != 0
                                                 : kind == static_cast<unsigned>(TileMode::tail) ||
                                                       kind == static_cast<unsigned>(TileMode::raw);
  if (window > max_window || !plausible) return patch ? TileFate::leave : TileFate::corrupt;  // the first pass has told
  const std::uint32_t mask = escape_mask(words);
  const EscapeRanks ranks = rank_escapes(mask, lane);

  std::uint32_t pairs[lane_pairs];
  if (mode == TileMode::raw) {
    Entry entry{};
    const TileFate fate = find_entry<patch>(message, piece, tail_byte, true, 0, entry);
    if (fate != TileFate::decode) return fate;
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const uint4 exponents = reinterpret_cast<const uint4*>(entry.bytes)[half * lane_count + lane];
      const std::uint32_t four[4] = {exponents.x, exponents.y, exponents.z, exponents.w};
#pragma unroll
      for (unsigned i = 0; i < 8; ++i) {
        pairs[8 * half + i] = __byte_perm(four[i / 2], 0, i % 2 == 0 ? 0x4140 : 0x4342) << 7;
      }
    }
  } else {
    bool far = false;
    if (lane >= 2 && lane < (mode == TileMode::tail ? tail_bytes : tail_bytes - 4)) {
      far = unpack_nibbles(distances, lane - 2, tail_byte, ranks.total, window);
    }
    if (mode == TileMode::tail) {
      if (ranks.total > tail_nibbles || __any_sync(all_lanes, far)) return TileFate::corrupt;
      __syncwarp();
    } else {
      Entry entry{};
      const TileFate fate = find_entry<patch>(message, piece, tail_byte, false, kind >> tail_units_shift, entry);
      if (fate != TileFate::decode) return fate;
      if (!read_entry(entry, distances, far, ranks.total, window)) return TileFate::corrupt;
    }
    decode_exponents(words, mask, ranks, distances, window, pairs);
  }

#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const std::uint32_t four[4] = {rest[half].x, rest[half].y, rest[half].z, rest[half].w};
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      std::uint32_t& pair = pairs[8 * half + i];
      pair = (pair & 0x7f807f80u) | (__byte_perm(four[i / 2], 0, i % 2 == 0 ? 0x1100 : 0x3322) & 0x807f807fu);
    }
  }
  store_tile<aligned>(message.values + tile * tile_values, remaining_values(message.layout.count, tile), lane, pairs);
  return TileFate::decode;
}

// One block's tiles, one a warp; `distances()` is the warp's room, as decode_tile's. `bad_tile(message)` is called by
// one lane for a corrupt one. Block-wide.
template <bool aligned, bool patch, typename Messages, typename Piece, typename Distances, typename BadTile>
__device__ inline void decode_block(const Messages& messages, unsigned block, Piece piece_of, Distances distances,
                                    BadTile bad_tile) {
  const MessageBlock part = messages.find(block);
  const ReceivedPlace message = messages.place(part.message);
  const std::uint64_t tile = std::uint64_t{part.block} * decode_block_warps + warp_id();
  if (tile >= message.layout.tiles) return;
  const TileFate fate = decode_tile<aligned, patch>(message, piece_of(part.message), tile, distances());
  if (fate == TileFate::corrupt && lane_id() == 0) bad_tile(part.message);
}

}  // namespace zipccl::codec::cuda
