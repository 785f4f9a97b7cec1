#include "codec/cuda/engine.hpp"
#include "codec/cuda/warp.cuh"
#include "codec/format.hpp"

namespace zipccl::codec::cuda {
namespace {

constexpr unsigned block_warps = 4;
constexpr unsigned block_threads = block_warps * lane_count;
constexpr unsigned blocks_per_multiprocessor = 10;  // 48 registers a thread

struct DecodeArguments {
  const std::uint8_t* messages;
  std::uint8_t* values;
  const std::uint8_t* overflow;
  MessageSummary* summaries;
  std::uint64_t message_stride;
  std::uint64_t value_stride;
  std::uint64_t overflow_stride;
  std::uint64_t overflow_begin;
  std::uint64_t overflow_step;
  std::uint64_t overflow_size;
  Layout layout;
  std::uint64_t sequence;
  std::uint32_t chunk;
  std::uint32_t skip;
};

// An escape's exponent as its distance from the code's own meaning, w + 7, modulo 256. No escape has distance 255,
// which is inside the window, so that it can mark the far ones until their bytes are read.
constexpr unsigned far_distance = 255;

__device__ unsigned exponent_distance(unsigned exponent, unsigned window) {
  return exponent - window - window_exponents & 0xff;
}

__device__ unsigned nibble_distance(unsigned nibble, unsigned window) {
  unsigned distance = nibble < nibble_below ? 0xff - window_exponents - nibble : nibble - nibble_above;
  if (nibble == nibble_zero) distance = exponent_distance(0, window);
  return nibble == nibble_far ? far_distance : distance;
}

// Distances of escapes 2 * pair and 2 * pair + 1; returns whether one of them exists and is far.
__device__ bool unpack_nibbles(std::uint8_t* distances, unsigned pair, unsigned byte, unsigned escapes,
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
__device__ TileFate find_entry(const DecodeArguments& arguments, const std::uint8_t* message, unsigned index,
                               unsigned tail_byte, bool raw, unsigned units, Entry& entry) {
  std::uint32_t first = 0;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) first |= __shfl_sync(all_lanes, tail_byte, tail_bytes - 4 + i) << 8 * i;
  entry.units = raw ? raw_entry_units : units;
  const bool in_pool = arguments.layout.in_pool(first, entry.units);
  if constexpr (patch) {
    if (in_pool) return TileFate::leave;
    const std::uint64_t offset = arguments.layout.overflow_offset(first);
    if (offset < arguments.overflow_begin || offset - arguments.overflow_begin >= arguments.overflow_step) {
      return TileFate::leave;
    }
    const std::uint64_t in_piece = offset - arguments.overflow_begin;
    if (in_piece + entry.units * unit_bytes > arguments.overflow_size) return TileFate::corrupt;
    entry.bytes = arguments.overflow + index * arguments.overflow_stride + in_piece;
  } else {
    const std::uint64_t entry_units = reinterpret_cast<const MessageHeader*>(message)->entry_units;
    if (std::uint64_t{first} + entry.units > entry_units) return TileFate::corrupt;
    if (!in_pool) return TileFate::leave;
    entry.bytes = message + arguments.layout.pool + std::uint64_t{first} * unit_bytes;
  }
  return TileFate::decode;
}

// Fills in the distances that the entry holds; false if the entry's size is not what the escapes need. Warp-wide.
__device__ bool read_entry(const Entry& entry, std::uint8_t* distances, bool far, unsigned escapes, unsigned window) {
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
__device__ void decode_exponents(const std::uint32_t (&words)[3], std::uint32_t mask, EscapeRanks ranks,
                                 const std::uint8_t* distances, unsigned window, std::uint32_t (&pairs)[lane_pairs]) {
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

// Decodes one tile, or finds that it is left alone or corrupt. `distances` is shared memory of the warp's own,
// escape_room bytes. Warp-wide.
template <bool aligned, bool patch>
__device__ TileFate decode_tile(const DecodeArguments& arguments, unsigned index, std::uint64_t tile,
                                std::uint8_t* distances) {
  const unsigned lane = lane_id();
  const std::uint8_t* message = arguments.messages + index * arguments.message_stride;
  const unsigned tail_byte = message[arguments.layout.tails + tile * tail_bytes + lane];
  if constexpr (patch) {
    if (__shfl_sync(all_lanes, tail_byte, 1) == static_cast<unsigned>(TileMode::tail)) return TileFate::leave;
  }
  const std::uint32_t* code_words =
      reinterpret_cast<const std::uint32_t*>(message + arguments.layout.codes + tile * code_bytes);
  std::uint32_t words[3];
#pragma unroll
  for (unsigned i = 0; i < 3; ++i) words[i] = code_words[i * lane_count + lane];
  const uint4* planes = reinterpret_cast<const uint4*>(message + arguments.layout.planes + tile * plane_bytes);
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
    const TileFate fate = find_entry<patch>(arguments, message, index, tail_byte, true, 0, entry);
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
      const TileFate fate =
          find_entry<patch>(arguments, message, index, tail_byte, false, kind >> tail_units_shift, entry);
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
  std::uint16_t* values = reinterpret_cast<std::uint16_t*>(arguments.values + index * arguments.value_stride);
  store_tile<aligned>(values + tile * tile_values, remaining_values(arguments.layout.count, tile), lane, pairs);
  return TileFate::decode;
}

// FORMAT.md 7.
__device__ Status check_header(const MessageHeader& header, const DecodeArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (header.magic != format_magic) return Status::bad_magic;
  if (header.version != format_version) return Status::bad_version;
  if (header.dtype != static_cast<std::uint8_t>(Dtype::bfloat16)) return Status::bad_dtype;
  if (header.count != layout.count) return Status::bad_count;
  if (header.pool_units != layout.pool_units) return Status::bad_pool;
  if (header.sequence != arguments.sequence || header.chunk != arguments.chunk) return Status::bad_sequence;
  const bool overflows = header.entry_units > layout.pool_units;
  if (header.entry_units > layout.tiles * raw_entry_units || header.escapes > layout.count ||
      header.far_escapes > header.escapes || header.overflow_tiles > layout.tiles ||
      (header.overflow_tiles > 0) != overflows) {
    return Status::bad_totals;
  }
  return Status::ok;
}

__device__ void summarise(const DecodeArguments& arguments, unsigned index) {
  const MessageHeader& header =
      *reinterpret_cast<const MessageHeader*>(arguments.messages + index * arguments.message_stride);
  MessageSummary& summary = arguments.summaries[index];
  const Status status = check_header(header, arguments);
  if (status == Status::ok) {
    summary.entry_units = header.entry_units;
    summary.escapes = header.escapes;
    summary.far_escapes = header.far_escapes;
    summary.overflow_tiles = header.overflow_tiles;
  } else {
    summary.status = static_cast<std::int32_t>(status);
  }
  __threadfence_system();
}

// Grid: blocks of tiles in x, messages in y.
template <bool aligned, bool patch>
__global__ void __launch_bounds__(block_threads, blocks_per_multiprocessor)
    decode_kernel(const __grid_constant__ DecodeArguments arguments) {
  __shared__ __align__(16) std::uint8_t distances[block_warps][escape_room];
  const unsigned index = blockIdx.y;
  const bool summarises = !patch && arguments.summaries != nullptr && blockIdx.x == 0 && threadIdx.x == 0;
  if (summarises) summarise(arguments, index);
  const std::uint64_t tile = std::uint64_t{blockIdx.x} * block_warps + warp_id();
  if (index == arguments.skip || tile >= arguments.layout.tiles) return;
  const TileFate fate = decode_tile<aligned, patch>(arguments, index, tile, distances[warp_id()]);
  if (fate == TileFate::corrupt && arguments.summaries != nullptr && lane_id() == 0) {
    arguments.summaries[index].status = static_cast<std::int32_t>(Status::bad_tile);
    __threadfence_system();
  }
}

template <bool aligned>
void launch(const DecodeArguments& arguments, dim3 grid, cudaStream_t stream) {
  if (arguments.overflow_size == 0) {
    decode_kernel<aligned, false><<<grid, block_threads, 0, stream>>>(arguments);
  } else {
    decode_kernel<aligned, true><<<grid, block_threads, 0, stream>>>(arguments);
  }
}

}  // namespace

cudaError_t launch_decode(const DecodeJob& job, cudaStream_t stream) {
  DecodeArguments arguments{};
  arguments.messages = static_cast<const std::uint8_t*>(job.messages);
  arguments.values = static_cast<std::uint8_t*>(job.values);
  arguments.overflow = static_cast<const std::uint8_t*>(job.overflow);
  arguments.summaries = job.summaries;
  arguments.message_stride = job.message_stride;
  arguments.value_stride = job.value_stride;
  arguments.overflow_stride = job.overflow_stride;
  arguments.overflow_begin = job.overflow_begin;
  arguments.overflow_step = job.overflow_step;
  arguments.overflow_size = job.overflow_size;
  arguments.layout = Layout::of(job.count, job.pool_fraction);
  arguments.sequence = job.sequence;
  arguments.chunk = job.chunk;
  arguments.skip = job.skip;
  const std::uint64_t blocks = (arguments.layout.tiles + block_warps - 1) / block_warps;
  const dim3 grid(blocks == 0 ? 1 : static_cast<unsigned>(blocks), job.message_count);
  const bool aligned = reinterpret_cast<std::uintptr_t>(job.values) % sizeof(uint4) == 0 &&
                       (job.message_count == 1 || job.value_stride % sizeof(uint4) == 0);
  if (aligned) {
    launch<true>(arguments, grid, stream);
  } else {
    launch<false>(arguments, grid, stream);
  }
  return cudaGetLastError();
}

cudaError_t load_decode() {
  cudaFuncAttributes attributes{};
  for (void (*kernel)(DecodeArguments) : {decode_kernel<true, false>, decode_kernel<true, true>,
                                          decode_kernel<false, false>, decode_kernel<false, true>}) {
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace zipccl::codec::cuda
