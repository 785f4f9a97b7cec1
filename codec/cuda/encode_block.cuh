// What a block of an encode does, in whatever kernel: one tile a warp, then its part of the message, whose last block
// completes it. `warps` is the number of a block's.
//
// `Arguments` say what the launch works on:
//   several            whether that is a job of several messages, in which case message_index() is the block's
//   place              of a single message
//   shared, message(index), counters(index), receiver(index)
//   block(index)       the block's number among the message's
//   blocks(index)      how many those are
//   is_first_block()   of the launch, in one block
#pragma once

#include "codec/cuda/encode_tile.cuh"
#include "codec/cuda/ship.cuh"
#include "codec/cuda/system_scope.cuh"
#include "codec/device.hpp"
#include "codec/format.hpp"
#include "codec/overflow.hpp"

namespace zipccl::codec::cuda {

inline EncodeShared shared_arguments(const EncodeJob& job) {
  EncodeShared shared{};
  shared.counters = static_cast<std::uint8_t*>(job.scratch);
  shared.outbox = job.outbox;
  shared.started_ns = job.started_ns;
  shared.sequence = job.sequence;
  shared.sequence_counter = job.sequence_counter;
  shared.message_counter = reinterpret_cast<unsigned long long*>(job.message_counter);
  shared.header_copy = job.header_copy;
  shared.chunk = job.chunk;
  shared.overflow = job.outbox == nullptr ? static_cast<std::uint8_t*>(job.overflow) : nullptr;
  shared.outbox_capacity = job.outbox_capacity;
  shared.outbox_lock = job.outbox_lock;
  shared.release = job.release;
  return shared;
}

inline MessagePlace first_place(const EncodeJob& job) {
  return {static_cast<const std::uint16_t*>(job.values), static_cast<std::uint8_t*>(job.message),
          Layout::of(job.count, job.pool_fraction)};
}

// A job of one message, in an order that keeps what ordinary blocks read in two lines of the constant cache. Its blocks
// are the first of the grid, in x.
struct SingleMessage {
  static constexpr bool several = false;
  MessagePlace place;
  EncodeShared shared;
  std::uint32_t only_receiver;

  SingleMessage() = default;
  explicit SingleMessage(const EncodeJob& job)
      : place(first_place(job)), shared(shared_arguments(job)), only_receiver(job.broadcast ? all_receivers : 0) {}

