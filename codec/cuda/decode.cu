#include "codec/cuda/engine.hpp"
#include "codec/cuda/tile_decode.cuh"

namespace zipccl::codec::cuda {
namespace {

constexpr unsigned block_warps = 4;
constexpr unsigned block_threads = block_warps * lane_count;
constexpr unsigned blocks_per_multiprocessor = 10;  // 48 registers a thread

struct DecodeArguments {
  MessageRow row;
  const std::uint8_t* overflow;
  std::uint64_t overflow_stride;
  std::uint64_t overflow_begin;
  std::uint64_t overflow_step;
  std::uint64_t overflow_size;
};

__device__ void summarise(const MessageRow& row, unsigned index) {
  const MessageHeader& header = *reinterpret_cast<const MessageHeader*>(row.message(index));
  MessageSummary& summary = row.summaries[index];
  const Status status = row.check(header);
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
  const MessageRow& row = arguments.row;
  const bool summarises = !patch && row.summaries != nullptr && blockIdx.x == 0 && threadIdx.x == 0;
  if (summarises) summarise(row, index);
  const std::uint64_t tile = std::uint64_t{blockIdx.x} * block_warps + warp_id();
  if (index == row.skip || tile >= row.layout.tiles) return;
  const OverflowPiece piece{arguments.overflow + index * arguments.overflow_stride, arguments.overflow_begin,
                            arguments.overflow_step, arguments.overflow_size};
  const TileFate fate = decode_tile<aligned, patch>(row, piece, index, tile, distances[warp_id()]);
  if (fate == TileFate::corrupt && row.summaries != nullptr && lane_id() == 0) {
    row.summaries[index].status = static_cast<std::int32_t>(Status::bad_tile);
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
  arguments.row = MessageRow(job);
  arguments.overflow = static_cast<const std::uint8_t*>(job.overflow);
  arguments.overflow_stride = job.overflow_stride;
  arguments.overflow_begin = job.overflow_begin;
  arguments.overflow_step = job.overflow_step;
  arguments.overflow_size = job.overflow_size;
  const std::uint64_t blocks = (arguments.row.layout.tiles + block_warps - 1) / block_warps;
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
