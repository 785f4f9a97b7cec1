#include <algorithm>

#include "codec/cuda/encode_tile.cuh"
#include "codec/cuda/engine.hpp"
#include "codec/cuda/lists.cuh"
#include "codec/cuda/ship.cuh"
#include "codec/cuda/system_scope.cuh"
#include "codec/job_messages.hpp"
#include "codec/overflow.hpp"

namespace zipccl::codec::cuda {
namespace {

constexpr unsigned block_threads = encode_block_warps * lane_count;
// 40 registers a thread, which all kernels do with but those that must shift values and cannot read where their message
// lies from the constant cache.
template <bool aligned, typename Arguments>
constexpr unsigned blocks_per_multiprocessor = aligned || !Arguments::several ? 3 : 2;

// A job of one message, in an order that keeps what ordinary blocks read in two lines of the constant cache. Grid: its
// blocks in x.
struct SingleArguments {
  static constexpr bool several = false;
  MessagePlace place;
  EncodeShared shared;
  std::uint32_t only_receiver;

  __device__ bool is_first_block() const { return blockIdx.x == 0; }
  __device__ const MessagePlace& message(unsigned) const { return place; }
  __device__ EncodeCounters* counters(unsigned) const { return shared.counters_of(0); }
  __device__ std::uint32_t receiver(unsigned) const { return only_receiver; }
};

// Messages of a row. Grid: their blocks in x, messages in y, without the one that is skipped.
struct RowArguments {
  static constexpr bool several = true;
  MessagePlace place;  // of message 0 of the job
  EncodeShared shared;
  std::uint64_t value_stride;    // in values
  std::uint64_t message_stride;  // in bytes
  std::uint32_t first;           // the launch's first message if none were skipped
  std::uint32_t skip;

  __device__ bool is_first_block() const { return blockIdx.x == 0 && blockIdx.y == 0; }
  __device__ unsigned message_index() const { return first + blockIdx.y + (first + blockIdx.y >= skip ? 1 : 0); }
  __device__ MessagePlace message(unsigned index) const {
    return {place.values + index * value_stride, place.bytes + index * message_stride, place.layout};
  }
  __device__ EncodeCounters* counters(unsigned) const { return shared.counters_of(blockIdx.y); }
  __device__ std::uint32_t receiver(unsigned index) const { return index; }
  __device__ unsigned block(unsigned) const { return blockIdx.x; }
  __device__ unsigned blocks(unsigned) const { return gridDim.x; }
};

// Messages of a list. Grid: the blocks of all of them in x.
template <unsigned capacity>
struct ListArguments {
  static constexpr bool several = true;
  struct Item {
    const std::uint16_t* values;
    std::uint8_t* bytes;
    std::uint64_t count;
    std::uint32_t receiver;
    std::uint32_t first_block;
  };
  EncodeShared shared;
  std::uint32_t pool_fraction;
  std::uint32_t count;
  Item items[capacity];