  __device__ bool is_first_block() const { return blockIdx.x == 0; }
  __device__ const MessagePlace& message(unsigned) const { return place; }
  __device__ EncodeCounters* counters(unsigned) const { return shared.counters_of(0); }
  __device__ std::uint32_t receiver(unsigned) const { return only_receiver; }
  __device__ unsigned block(unsigned) const { return blockIdx.x; }
};

// What a block of a job of several messages works on, in shared memory for the sake of registers.
struct BlockTask {
  MessagePlace place;
  EncodeCounters* counters;
  unsigned index;  // of the message
  unsigned block;  // of the message's
  unsigned blocks;
};

template <typename Arguments>
__device__ const MessagePlace& place_of(const Arguments& arguments, const BlockTask& task) {
  if constexpr (Arguments::several) {
    return task.place;
  } else {
    return arguments.place;
  }
}

// The functions of rare paths are not inlined: small messages last little longer than it takes to fetch the kernel's
// instructions once.

// Block-wide, after the block's tails have been written, of whose entries `overflow_tiles` lie in the overflow.
__device__ __noinline__ inline void announce_block(EncodeCounters* counters, unsigned overflow_tiles) {
  if (overflow_tiles == 0) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  atomicAdd(&counters->announced, overflow_tiles);
}

// Returns whether the message has overflow. For one thread. Not inlined for the sake of the kernel's registers; by
// value, as reading arguments through a pointer takes long.
__device__ __noinline__ inline bool write_header(std::uint8_t* message, EncodeCounters* counters, std::uint64_t count,
                                                 std::uint32_t pool_units, std::uint64_t escapes, std::uint32_t chunk,
                                                 std::uint64_t sequence, const std::uint64_t* sequence_counter,
                                                 unsigned long long* message_counter, MessageHeader* header_copy) {
  MessageHeader header{};
  header.magic = format_magic;
  header.version = format_version;
  header.dtype = static_cast<std::uint8_t>(Dtype::bfloat16);
  header.count = count;
  header.sequence = sequence;
  if (sequence_counter != nullptr) header.sequence += *sequence_counter;
  if (message_counter != nullptr) header.sequence = point_to_point_sequences + atomicAdd(message_counter, 1ull);
  header.chunk = chunk;
  header.pool_units = pool_units;
  header.entry_units = atomicExch(&counters->units, 0);
  header.escapes = escapes;
  header.far_escapes = atomicExch(&counters->far_escapes, 0);
  header.overflow_tiles = atomicExch(&counters->overflow_tiles, 0);
  counters->progress = 0;
  *reinterpret_cast<MessageHeader*>(message) = header;
  if (header_copy != nullptr) *header_copy = header;
  return header.overflow_tiles != 0;
}

// Takes units for the entries of a block's tiles: a block asks once, as units are given out through one address. The
// first unit of each is returned in the lane of its warp's number, and how many of them lie in the overflow in
// `overflow_tiles`. Warp-wide, for one warp of the block.
template <unsigned warps>
__device__ inline std::uint32_t take_units(const Layout& layout, EncodeCounters& counters, const TileSummary* summaries,
                                           unsigned& overflow_tiles) {
  const unsigned lane = lane_id();
  const unsigned units = lane < warps ? summaries[lane].units : 0;
  unsigned end = units;
#pragma unroll
  for (unsigned distance = 1; distance < warps; distance *= 2) {
    const unsigned below = __shfl_up_sync(all_lanes, end, distance);
    if (lane >= distance) end += below;
  }
  unsigned long long base = 0;
  if (lane == warps - 1) base = atomicAdd(&counters.units, end);
  const std::uint32_t first = static_cast<std::uint32_t>(__shfl_sync(all_lanes, base, warps - 1)) + end - units;
  overflow_tiles = __popc(__ballot_sync(all_lanes, units != 0 && !layout.in_pool(first, units)));
  if (overflow_tiles != 0 && lane == 0) atomicAdd(&counters.overflow_tiles, overflow_tiles);
  return first;
}

// Adds a block's tiles to the message's totals; returns, in the first lane, EncodeCounters::progress with the block
// included. Warp-wide, for one warp of the block.
template <unsigned warps>
__device__ inline unsigned long long add_totals(EncodeCounters& counters, const TileSummary* summaries,
                                                bool has_entries) {
  const unsigned lane = lane_id();
  const unsigned escapes = __reduce_add_sync(all_lanes, lane < warps ? summaries[lane].escapes : 0);
  const unsigned far_escapes = __reduce_add_sync(all_lanes, lane < warps ? summaries[lane].far_escapes : 0);
  if (lane != 0) return 0;
  if (far_escapes != 0) atomicAdd(&counters.far_escapes, far_escapes);
  if (has_entries) __threadfence();  // the last block must see what this one took and added before
  const unsigned long long block = (1ull << escape_bits) + escapes;
  return atomicAdd(&counters.progress, block) + block;
}

// Block-wide.
template <bool aligned, unsigned warps, typename Arguments>
__device__ __forceinline__ void encode_block(const Arguments& arguments) {
  __shared__ TileSummary summaries[warps];
  __shared__ std::uint32_t first_units[warps];
  __shared__ unsigned overflow_tiles;  // of the block; valid if one of its tiles has an entry

  const EncodeShared& shared = arguments.shared;
  if (arguments.is_first_block() && threadIdx.x == 0 && shared.started_ns != nullptr) {
    *shared.started_ns = global_timer();
  }
  __shared__ SharedRoom<BlockTask> task_room;
  BlockTask& task = task_room.object();
  if constexpr (Arguments::several) {
    if (threadIdx.x == 0) {
      const unsigned index = arguments.message_index();
      task = {arguments.message(index), arguments.counters(index), index, arguments.block(index),
              arguments.blocks(index)};
    }
    __syncthreads();
  }
  const MessagePlace& message = place_of(arguments, task);
  const auto counters = [&]() -> EncodeCounters& {
    return Arguments::several ? *task.counters : *arguments.counters(0);
  };
  const unsigned warp = warp_id();
  WarpStorage* storage = block_storage<warps>();
  const std::uint64_t tile = std::uint64_t{Arguments::several ? task.block : arguments.block(0)} * warps + warp;
  TileSummary summary{};
  unsigned tail_byte = 0;
  if (tile < message.layout.tiles) summary = encode_tile<aligned>(message, tile, storage[warp], tail_byte);
  if (lane_id() == 0) summaries[warp] = summary;
  const bool has_entries = __syncthreads_or(summary.units != 0) != 0;
  if (has_entries) {
    if (warp == 0) {
      unsigned overflowing = 0;
      const std::uint32_t first = take_units<warps>(message.layout, counters(), summaries, overflowing);
      if (lane_id() < warps) first_units[lane_id()] = first;
      if (lane_id() == 0) overflow_tiles = overflowing;
    }
    __syncthreads();
  }
  unsigned long long progress = 0;
  if (warp == 0) progress = add_totals<warps>(counters(), summaries, has_entries);
  if (summary.units != 0) {
    place_entry(message, shared.overflow, tile, storage[warp], summary.units, first_units[warp], tail_byte);
  }
  if (has_entries && shared.outbox != nullptr) announce_block(&counters(), overflow_tiles);
  // Looked at last: it takes its time.
  bool overflows = false;
  if (progress >> escape_bits == (Arguments::several ? task.blocks : arguments.blocks(0))) {
    __threadfence();
    overflows =
        write_header(message.bytes, &counters(), message.layout.count, message.layout.pool_units,
                     progress & ((1ull << escape_bits) - 1), shared.chunk, shared.sequence, shared.sequence_counter,
                     shared.message_counter, Arguments::several ? nullptr : shared.header_copy);
  }
  if (shared.outbox != nullptr && __syncthreads_or(overflows) != 0)
    ship<warps>(arguments, Arguments::several ? task.index : 0);
}

}  // namespace zipccl::codec::cuda
