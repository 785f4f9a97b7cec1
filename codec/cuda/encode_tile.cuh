// One warp encodes one tile: FORMAT.md's section 4, written.
#pragma once

#include "codec/cuda/warp.cuh"
#include "codec/format.hpp"

namespace zipccl::codec::cuda {

// Where a message and its values lie.
struct MessagePlace {
  const std::uint16_t* values;
  std::uint8_t* bytes;
  Layout layout;
};

// Shared memory of a warp.
struct WarpStorage {
  alignas(16) std::uint8_t exponents[escape_room];  // of the tile's escapes, in escape order
  alignas(16) std::uint8_t entry[raw_entry_units * unit_bytes];
};

// What a warp tells its block of its tile.
struct TileSummary {
  unsigned escapes;
  unsigned far_escapes;
  unsigned units;  // of the entry that the tile needs, 0 if it needs none
};

// Keeps the compiler from holding on to what a value was made of beside the value itself, which costs registers.
__device__ inline std::uint32_t opaque(std::uint32_t value) {
  asm("" : "+r"(value));
  return value;
}

__device__ inline unsigned nibble_of(unsigned exponent, unsigned window) {
  const unsigned below = window - 1 - exponent;
  const unsigned above = exponent - window - window_exponents;
  unsigned nibble = nibble_far;
  if (above < 2) nibble = nibble_above + above;
  if (below < nibble_below) nibble = below;
  return exponent == 0 ? nibble_zero : nibble;
}

// Nibbles of the escapes 2 * pair and 2 * pair + 1, zero for those that do not exist.
struct NibblePair {
  unsigned low;
  unsigned high;
  __device__ unsigned byte() const { return low | high << 4; }
};

__device__ inline NibblePair nibble_pair(const std::uint8_t* exponents, unsigned pair, unsigned escapes,
                                         unsigned window) {
  const unsigned both = 2 * pair < escapes ? reinterpret_cast<const std::uint16_t*>(exponents)[pair] : 0u;
  return {2 * pair < escapes ? nibble_of(both & 0xff, window) : 0,
          2 * pair + 1 < escapes ? nibble_of(both >> 8, window) : 0};
}

// The rank-th largest of the lanes' exponents. Warp-wide.
__device__ inline unsigned nth_largest(unsigned exponent, unsigned rank) {
  const auto enough = [&](unsigned candidate) {
    return static_cast<unsigned>(__popc(__ballot_sync(all_lanes, exponent >= candidate))) >= rank;
  };
  // In tensors it is nearly always just below the largest; that fails only for odd data, and then costs little.
  constexpr unsigned likely_distances = 4;
  const unsigned largest = __reduce_max_sync(all_lanes, exponent);
  for (unsigned below = 0; below < likely_distances && below <= largest; ++below) {
    if (enough(largest - below)) return largest - below;
  }
  unsigned result = 0;
  for (unsigned bit = 0x80; bit != 0; bit >>= 1) {
    if (enough(result | bit)) result |= bit;
  }
  return result;
}

// Builds the entry of mode entry and counts far escapes; what exceeds the largest entry is left out, as the tile is raw
// then. `own` is the nibble pair lane - 2, that is, what the lane's byte of the tail holds in mode tail. Warp-wide.
__device__ inline unsigned build_entry(WarpStorage& storage, unsigned escapes, unsigned window, NibblePair own) {
  const unsigned lane = lane_id();
  const unsigned lanes_below = (1u << lane) - 1;
  unsigned end = entry_nibble_bytes(escapes);
  const unsigned nibble_bytes = end;
  NibblePair pair = own;
  for (unsigned index = lane - 2;;) {
    const unsigned position = index - tail_nibbles_with_entry / 2;
    if (position < nibble_bytes) storage.entry[position] = static_cast<std::uint8_t>(pair.byte());
    const unsigned far_low = __ballot_sync(all_lanes, pair.low == nibble_far);
    const unsigned far_high = __ballot_sync(all_lanes, pair.high == nibble_far);
    if ((far_low | far_high) != 0) {
      unsigned next = end + __popc(far_low & lanes_below) + __popc(far_high & lanes_below);
      if (pair.low == nibble_far) {
        if (next < max_entry_bytes) storage.entry[next] = storage.exponents[2 * index];
        ++next;
      }
      if (pair.high == nibble_far && next < max_entry_bytes) storage.entry[next] = storage.exponents[2 * index + 1];
      end += __popc(far_low) + __popc(far_high);
    }
    index += lane_count;
    if (2 * (index - lane) >= escapes) break;
    pair = nibble_pair(storage.exponents, index, escapes, window);
  }
  if (end + lane < bytes_to_units(end) * unit_bytes && end <= max_entry_bytes) storage.entry[end + lane] = 0;
  return end - nibble_bytes;
}

// Turns each pair into its two exponents, in the low bytes of the halves; returns the largest.
__device__ inline unsigned take_exponents(std::uint32_t (&pairs)[lane_pairs]) {
  std::uint32_t largest_pair = 0;
#pragma unroll
  for (unsigned q = 0; q < lane_pairs; q += 2) {
    pairs[q] = opaque(pairs[q] >> 7 & 0x00ff00ffu);
    pairs[q + 1] = opaque(pairs[q + 1] >> 7 & 0x00ff00ffu);
    largest_pair = __vimax3_u16x2(largest_pair, pairs[q], pairs[q + 1]);
  }
  return max(largest_pair & 0xffffu, largest_pair >> 16);
}

// The window of a tile of `remaining` values, by its lanes' largest exponents. Warp-wide.
__device__ inline unsigned find_window(unsigned largest, unsigned remaining) {
  // Lanes without a value have 0 and so never count for a top above 0, whatever the rank.
  const unsigned lanes = remaining >= row_values ? lane_count : (remaining + 7) / 8;
  const unsigned top = nth_largest(largest, (14 * lanes + lane_count - 1) / lane_count);
  return max(top, window_exponents - 1) - (window_exponents - 1);
}

// The low 16 bits of a number in both halves.
__device__ inline std::uint32_t both_halves(std::uint32_t number) { return (number & 0xffffu) * 0x10001u; }

// Writes all of a tile but, if it needs an entry, its entry and tail: the entry is left in `storage`, the lane's byte
// of the tail, which lacks the entry's first unit, in `tail_byte`. Warp-wide.
template <bool aligned>
__device__ TileSummary encode_tile(const MessagePlace& message, std::uint64_t tile, WarpStorage& storage,
                                   unsigned& tail_byte) {
  const unsigned lane = lane_id();
  const unsigned remaining = remaining_values(message.layout.count, tile);
  std::uint32_t pairs[lane_pairs];
  load_tile<aligned>(message.values + tile * tile_values, remaining, lane, pairs);

  uint4* planes = reinterpret_cast<uint4*>(message.bytes + message.layout.planes + tile * plane_bytes);
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    std::uint32_t rest[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const std::uint32_t first = pairs[8 * half + 2 * i];
      const std::uint32_t second = pairs[8 * half + 2 * i + 1];
      rest[i] = (__byte_perm(first, second, 0x7531) & 0x80808080u) | (__byte_perm(first, second, 0x6420) & 0x7f7f7f7fu);
    }
    planes[half * lane_count + lane] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }

