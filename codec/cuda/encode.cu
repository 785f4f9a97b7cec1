#include "codec/cuda/engine.hpp"
#include "codec/cuda/system_scope.cuh"
#include "codec/cuda/warp.cuh"
#include "codec/format.hpp"
#include "codec/overflow.hpp"

namespace zipccl::codec::cuda {
namespace {

// Large blocks, as each costs atomics on the message's few counters; 40 registers a thread.
constexpr unsigned block_warps = 16;
constexpr unsigned block_threads = block_warps * lane_count;
constexpr unsigned blocks_per_multiprocessor = 3;

// The job's scratch memory: zero between encodes. All blocks update it; units lie in a cache line of their own.
struct EncodeCounters {
  unsigned long long progress;  // finished blocks << escape_bits | escapes of their tiles
  unsigned long long far_escapes;
  unsigned long long reserved[14];
  unsigned long long units;  // given out so far
  unsigned long long overflow_tiles;
  unsigned long long unannounced;  // of these: those written but for those counted into the header, modulo 2^64
};
static_assert(sizeof(EncodeCounters) <= encode_scratch_bytes);
constexpr unsigned escape_bits = 40;
static_assert(max_count < std::uint64_t{1} << escape_bits);

// In an order that keeps what ordinary blocks read in two lines of the constant cache.
struct EncodeArguments {
  const std::uint16_t* values;
  std::uint8_t* message;
  EncodeCounters* counters;
  OverflowNotice* notice;
  std::uint64_t* started_ns;
  std::uint64_t sequence;
  Layout layout;
  std::uint8_t* overflow;
  const std::uint32_t* release;
  std::uint32_t chunk;
};

// In place of an entry's first unit: the entry is not written, because a release ended the wait for its place.
constexpr std::uint32_t not_placed = 0xffffffffu;
static_assert(max_count / tile_values * raw_entry_units < not_placed);

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
__device__ std::uint32_t opaque(std::uint32_t value) {
  asm("" : "+r"(value));
  return value;
}

__device__ unsigned nibble_of(unsigned exponent, unsigned window) {
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

__device__ NibblePair nibble_pair(const std::uint8_t* exponents, unsigned pair, unsigned escapes, unsigned window) {
  const unsigned both = 2 * pair < escapes ? reinterpret_cast<const std::uint16_t*>(exponents)[pair] : 0u;
  return {2 * pair < escapes ? nibble_of(both & 0xff, window) : 0,
          2 * pair + 1 < escapes ? nibble_of(both >> 8, window) : 0};
}

// The rank-th largest of the lanes' exponents. Warp-wide.
__device__ unsigned nth_largest(unsigned exponent, unsigned rank) {
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
__device__ unsigned build_entry(WarpStorage& storage, unsigned escapes, unsigned window, NibblePair own) {
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

// Writes all of a tile but, if it needs an entry, its entry and tail: the entry is left in `storage`, the lane's byte
// of the tail, which lacks the entry's first unit, in `tail_byte`. Warp-wide.
template <bool aligned>
__device__ TileSummary encode_tile(const EncodeArguments& arguments, std::uint64_t tile, WarpStorage& storage,
                                   unsigned& tail_byte) {
  const unsigned lane = lane_id();
  const unsigned remaining = remaining_values(arguments.layout.count, tile);
  std::uint32_t pairs[lane_pairs];
  load_tile<aligned>(arguments.values + tile * tile_values, remaining, lane, pairs);

  uint4* planes = reinterpret_cast<uint4*>(arguments.message + arguments.layout.planes + tile * plane_bytes);
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

  // From here on a pair is its two exponents, in the low bytes of the halves.
  std::uint32_t largest_pair = 0;
#pragma unroll
  for (unsigned q = 0; q < lane_pairs; q += 2) {
    pairs[q] = opaque(pairs[q] >> 7 & 0x00ff00ffu);
    pairs[q + 1] = opaque(pairs[q + 1] >> 7 & 0x00ff00ffu);
    largest_pair = __vimax3_u16x2(largest_pair, pairs[q], pairs[q + 1]);
  }
  const unsigned largest = max(largest_pair & 0xffffu, largest_pair >> 16);
  // Lanes without a value have 0 and so never count for a top above 0, whatever the rank.
  const unsigned lanes = remaining >= row_values ? lane_count : (remaining + 7) / 8;
  const unsigned top = nth_largest(largest, (14 * lanes + lane_count - 1) / lane_count);
  const unsigned window = max(top, window_exponents - 1) - (window_exponents - 1);

  std::uint32_t codes[lane_pairs];
  const std::uint32_t minus_window = (0x10000u - window & 0xffffu) * 0x10001u;
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
      reinterpret_cast<std::uint32_t*>(arguments.message + arguments.layout.codes + tile * code_bytes);
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
    if (lane < tail_bytes) {
      arguments.message[arguments.layout.tails + tile * tail_bytes + lane] = static_cast<std::uint8_t>(tail_byte);
    }
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

// Writes the entry and the tail that encode_tile has left, now that the entry's first unit is known. Warp-wide.
__device__ void place_entry(const EncodeArguments& arguments, std::uint64_t tile, const WarpStorage& storage,
                            unsigned units, std::uint32_t first, unsigned tail_byte) {
  if (first == not_placed) return;
  const unsigned lane = lane_id();
  std::uint8_t* entry = arguments.layout.in_pool(first, units)
                            ? arguments.message + arguments.layout.pool + std::uint64_t{first} * unit_bytes
                            : arguments.overflow + arguments.layout.overflow_offset(first);
  for (unsigned i = lane; i < units; i += lane_count) {
    reinterpret_cast<uint4*>(entry)[i] = reinterpret_cast<const uint4*>(storage.entry)[i];
  }
  constexpr unsigned first_byte = tail_bytes - sizeof(first);
  if (lane >= first_byte) tail_byte = first >> (lane - first_byte) * 8;
  if (lane < tail_bytes) {
    arguments.message[arguments.layout.tails + tile * tail_bytes + lane] = static_cast<std::uint8_t>(tail_byte);
  }
}

// Counts overflow tiles that have been written, by the caller's block, or (negative) all that there are; whoever makes
// both equal posts the record. For one thread, after all that it counts.
__device__ void announce(const EncodeArguments& arguments, unsigned long long tiles) {
  OverflowNotice& notice = *arguments.notice;
  __threadfence_system();
  if (atomicAdd(&arguments.counters->unannounced, tiles) + tiles != 0) return;
  __threadfence_system();
  if (load_acquire(*arguments.release) == 0) store_release(notice.posted, notice.posted + 1);
}

// The three functions of rare paths that follow are not inlined: small messages last little longer than it takes to
// fetch the kernel's instructions once.

// Block-wide, after the block's entries have been written, of which `overflow_tiles` lie in the overflow.
__device__ __noinline__ void announce_block(const EncodeArguments& arguments, unsigned overflow_tiles) {
  if (overflow_tiles == 0) return;
  __syncthreads();
  if (threadIdx.x == 0) announce(arguments, overflow_tiles);
}

// For the thread that writes the header.
__device__ __noinline__ void announce_total(const EncodeArguments& arguments, std::uint64_t entry_units,
                                            std::uint64_t overflow_tiles) {
  // Not while the CPU thread may still read what the fields say of the previous record.
  if (load_acquire(*arguments.release) == 0) {
    arguments.notice->sequence = arguments.sequence;
    arguments.notice->bytes = arguments.layout.overflow_bytes(entry_units);
    arguments.notice->chunk = arguments.chunk;
  }
  announce(arguments, 0 - overflow_tiles);
}

// Waits, in one lane, until the overflow buffer's previous record has been shipped; false if released. Warp-wide.
__device__ __noinline__ bool wait_for_overflow(const EncodeArguments& arguments) {
  bool free = true;
  if (lane_id() == 0) {
    const std::uint64_t posted = arguments.notice->posted;
    free = wait_unless_released(*arguments.release, [&] { return load_acquire(arguments.notice->drained) == posted; });
  }
  return __any_sync(all_lanes, lane_id() == 0 && free);
}

__device__ void write_header(const EncodeArguments& arguments, std::uint64_t escapes) {
  EncodeCounters& counters = *arguments.counters;
  MessageHeader header{};
  header.magic = format_magic;
  header.version = format_version;
  header.dtype = static_cast<std::uint8_t>(Dtype::bfloat16);
  header.count = arguments.layout.count;
  header.sequence = arguments.sequence;
  header.chunk = arguments.chunk;
  header.pool_units = arguments.layout.pool_units;
  header.entry_units = atomicExch(&counters.units, 0);
  header.escapes = escapes;
  header.far_escapes = atomicExch(&counters.far_escapes, 0);
  header.overflow_tiles = atomicExch(&counters.overflow_tiles, 0);
  counters.progress = 0;
  *reinterpret_cast<MessageHeader*>(arguments.message) = header;
  if (arguments.notice != nullptr && header.overflow_tiles != 0) {
    announce_total(arguments, header.entry_units, header.overflow_tiles);
  }
}

// Takes units for the entries of a block's tiles: a block asks once, as units are given out through one address. The
// first unit of each is returned in the lane of its warp's number, and how many of them lie in the overflow, which may
// be written then, in `overflow_tiles`. Warp-wide, for one warp of the block.
__device__ std::uint32_t take_units(const EncodeArguments& arguments, const TileSummary* summaries,
                                    unsigned& overflow_tiles) {
  const unsigned lane = lane_id();
  const unsigned units = lane < block_warps ? summaries[lane].units : 0;
  unsigned end = units;
#pragma unroll
  for (unsigned distance = 1; distance < block_warps; distance *= 2) {
    const unsigned below = __shfl_up_sync(all_lanes, end, distance);
    if (lane >= distance) end += below;
  }
  unsigned long long base = 0;
  if (lane == block_warps - 1) base = atomicAdd(&arguments.counters->units, end);
  std::uint32_t first = static_cast<std::uint32_t>(__shfl_sync(all_lanes, base, block_warps - 1)) + end - units;
  const bool overflows = units != 0 && !arguments.layout.in_pool(first, units);
  overflow_tiles = __popc(__ballot_sync(all_lanes, overflows));
  if (overflow_tiles != 0) {
    if (lane == 0) atomicAdd(&arguments.counters->overflow_tiles, overflow_tiles);
    if (arguments.notice != nullptr && !wait_for_overflow(arguments) && overflows) first = not_placed;
  }
  return first;
}

// Adds a block's tiles to the message's totals; returns, in the first lane, EncodeCounters::progress with the block
// included. Warp-wide, for one warp of the block.
__device__ unsigned long long add_totals(const EncodeArguments& arguments, const TileSummary* summaries,
                                         bool has_entries) {
  const unsigned lane = lane_id();
  const unsigned escapes = __reduce_add_sync(all_lanes, lane < block_warps ? summaries[lane].escapes : 0);
  const unsigned far_escapes = __reduce_add_sync(all_lanes, lane < block_warps ? summaries[lane].far_escapes : 0);
  if (lane != 0) return 0;
  if (far_escapes != 0) atomicAdd(&arguments.counters->far_escapes, far_escapes);
  if (has_entries) __threadfence();  // the last block must see what this one took and added before
  const unsigned long long block = (1ull << escape_bits) + escapes;
  return atomicAdd(&arguments.counters->progress, block) + block;
}

template <bool aligned>
__global__ void __launch_bounds__(block_threads, blocks_per_multiprocessor)
    encode_kernel(const __grid_constant__ EncodeArguments arguments) {
  __shared__ WarpStorage storage[block_warps];
  __shared__ TileSummary summaries[block_warps];
  __shared__ std::uint32_t first_units[block_warps];
  __shared__ unsigned overflow_tiles;  // of the block; valid if one of its tiles has an entry

  if (arguments.started_ns != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *arguments.started_ns = global_timer();
  const unsigned warp = warp_id();
  const std::uint64_t tile = std::uint64_t{blockIdx.x} * block_warps + warp;
  TileSummary summary{};
  unsigned tail_byte = 0;
  if (tile < arguments.layout.tiles) summary = encode_tile<aligned>(arguments, tile, storage[warp], tail_byte);
  if (lane_id() == 0) summaries[warp] = summary;
  const bool has_entries = __syncthreads_or(summary.units != 0) != 0;
  if (has_entries) {
    if (warp == 0) {
      unsigned overflowing = 0;
      const std::uint32_t first = take_units(arguments, summaries, overflowing);
      if (lane_id() < block_warps) first_units[lane_id()] = first;
      if (lane_id() == 0) overflow_tiles = overflowing;
    }
    __syncthreads();
  }
  unsigned long long progress = 0;
  if (warp == 0) progress = add_totals(arguments, summaries, has_entries);
  if (summary.units != 0) {
    place_entry(arguments, tile, storage[warp], summary.units, first_units[warp], tail_byte);
  }
  if (has_entries && arguments.notice != nullptr) announce_block(arguments, overflow_tiles);
  // Looked at last: it takes its time.
  if (progress >> escape_bits == gridDim.x) {
    __threadfence();
    write_header(arguments, progress & ((1ull << escape_bits) - 1));
  }
}

}  // namespace

cudaError_t launch_encode(const EncodeJob& job, cudaStream_t stream) {
  EncodeArguments arguments{};
  arguments.values = static_cast<const std::uint16_t*>(job.values);
  arguments.message = static_cast<std::uint8_t*>(job.message);
  arguments.overflow = static_cast<std::uint8_t*>(job.overflow);
  arguments.counters = static_cast<EncodeCounters*>(job.scratch);
  arguments.layout = Layout::of(job.count, job.pool_fraction);
  arguments.sequence = job.sequence;
  arguments.chunk = job.chunk;
  arguments.notice = job.notice;
  arguments.release = job.release;
  arguments.started_ns = job.started_ns;
  const bool aligned = reinterpret_cast<std::uintptr_t>(job.values) % sizeof(uint4) == 0;
  const std::uint64_t blocks = (arguments.layout.tiles + block_warps - 1) / block_warps;
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
  const cudaError_t error = cudaFuncGetAttributes(&attributes, encode_kernel<true>);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, encode_kernel<false>);
}

}  // namespace zipccl::codec::cuda
