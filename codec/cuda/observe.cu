#include "codec/cuda/encode_tile.cuh"
#include "codec/cuda/engine.hpp"
#include "codec/cuda/lists.cuh"
#include "codec/cuda/system_scope.cuh"

namespace zipccl::codec::cuda {
namespace {

constexpr unsigned block_warps = 8;
constexpr unsigned block_threads = block_warps * lane_count;
// Enough to fill a GPU; blocks go through tiles in turn, so that few touch the counters.
constexpr unsigned most_blocks = 1024;

// The job's scratch memory: zero between observations.
struct ObserveCounters {
  unsigned long long escapes;
  unsigned long long far_escapes;
  unsigned long long units;
  unsigned long long tiles;  // with entry
  unsigned finished;         // blocks
};
static_assert(sizeof(ObserveCounters) <= encode_scratch_bytes);

struct ObserveArguments {
  const std::uint16_t* values;
  ObserveCounters* counters;
  Observation* observation;
  Layout layout;
};

// Bits 0 and 16 of what follows are for the low and the high half of a pair of exponents.
__device__ std::uint32_t escapes_of(std::uint32_t pair, std::uint32_t minus_window) {
  const std::uint32_t codes = __viaddmin_u16x2(pair, minus_window, both_halves(escape_code));
  return codes + 0x00010001u >> 3 & 0x00010001u;
}

// Far is what is neither zero nor within the nibbles' reach, of which the window is a part.
__device__ std::uint32_t far_of(std::uint32_t pair, std::uint32_t minus_window) {
  constexpr unsigned reach = nibble_below + window_exponents + 2;  // exponents
  static_assert(reach == 21);
  const std::uint32_t minus_lowest = both_halves(minus_window + nibble_below);
  // 0 to 20 within reach, 21 to 52 beyond: adding 11 sets bit 5 just beyond.
  const std::uint32_t distance = __viaddmin_u16x2(pair, minus_lowest, both_halves(2 * 32 - 1 - (32 - reach)));
  const std::uint32_t beyond = distance + both_halves(32 - reach) >> 5;
  const std::uint32_t not_zero = pair + 0x00ff00ffu >> 8;
  return beyond & not_zero & 0x00010001u;
}

__global__ void __launch_bounds__(block_threads) observe_kernel(const __grid_constant__ ObserveArguments arguments) {
  __shared__ ObserveCounters block;
  if (threadIdx.x == 0) block = {};
  __syncthreads();
  const unsigned lane = lane_id();
  ObserveCounters own{};
#pragma unroll 1
  for (std::uint64_t tile = std::uint64_t{blockIdx.x} * block_warps + warp_id(); tile < arguments.layout.tiles;
       tile += std::uint64_t{gridDim.x} * block_warps) {
    const unsigned remaining = remaining_values(arguments.layout.count, tile);
    std::uint32_t pairs[lane_pairs];
    load_tile<false>(arguments.values + tile * tile_values, remaining, lane, pairs);
    const unsigned window = find_window(take_exponents(pairs), remaining);
    const std::uint32_t minus_window = both_halves(0u - window);
    unsigned found = 0;  // escapes, and far ones in the upper half
#pragma unroll
    for (unsigned q = 0; q < lane_pairs; ++q) {
      std::uint32_t escapes = escapes_of(pairs[q], minus_window);
      if (remaining < tile_values) {  // padding, which has exponent zero, is none
        const unsigned index = pair_index(lane, q);
        if (index >= remaining) escapes = 0;
        if (index + 1 >= remaining) escapes &= 1u;
      }
      found += __popc(escapes) + (__popc(far_of(pairs[q], minus_window)) << 16);
    }
    found = __reduce_add_sync(all_lanes, found);
    const unsigned escapes = found & 0xffffu;
    const unsigned far_escapes = found >> 16;
    own.escapes += escapes;
    own.far_escapes += far_escapes;
    if (escapes > tail_nibbles || far_escapes != 0) {
      const unsigned bytes = entry_nibble_bytes(escapes) + far_escapes;
      own.units += bytes <= max_entry_bytes ? bytes_to_units(bytes) : raw_entry_units;
      ++own.tiles;
    }
  }
  if (lane == 0) {
    atomicAdd(&block.escapes, own.escapes);
    atomicAdd(&block.far_escapes, own.far_escapes);
    atomicAdd(&block.units, own.units);
    atomicAdd(&block.tiles, own.tiles);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  ObserveCounters& all = *arguments.counters;
  atomicAdd(&all.escapes, block.escapes);
  atomicAdd(&all.far_escapes, block.far_escapes);
  atomicAdd(&all.units, block.units);
  atomicAdd(&all.tiles, block.tiles);
  __threadfence();
  if (atomicAdd(&all.finished, 1u) + 1 != gridDim.x) return;
  __threadfence();
  Observation& observation = *arguments.observation;
  const Observation before = observation;  // all of it at once, as it lies across the bus
  const std::uint64_t units = atomicExch(&all.units, 0ull);
  const std::uint64_t pool_units = arguments.layout.pool_units;
  observation.values = before.values + arguments.layout.count;
  observation.escapes = before.escapes + atomicExch(&all.escapes, 0ull);
  observation.far_escapes = before.far_escapes + atomicExch(&all.far_escapes, 0ull);
  observation.entry_units = before.entry_units + units;
  observation.entry_tiles = before.entry_tiles + atomicExch(&all.tiles, 0ull);
  observation.overflow_units = before.overflow_units + (units > pool_units ? units - pool_units : 0);
  all.finished = 0;
  store_release(observation.finished, before.finished + 1);
}

}  // namespace

cudaError_t launch_observe(const ObserveJob& job, cudaStream_t stream) {
  ObserveArguments arguments{};
  arguments.values = static_cast<const std::uint16_t*>(job.values);
  arguments.counters = static_cast<ObserveCounters*>(job.scratch);
  arguments.observation = job.observation;
  arguments.layout = Layout::of(job.count, job.pool_fraction);
  const std::uint32_t blocks = std::min(blocks_of(arguments.layout.tiles, block_warps), most_blocks);
  observe_kernel<<<blocks, block_threads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t load_observe() { return load_kernels(observe_kernel); }

}  // namespace zipccl::codec::cuda
