// What one warp does with one tile, in both directions: the lane's share of FORMAT.md's sections 4.1, 4.4 and 4.5, and
// the movement of values between memory and registers at any alignment.
//
// A lane holds its 32 values as 16 pairs, the earlier value in the low half. Functions called "warp-wide" must be
// reached by all 32 lanes.
#pragma once

#include <cstdint>

#include "codec/format.hpp"

namespace zipccl::codec::cuda {

inline constexpr unsigned all_lanes = 0xffffffffu;
inline constexpr unsigned lane_pairs = lane_values / 2;
inline constexpr unsigned rows = 4;                                      // k of FORMAT.md 4.1
inline constexpr unsigned row_values = tile_values / rows;               // consecutive values that a warp loads at once
inline constexpr unsigned row_vectors = row_values * 2 / sizeof(uint4);  // one uint4 a lane
static_assert(row_vectors == lane_count);

// Shared memory of a warp: a byte for each escape, and one more that a walk's last step may read.
inline constexpr unsigned escape_room = tile_values + 16;

// Shared memory for an object whose type has initializers, which __shared__ variables must not have; not initialized.
template <typename T>
struct SharedRoom {
  alignas(T) unsigned char bytes[sizeof(T)];
  __device__ T& object() { return *reinterpret_cast<T*>(bytes); }
};

__device__ inline unsigned lane_id() { return threadIdx.x % lane_count; }
__device__ inline unsigned warp_id() { return threadIdx.x / lane_count; }

// Index in its tile of the low value of a lane's pair.
__device__ inline unsigned pair_index(unsigned lane, unsigned pair) {
  return pair / 4 * row_values + lane * 8 + pair % 4 * 2;
}

// Bit q: the low half of pair q has code 7; bit 16 + q: its high half.
__device__ inline std::uint32_t escape_mask(const std::uint32_t (&words)[3]) {
  constexpr std::uint32_t first_bits = 0x12491249u;
  std::uint32_t mask = words[0] & words[1] & words[2] & 0x80008000u;
#pragma unroll
  for (unsigned i = 0; i < 3; ++i) mask |= (words[i] & words[i] >> 1 & words[i] >> 2 & first_bits) << i;
  return mask;
}

struct EscapeRanks {
  unsigned first;  // rank in escape order of the lane's first escape
  unsigned total;  // E, the tile's number of escapes
};

// Warp-wide.
__device__ inline EscapeRanks rank_escapes(std::uint32_t mask, unsigned lane) {
  const unsigned own = __popc(mask);
  unsigned sum = own;
#pragma unroll
  for (unsigned distance = 1; distance < lane_count; distance *= 2) {
    const unsigned below = __shfl_up_sync(all_lanes, sum, distance);
    if (lane >= distance) sum += below;
  }
  return {sum - own, __shfl_sync(all_lanes, sum, lane_count - 1)};
}

// The shared-memory address of a byte, for the functions below.
__device__ inline unsigned shared_address(const std::uint8_t* byte) {
  return static_cast<unsigned>(__cvta_generic_to_shared(byte));
}

// The next two are one step of a lane's walk over its escape mask: if `bit` is not zero, they move one byte and advance
// the address. In assembly because the compiler makes 32 branches of them, each waiting for the one before, where
// predicated instructions overlap.
__device__ inline void store_byte_if(std::uint32_t bit, unsigned& address, std::uint32_t byte) {
  asm volatile(
      "{\n\t"
      ".reg .pred take;\n\t"
      "setp.ne.u32 take, %1, 0;\n\t"
      "@take st.shared.u8 [%0], %2;\n\t"
      "@take add.u32 %0, %0, 1;\n\t"
      "}"
      : "+r"(address)
      : "r"(bit), "r"(byte)
      : "memory");
}

// Adds the byte, shifted left by `shift`, to `sum`. The byte is read in any case: a predicated load would make its
// register live from the start of the kernel.
template <unsigned shift>
__device__ inline void add_byte_if(std::uint32_t bit, unsigned& address, std::uint32_t& sum) {
  asm volatile(
      "{\n\t"
      ".reg .pred take;\n\t"
      ".reg .u32 byte;\n\t"
      "setp.ne.u32 take, %2, 0;\n\t"
      "ld.shared.u8 byte, [%0];\n\t"
      "@take add.u32 %0, %0, 1;\n\t"
      "@take mad.lo.u32 %1, byte, %3, %1;\n\t"
      "}"
      : "+r"(address), "+r"(sum)
      : "r"(bit), "n"(1u << shift)
      : "memory");
}

// Bytes of an entry that hold nibbles, for a tile of `escapes` escapes.
__device__ inline unsigned entry_nibble_bytes(unsigned escapes) {
  return escapes > tail_nibbles_with_entry ? (escapes - tail_nibbles_with_entry + 1) / 2 : 0;
}

__device__ inline unsigned bytes_to_units(unsigned bytes) { return (bytes + unit_bytes - 1) / unit_bytes; }

// The words [offset / 4, offset / 4 + 4) of the eight in `low` and `high`, shifted by the odd half word. `offset` is a
// byte count below 16, a multiple of 2, the same in all lanes.
__device__ inline uint4 extract(uint4 low, uint4 high, unsigned offset) {
  std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (offset & 8) {
#pragma unroll
    for (unsigned i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (offset & 4) {
#pragma unroll
    for (unsigned i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  if (offset & 2) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 16);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The 16 bytes that follow a lane's own in row `row`: its right neighbour's, or for the last lane the first lane's of
// the next row. Warp-wide.
__device__ inline uint4 next_vector(uint4 row, uint4 next_row, unsigned lane) {
  const uint4 offered = lane == 0 ? next_row : row;
  const unsigned source = (lane + 1) % lane_count;
  return make_uint4(__shfl_sync(all_lanes, offered.x, source), __shfl_sync(all_lanes, offered.y, source),
                    __shfl_sync(all_lanes, offered.z, source), __shfl_sync(all_lanes, offered.w, source));
}

__device__ inline void set_row(std::uint32_t (&pairs)[lane_pairs], unsigned row, uint4 vector) {
  pairs[4 * row] = vector.x;
  pairs[4 * row + 1] = vector.y;
  pairs[4 * row + 2] = vector.z;
  pairs[4 * row + 3] = vector.w;
}

__device__ inline uint4 get_row(const std::uint32_t (&pairs)[lane_pairs], unsigned row) {
  return make_uint4(pairs[4 * row], pairs[4 * row + 1], pairs[4 * row + 2], pairs[4 * row + 3]);
}

// Values of a message from tile `tile` on, but at most two tiles' worth: enough to know how to load and store it.
__device__ inline unsigned remaining_values(std::uint64_t count, std::uint64_t tile) {
  const std::uint64_t remaining = count - tile * tile_values;
  return remaining < 2 * tile_values ? static_cast<unsigned>(remaining) : 2 * tile_values;
}

__device__ inline unsigned misalignment(const std::uint16_t* values) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(values) % sizeof(uint4));
}

// Loads the lane's pairs of a tile of `remaining` >= 1 values that starts at `values`; those at and beyond `remaining`
// are zero. Of bytes outside [values, values + 2 * remaining) only those in front that share an aligned 16-byte word
// with a value are ever read, which no allocation lacks. Warp-wide.
template <bool aligned>
__device__ inline void load_tile(const std::uint16_t* values, unsigned remaining, unsigned lane,
                                 std::uint32_t (&pairs)[lane_pairs]) {
  const unsigned offset = aligned ? 0 : misalignment(values);
  if (offset == 0 && remaining >= tile_values) {
    const uint4* vectors = reinterpret_cast<const uint4*>(values) + lane;
#pragma unroll
    for (unsigned row = 0; row < rows; ++row) set_row(pairs, row, vectors[row * row_vectors]);
  } else if (!aligned && remaining >= tile_values + 8) {
    const uint4* vectors = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(values) - offset) + lane;
    uint4 vector[rows + 1];
#pragma unroll
    for (unsigned row = 0; row < rows; ++row) vector[row] = vectors[row * row_vectors];
    vector[rows] = make_uint4(0, 0, 0, 0);
    if (lane == 0) vector[rows] = vectors[rows * row_vectors];
#pragma unroll
    for (unsigned row = 0; row < rows; ++row) {
      set_row(pairs, row, extract(vector[row], next_vector(vector[row], vector[row + 1], lane), offset));
    }
  } else {
#pragma unroll
    for (unsigned q = 0; q < lane_pairs; ++q) {
      const unsigned index = pair_index(lane, q);
      const std::uint32_t low = index < remaining ? values[index] : 0u;
      const std::uint32_t high = index + 1 < remaining ? values[index + 1] : 0u;
      pairs[q] = low | high << 16;
    }
  }
}

// Stores the pairs that load_tile loads, and no byte outside [values, values + 2 * remaining). Warp-wide.
template <bool aligned>
__device__ inline void store_tile(std::uint16_t* values, unsigned remaining, unsigned lane,
                                  const std::uint32_t (&pairs)[lane_pairs]) {
  const unsigned offset = aligned ? 0 : misalignment(values);
  if (offset == 0 && remaining >= tile_values) {
    uint4* vectors = reinterpret_cast<uint4*>(values) + lane;
#pragma unroll
    for (unsigned row = 0; row < rows; ++row) vectors[row * row_vectors] = get_row(pairs, row);
    return;
  }
  if (!aligned && remaining >= tile_values) {
    // Lane l writes the aligned words between its own values and the next lane's; what is left at the tile's two ends
    // is less than a word each.
    const unsigned head = static_cast<unsigned>(sizeof(uint4)) - offset;
    uint4* vectors = reinterpret_cast<uint4*>(reinterpret_cast<char*>(values) + head) + lane;
#pragma unroll
    for (unsigned row = 0; row < rows; ++row) {
      const uint4 own = get_row(pairs, row);
      const uint4 next = next_vector(own, row + 1 < rows ? get_row(pairs, row + 1) : own, lane);
      if (row + 1 < rows || lane + 1 < lane_count) vectors[row * row_vectors] = extract(own, next, head);
    }
    const unsigned head_values = head / 2;
#pragma unroll
    for (unsigned j = 0; j < 8; ++j) {
      if (lane == 0 && j < head_values) values[j] = static_cast<std::uint16_t>(pairs[j / 2] >> j % 2 * 16);
      if (lane == lane_count - 1 && j >= head_values) {
        values[tile_values - 8 + j] = static_cast<std::uint16_t>(pairs[lane_pairs - 4 + j / 2] >> j % 2 * 16);
      }
    }
    return;
  }
#pragma unroll
  for (unsigned q = 0; q < lane_pairs; ++q) {
    const unsigned index = pair_index(lane, q);
    if (index < remaining) values[index] = static_cast<std::uint16_t>(pairs[q]);
    if (index + 1 < remaining) values[index + 1] = static_cast<std::uint16_t>(pairs[q] >> 16);
  }
}

}  // namespace zipccl::codec::cuda