  const unsigned window = find_window(take_exponents(pairs), remaining);
  std::uint32_t codes[lane_pairs];
  const std::uint32_t minus_window = both_halves(0u - window);
#pragma unroll
  for (unsigned q = 0; q < lane_pairs; ++q) codes[q] = __viaddmin_u16x2(pairs[q], minus_window, 0x00070007u);
  if (remaining < tile_values) {
#pragma unroll
    for (unsigned q = 0; q < lane_pairs; ++q) {
      if (pair_index(lane, q) >= remaining) codes[q] = 0;
      if (pair_index(lane, q) + 1 >= remaining) codes[q] &= 0xffffu;
    }
  }
  std::uint32_t words[3];
  std::uint32_t* code_words =
      reinterpret_cast<std::uint32_t*>(message.bytes + message.layout.codes + tile * code_bytes);
#pragma unroll
  for (unsigned i = 0; i < 3; ++i) {
    words[i] = codes[i + 12];
#pragma unroll
    for (unsigned p = 4; p-- > 0;) words[i] = words[i] * 8 + codes[i + 3 * p];
    words[i] |= codes[15] << (15 - i) & 0x80008000u;
    code_words[i * lane_count + lane] = words[i];
  }

  const std::uint32_t mask = escape_mask(words);
  const EscapeRanks ranks = rank_escapes(mask, lane);
  if (ranks.total != 0) {
    unsigned low_next = shared_address(storage.exponents) + ranks.first;
    unsigned high_next = low_next + __popc(mask & 0xffffu);
#pragma unroll
    for (unsigned q = 0; q < lane_pairs; ++q) {
      store_byte_if(mask & 1u << q, low_next, pairs[q]);
      store_byte_if(mask & 0x10000u << q, high_next, pairs[q] >> 16);
    }
  }
  __syncwarp();

