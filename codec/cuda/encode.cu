#include <algorithm>

#include "codec/cuda/encode_tile.cuh"
#include "codec/cuda/engine.hpp"
#include "codec/cuda/ship.cuh"
#include "codec/cuda/system_scope.cuh"
#include "codec/overflow.hpp"

namespace zipccl::codec::cuda {
namespace {

constexpr unsigned block_threads = encode_block_warps * lane_count;
constexpr unsigned blocks_per_multiprocessor = 3;  // 40 registers a thread

// A job of one message, in an order that keeps what ordinary blocks read in two lines of the constant cache.
struct SingleArguments {
  MessagePlace place;
  EncodeShared shared;

  __device__ unsigned message_index() const { return 0; }
  __device__ const MessagePlace& message(unsigned) const { return place; }
  __device__ EncodeCounters* counters(unsigned) const { return shared.counters; }
  __device__ std::uint32_t receiver(unsigned) const { return shared.receiver; }
  __device__ unsigned block() const { return blockIdx.x; }
  __device__ unsigned blocks(unsigned) const { return gridDim.x; }
};

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

// Grid: the blocks of all messages in x.
template <bool aligned, typename Arguments>
__global__ void __launch_bounds__(block_threads, blocks_per_multiprocessor)
    encode_kernel(const __grid_constant__ Arguments arguments) {
  __shared__ TileSummary summaries[encode_block_warps];
  __shared__ std::uint32_t first_units[encode_block_warps];
  __shared__ unsigned overflow_tiles;  // of the block; valid if one of its tiles has an entry

  const EncodeShared& shared = arguments.shared;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (shared.started_ns != nullptr) *shared.started_ns = global_timer();
    if (shared.counts_start) add_relaxed(shared.outbox->started, 1);
  }
  const unsigned index = arguments.message_index();
  decltype(auto) message = arguments.message(index);
  EncodeCounters& counters = *arguments.counters(index);
  const unsigned warp = warp_id();
  WarpStorage* storage = block_storage();
  const std::uint64_t tile = std::uint64_t{arguments.block()} * encode_block_warps + warp;
  TileSummary summary{};
  unsigned tail_byte = 0;
  if (tile < message.layout.tiles) summary = encode_tile<aligned>(message, tile, storage[warp], tail_byte);
  if (lane_id() == 0) summaries[warp] = summary;
  const bool has_entries = __syncthreads_or(summary.units != 0) != 0;
  if (has_entries) {
    if (warp == 0) {
      unsigned overflowing = 0;
      const std::uint32_t first = take_units(message.layout, counters, summaries, overflowing);
      if (lane_id() < encode_block_warps) first_units[lane_id()] = first;
      if (lane_id() == 0) overflow_tiles = overflowing;
    }
    __syncthreads();
  }
  unsigned long long progress = 0;
  if (warp == 0) progress = add_totals(counters, summaries, has_entries);
  if (summary.units != 0) {
    place_entry(message, shared.overflow, tile, storage[warp], summary.units, first_units[warp], tail_byte);
  }
  if (has_entries && shared.outbox != nullptr) announce_block(&counters, overflow_tiles);
  // Looked at last: it takes its time.
  bool overflows = false;
  if (progress >> escape_bits == arguments.blocks(index)) {
    __threadfence();
    overflows = write_header(message.bytes, &counters, message.layout.count, message.layout.pool_units,
                             progress & ((1ull << escape_bits) - 1), shared.chunk, shared.sequence,
                             shared.sequence_counter, shared.message_counter);
  }
  if (shared.outbox != nullptr && __syncthreads_or(overflows) != 0) ship(arguments, index);
}

EncodeShared shared_arguments(const EncodeJob& job) {
  EncodeShared shared{};
  shared.counters = static_cast<EncodeCounters*>(job.scratch);
  shared.outbox = job.outbox;
  shared.started_ns = job.started_ns;
  shared.sequence = job.sequence;
  shared.sequence_counter = job.sequence_counter;
  shared.message_counter = reinterpret_cast<unsigned long long*>(job.message_counter);
  shared.chunk = job.chunk;
  shared.counts_start = job.outbox != nullptr;
  shared.overflow = job.outbox == nullptr ? static_cast<std::uint8_t*>(job.overflow) : nullptr;
  shared.outbox_capacity = job.outbox_capacity;
  shared.outbox_lock = job.outbox_lock;
  shared.release = job.release;
  shared.receiver = job.broadcast ? all_receivers : 0;
  return shared;
}

}  // namespace

cudaError_t launch_encode(const EncodeJob& job, cudaStream_t stream) {
  SingleArguments arguments{};
  arguments.place.values = static_cast<const std::uint16_t*>(job.values);
  arguments.place.bytes = static_cast<std::uint8_t*>(job.message);
  arguments.place.layout = Layout::of(job.count, job.pool_fraction);
  arguments.shared = shared_arguments(job);
  const bool aligned = reinterpret_cast<std::uintptr_t>(job.values) % sizeof(uint4) == 0;
  const std::uint64_t blocks = (arguments.place.layout.tiles + encode_block_warps - 1) / encode_block_warps;
  const dim3 grid(blocks == 0 ? 1 : static_cast<unsigned>(blocks));
  if (aligned) {
    encode_kernel<true><<<grid, block_threads, 0, stream>>>(arguments);
  } else {
    encode_kernel<false><<<grid, block_threads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

cudaError_t load_encode() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, encode_kernel<true, SingleArguments>);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, encode_kernel<false, SingleArguments>);
}

}  // namespace zipccl::codec::cuda
