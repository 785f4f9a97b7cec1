// How a launch finds its messages when a job is a list of them: a table in the kernel's arguments, searched by block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "codec/device.hpp"

namespace zipccl::codec::cuda {

// A launch has a table of one of two sizes, as all of it is copied: kernel arguments hold 32,764 bytes. Longer lists
// are launched in parts of large_list.
constexpr unsigned small_list = 16;
constexpr unsigned large_list = 512;
static_assert(large_list == encode_scratch_messages);

// The item that a block belongs to: the last one whose first_block is not above it.
template <typename Item>
__device__ inline unsigned find_item(const Item* items, unsigned count, unsigned block) {
  unsigned low = 0;
  unsigned high = count;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    if (items[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls launch(small or large table, first item, number of items, whether they are the last) for each part of a list.
// Stops at the first error.
template <template <unsigned> typename Table, typename Launch>
cudaError_t launch_parts(std::uint32_t item_count, Launch launch) {
  std::uint32_t first = 0;
  do {
    const std::uint32_t part = std::min(item_count - first, large_list);
    const bool last = first + part == item_count;
    cudaError_t error = cudaSuccess;
    if (part <= small_list) {
      Table<small_list> table{};
      error = launch(table, first, part, last);
    } else {
      Table<large_list> table{};
      error = launch(table, first, part, last);
    }
    if (error != cudaSuccess) return error;
    first += part;
  } while (first < item_count);
  return cudaSuccess;
}

inline bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(uint4) == 0; }

// Blocks of `block_tiles` tiles that a message takes, at least one.
inline std::uint32_t blocks_of(std::uint64_t tiles, unsigned block_tiles) {
  return static_cast<std::uint32_t>(std::max<std::uint64_t>((tiles + block_tiles - 1) / block_tiles, 1));
}

}  // namespace zipccl::codec::cuda