  const NibblePair own = nibble_pair(storage.exponents, lane - 2, lane < 2 ? 0 : ranks.total, window);
  const bool far = own.low == nibble_far || own.high == nibble_far;
  tail_byte = lane == 0 ? window : own.byte();
  if (ranks.total <= tail_nibbles && !__any_sync(all_lanes, far)) {
    message.bytes[message.layout.tails + tile * tail_bytes + lane] = static_cast<std::uint8_t>(tail_byte);
    return {ranks.total, 0, 0};
  }
  const unsigned far_escapes = build_entry(storage, ranks.total, window, own);
  const unsigned bytes = entry_nibble_bytes(ranks.total) + far_escapes;
  if (bytes <= max_entry_bytes) {
    const unsigned units = bytes_to_units(bytes);
    if (lane == 1) tail_byte = static_cast<unsigned>(TileMode::entry) | units << tail_units_shift;
    return {ranks.total, far_escapes, units};
  }
  if (lane != 0) tail_byte = lane == 1 ? static_cast<unsigned>(TileMode::raw) : 0;
  __syncwarp();
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const std::uint32_t* from = pairs + 8 * half;
    reinterpret_cast<uint4*>(storage.entry)[half * lane_count + lane] =
        make_uint4(__byte_perm(from[0], from[1], 0x6420), __byte_perm(from[2], from[3], 0x6420),
                   __byte_perm(from[4], from[5], 0x6420), __byte_perm(from[6], from[7], 0x6420));
  }
  return {ranks.total, far_escapes, raw_entry_units};
}

// Writes the entry and the tail that encode_tile has left, now that the entry's first unit is known;
// an entry beyond the pool goes to `overflow`, or nowhere if that is null. Warp-wide.
__device__ inline void place_entry(const MessagePlace& message, std::uint8_t* overflow, std::uint64_t tile,
                                   const WarpStorage& storage, unsigned units, std::uint32_t first,
                                   unsigned tail_byte) {
  const unsigned lane = lane_id();
  const bool in_pool = message.layout.in_pool(first, units);
  if (in_pool || overflow != nullptr) {
    std::uint8_t* entry = in_pool ? message.bytes + message.layout.pool + std::uint64_t{first} * unit_bytes
                                  : overflow + message.layout.overflow_offset(first);
    for (unsigned i = lane; i < units; i += lane_count) {
      reinterpret_cast<uint4*>(entry)[i] = reinterpret_cast<const uint4*>(storage.entry)[i];
    }
  }
  constexpr unsigned first_byte = tail_bytes - sizeof(first);
  if (lane >= first_byte) tail_byte = first >> (lane - first_byte) * 8;
  if (lane < tail_bytes) {
    message.bytes[message.layout.tails + tile * tail_bytes + lane] = static_cast<std::uint8_t>(tail_byte);
  }
}

}  // namespace zipccl::codec::cuda
