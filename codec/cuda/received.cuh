// The received messages of a launch, in a row or a list.
#pragma once

#include "codec/cuda/lists.cuh"
#include "codec/format.hpp"
#include "codec/job_checks.hpp"

namespace zipccl::codec::cuda {

// Of the kernels that decode: a warp a tile, 48 registers a thread.
inline constexpr unsigned decode_block_warps = 8;
inline constexpr unsigned decode_block_threads = decode_block_warps * lane_count;
inline constexpr unsigned decode_blocks_per_multiprocessor = 40 / decode_block_warps;

// Where a received message and its values lie.
struct ReceivedPlace {
  const std::uint8_t* bytes;
  std::uint16_t* values;
  Layout layout;

  __device__ const MessageHeader& header() const { return *reinterpret_cast<const MessageHeader*>(bytes); }
};

// Which tiles a block of a launch works on.
struct MessageBlock {
  unsigned message;
  unsigned block;  // of the message's
};

struct ReceivedRow {
  const std::uint8_t* messages;
  std::uint8_t* values;
  std::uint64_t message_stride;
  std::uint64_t value_stride;
  Layout layout;
  std::uint32_t count;
  std::uint32_t skip;
  std::uint32_t message_blocks;  // of each

  ReceivedRow() = default;
  explicit ReceivedRow(const DecodeJob& job)
      : messages(static_cast<const std::uint8_t*>(job.messages)),
        values(static_cast<std::uint8_t*>(job.values)),
        message_stride(job.message_stride),
        value_stride(job.value_stride),
        layout(Layout::of(job.count, job.pool_fraction)),
        count(job.message_count),
        skip(job.skip),
        message_blocks(blocks_of(layout.tiles, decode_block_warps)) {}

  // Whether all values' addresses are.
  bool is_aligned() const { return cuda::is_aligned(values) && (count == 1 || value_stride % sizeof(uint4) == 0); }
  // All but the skipped one's.
  std::uint32_t block_total() const { return (count - (skip < count ? 1 : 0)) * message_blocks; }

  __device__ MessageBlock find(unsigned block) const {
    const unsigned place = block / message_blocks;
    return {place + (place >= skip ? 1 : 0), block - place * message_blocks};
  }
  __device__ ReceivedPlace place(unsigned index) const {
    return {messages + index * message_stride, reinterpret_cast<std::uint16_t*>(values + index * value_stride), layout};
  }
  __device__ bool skips(unsigned index) const { return index == skip; }
  __device__ std::uint32_t sender(unsigned index) const { return index; }
};

template <unsigned capacity>
struct ReceivedList {
  struct Item {
    const std::uint8_t* bytes;
    std::uint16_t* values;
    std::uint64_t count;
    std::uint32_t sender;
    std::uint32_t first_block;
  };
  std::uint32_t count;
  std::uint32_t pool_fraction;
  std::uint32_t total_blocks;
  Item items[capacity];

  // Takes over `part` items of the job's from `first` on.
  void fill(const DecodeJob& job, std::uint32_t first, std::uint32_t part) {
    count = part;
    pool_fraction = job.pool_fraction;
    std::uint32_t blocks = 0;
    for (std::uint32_t i = 0; i < part; ++i) {
      const DecodeItem& item = job.items[first + i];
      items[i] = {static_cast<const std::uint8_t*>(item.message), static_cast<std::uint16_t*>(item.values), item.count,
                  item.sender, blocks};
      blocks += blocks_of(Layout::of(item.count, 0).tiles, decode_block_warps);
    }
    total_blocks = blocks;
  }

  bool is_aligned() const {
    return std::all_of(items, items + count, [](const Item& item) { return cuda::is_aligned(item.values); });
  }
  std::uint32_t block_total() const { return total_blocks; }

  __device__ MessageBlock find(unsigned block) const {
    const unsigned index = find_item(items, count, block);
    return {index, block - items[index].first_block};
  }
  __device__ ReceivedPlace place(unsigned index) const {
    const Item& item = items[index];
    return {item.bytes, item.values, Layout::of(item.count, pool_fraction)};
  }
  __device__ bool skips(unsigned) const { return false; }
  __device__ std::uint32_t sender(unsigned index) const { return items[index].sender; }
};

// What headers must hold.
struct ReceivedChecks {
  std::uint64_t sequence;
  const std::uint64_t* sequence_counter;
  std::uint32_t chunk;
  bool any_sequence;

  ReceivedChecks() = default;
  explicit ReceivedChecks(const DecodeJob& job)
      : sequence(job.sequence),
        sequence_counter(job.sequence_counter),
        chunk(job.chunk),
        any_sequence(job.any_sequence) {}

  __device__ Status check(const MessageHeader& header, const Layout& layout) const {
    const std::uint64_t counted = sequence_counter == nullptr ? 0 : *sequence_counter;
    return check_header(header, Dtype::bfloat16, layout, counted + sequence, chunk, any_sequence);
  }
};

}  // namespace zipccl::codec::cuda