  __device__ bool is_first_block() const { return blockIdx.x == 0; }
  __device__ unsigned message_index() const { return find_item(items, count, blockIdx.x); }
  __device__ MessagePlace message(unsigned index) const {
    const Item& item = items[index];
    return {item.values, item.bytes, Layout::of(item.count, pool_fraction)};
  }
  __device__ EncodeCounters* counters(unsigned index) const { return shared.counters_of(index); }
  __device__ std::uint32_t receiver(unsigned index) const { return items[index].receiver; }
  __device__ unsigned block(unsigned index) const { return blockIdx.x - items[index].first_block; }
  __device__ unsigned blocks(unsigned index) const {
    return (index + 1 < count ? items[index + 1].first_block : gridDim.x) - items[index].first_block;
  }
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
__device__ __noinline__ void announce_block(EncodeCounters* counters, unsigned overflow_tiles) {
  if (overflow_tiles == 0) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  atomicAdd(&counters->announced, overflow_tiles);
}

// Returns whether the message has overflow. For one thread. Not inlined for the sake of the kernel's registers; by
// value, as reading arguments through a pointer takes long.
__device__ __noinline__ bool write_header(std::uint8_t* message, EncodeCounters* counters, std::uint64_t count,
                                          std::uint32_t pool_units, std::uint64_t escapes, std::uint32_t chunk,
                                          std::uint64_t sequence, const std::uint64_t* sequence_counter,
                                          unsigned long long* message_counter) {
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
  return header.overflow_tiles != 0;
}

// Takes units for the entries of a block's tiles: a block asks once, as units are given out through one address. The
// first unit of each is returned in the lane of its warp's number, and how many of them lie in the overflow in
// `overflow_tiles`. Warp-wide, for one warp of the block.
__device__ std::uint32_t take_units(const Layout& layout, EncodeCounters& counters, const TileSummary* summaries,
                                    unsigned& overflow_tiles) {
  const unsigned lane = lane_id();
  const unsigned units = lane < encode_block_warps ? summaries[lane].units : 0;
  unsigned end = units;
#pragma unroll
  for (unsigned distance = 1; distance < encode_block_warps; distance *= 2) {
    const unsigned below = __shfl_up_sync(all_lanes, end, distance);
    if (lane >= distance) end += below;
  }
  unsigned long long base = 0;
  if (lane == encode_block_warps - 1) base = atomicAdd(&counters.units, end);
  const std::uint32_t first =
      static_cast<std::uint32_t>(__shfl_sync(all_lanes, base, encode_block_warps - 1)) + end - units;
  overflow_tiles = __popc(__ballot_sync(all_lanes, units != 0 && !layout.in_pool(first, units)));
  if (overflow_tiles != 0 && lane == 0) atomicAdd(&counters.overflow_tiles, overflow_tiles);
  return first;
}

// Adds a block's tiles to the message's totals; returns, in the first lane, EncodeCounters::progress with the block
// included. Warp-wide, for one warp of the block.
__device__ unsigned long long add_totals(EncodeCounters& counters, const TileSummary* summaries, bool has_entries) {
  const unsigned lane = lane_id();
  const unsigned escapes = __reduce_add_sync(all_lanes, lane < encode_block_warps ? summaries[lane].escapes : 0);
  const unsigned far_escapes =
      __reduce_add_sync(all_lanes, lane < encode_block_warps ? summaries[lane].far_escapes : 0);
  if (lane != 0) return 0;
  if (far_escapes != 0) atomicAdd(&counters.far_escapes, far_escapes);
  if (has_entries) __threadfence();  // the last block must see what this one took and added before
  const unsigned long long block = (1ull << escape_bits) + escapes;
  return atomicAdd(&counters.progress, block) + block;
}

template <bool aligned, typename Arguments>
__global__ void __launch_bounds__(block_threads, (blocks_per_multiprocessor<aligned, Arguments>))
    encode_kernel(const __grid_constant__ Arguments arguments) {
  __shared__ TileSummary summaries[encode_block_warps];
  __shared__ std::uint32_t first_units[encode_block_warps];
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
  WarpStorage* storage = block_storage();
  const std::uint64_t tile = std::uint64_t{Arguments::several ? task.block : blockIdx.x} * encode_block_warps + warp;
  TileSummary summary{};
  unsigned tail_byte = 0;
  if (tile < message.layout.tiles) summary = encode_tile<aligned>(message, tile, storage[warp], tail_byte);
  if (lane_id() == 0) summaries[warp] = summary;
  const bool has_entries = __syncthreads_or(summary.units != 0) != 0;
  if (has_entries) {
    if (warp == 0) {
      unsigned overflowing = 0;
      const std::uint32_t first = take_units(message.layout, counters(), summaries, overflowing);
      if (lane_id() < encode_block_warps) first_units[lane_id()] = first;
      if (lane_id() == 0) overflow_tiles = overflowing;
    }
    __syncthreads();
  }
  unsigned long long progress = 0;
  if (warp == 0) progress = add_totals(counters(), summaries, has_entries);
  if (summary.units != 0) {
    place_entry(message, shared.overflow, tile, storage[warp], summary.units, first_units[warp], tail_byte);
  }
  if (has_entries && shared.outbox != nullptr) announce_block(&counters(), overflow_tiles);
  // Looked at last: it takes its time.
  bool overflows = false;
  if (progress >> escape_bits == (Arguments::several ? task.blocks : gridDim.x)) {
    __threadfence();
    overflows = write_header(message.bytes, &counters(), message.layout.count, message.layout.pool_units,
                             progress & ((1ull << escape_bits) - 1), shared.chunk, shared.sequence,
                             shared.sequence_counter, shared.message_counter);
  }
  if (shared.outbox != nullptr && __syncthreads_or(overflows) != 0)
    ship(arguments, Arguments::several ? task.index : 0);
}

// A job without messages, whose receive job takes the time all the same.
__global__ void start_kernel(std::uint64_t* started_ns) { *started_ns = global_timer(); }

EncodeShared shared_arguments(const EncodeJob& job) {
  EncodeShared shared{};
  shared.counters = static_cast<std::uint8_t*>(job.scratch);
  shared.outbox = job.outbox;
  shared.started_ns = job.started_ns;
  shared.sequence = job.sequence;
  shared.sequence_counter = job.sequence_counter;
  shared.message_counter = reinterpret_cast<unsigned long long*>(job.message_counter);
  shared.chunk = job.chunk;
  shared.overflow = job.outbox == nullptr ? static_cast<std::uint8_t*>(job.overflow) : nullptr;
  shared.outbox_capacity = job.outbox_capacity;
  shared.outbox_lock = job.outbox_lock;
  shared.release = job.release;
  return shared;
}

// For a launch that is not the job's first.
void forget_start(EncodeShared& shared) { shared.started_ns = nullptr; }

template <typename Arguments>
cudaError_t launch(const Arguments& arguments, dim3 grid, bool aligned, cudaStream_t stream) {
  if (aligned) {
    encode_kernel<true><<<grid, block_threads, 0, stream>>>(arguments);
  } else {
    encode_kernel<false><<<grid, block_threads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

cudaError_t launch_nothing(const EncodeJob& job, cudaStream_t stream) {
  if (job.started_ns == nullptr) return cudaSuccess;
  start_kernel<<<1, 1, 0, stream>>>(job.started_ns);
  return cudaGetLastError();
}

MessagePlace first_place(const EncodeJob& job) {
  return {static_cast<const std::uint16_t*>(job.values), static_cast<std::uint8_t*>(job.message),
          Layout::of(job.count, job.pool_fraction)};
}

cudaError_t launch_single(const EncodeJob& job, cudaStream_t stream) {
  SingleArguments arguments{};
  arguments.place = first_place(job);
  arguments.shared = shared_arguments(job);
  arguments.only_receiver = job.broadcast ? all_receivers : 0;
  return launch(arguments, blocks_of(arguments.place.layout.tiles, encode_block_warps), is_aligned(job.values), stream);
}

cudaError_t launch_row(const EncodeJob& job, cudaStream_t stream) {
  RowArguments arguments{};
  arguments.place = first_place(job);
  arguments.shared = shared_arguments(job);
  arguments.value_stride = job.value_stride / sizeof(std::uint16_t);
  arguments.message_stride = job.message_stride;
  arguments.skip = job.skip;
  const bool aligned = is_aligned(job.values) && job.value_stride % sizeof(uint4) == 0;
  const std::uint32_t messages = job.message_count - (job.skip < job.message_count ? 1 : 0);
  while (arguments.first < messages) {
    const std::uint32_t part = std::min(messages - arguments.first, encode_scratch_messages);
    const dim3 grid(blocks_of(arguments.place.layout.tiles, encode_block_warps), part);
    if (const cudaError_t error = launch(arguments, grid, aligned, stream); error != cudaSuccess) return error;
    arguments.first += part;
    forget_start(arguments.shared);
  }
  return cudaSuccess;
}

cudaError_t launch_list(const EncodeJob& job, cudaStream_t stream) {
  return launch_parts<ListArguments>(
      job.item_count, [&](auto& arguments, std::uint32_t first, std::uint32_t part, bool) {
        arguments.shared = shared_arguments(job);
        if (first != 0) forget_start(arguments.shared);
        arguments.pool_fraction = job.pool_fraction;
        arguments.count = part;
        std::uint32_t blocks = 0;
        bool aligned = true;
        for (std::uint32_t i = 0; i < part; ++i) {
          const EncodeItem& item = job.items[first + i];
          arguments.items[i] = {static_cast<const std::uint16_t*>(item.values),
                                static_cast<std::uint8_t*>(item.message), item.count, item.receiver, blocks};
          blocks += blocks_of(Layout::of(item.count, 0).tiles, encode_block_warps);
          aligned = aligned && is_aligned(item.values);
        }
        return launch(arguments, blocks, aligned, stream);
      });
}

}  // namespace

cudaError_t launch_encode(const EncodeJob& job, cudaStream_t stream) {
  std::uint32_t messages = message_total(job);
  if (job.items == nullptr && job.skip < job.message_count) --messages;
  if (messages == 0) return launch_nothing(job, stream);
  if (job.items != nullptr) return launch_list(job, stream);
  return job.message_count == 1 ? launch_single(job, stream) : launch_row(job, stream);
}

cudaError_t load_encode() {
  return load_kernels(encode_kernel<true, SingleArguments>, encode_kernel<false, SingleArguments>,
                      encode_kernel<true, RowArguments>, encode_kernel<false, RowArguments>,
                      encode_kernel<true, ListArguments<small_list>>, encode_kernel<false, ListArguments<small_list>>,
                      encode_kernel<true, ListArguments<large_list>>, encode_kernel<false, ListArguments<large_list>>,
                      start_kernel);
}

}  // namespace zipccl::codec::cuda
