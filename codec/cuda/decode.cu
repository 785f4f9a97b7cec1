#include "codec/cuda/engine.hpp"
#include "codec/cuda/tile_decode.cuh"

namespace zipccl::codec::cuda {
namespace {

constexpr unsigned block_warps = 4;
constexpr unsigned block_threads = block_warps * lane_count;
constexpr unsigned blocks_per_multiprocessor = 10;  // 48 registers a thread

template <typename Messages>
struct DecodeArguments {
  Messages messages;
  ReceivedChecks checks;
  MessageSummary* summaries;
  // For patch passes.
  const std::uint8_t* overflow;
  std::uint64_t overflow_stride;
  std::uint64_t overflow_begin;
  std::uint64_t overflow_step;
  std::uint64_t overflow_size;
};

__device__ void summarise(const ReceivedPlace& message, const ReceivedChecks& checks, MessageSummary& summary) {
  const MessageHeader& header = message.header();
  const Status status = checks.check(header, message.layout);
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

template <bool aligned, bool patch, typename Messages>
__global__ void __launch_bounds__(block_threads, blocks_per_multiprocessor)
    decode_kernel(const __grid_constant__ DecodeArguments<Messages> arguments) {
  __shared__ __align__(16) std::uint8_t distances[block_warps][escape_room];
  const Messages& messages = arguments.messages;
  const unsigned index = messages.index_of_block();
  const unsigned block = messages.block_in_message(index);
  const ReceivedPlace message = messages.place(index);
  const bool summarises = !patch && arguments.summaries != nullptr && block == 0 && threadIdx.x == 0;
  if (summarises) summarise(message, arguments.checks, arguments.summaries[index]);
  const std::uint64_t tile = std::uint64_t{block} * block_warps + warp_id();
  if (messages.skips(index) || tile >= message.layout.tiles) return;
  const OverflowPiece piece{arguments.overflow + index * arguments.overflow_stride, arguments.overflow_begin,
                            arguments.overflow_step, arguments.overflow_size};
  const TileFate fate = decode_tile<aligned, patch>(message, piece, tile, distances[warp_id()]);
  if (fate == TileFate::corrupt && arguments.summaries != nullptr && lane_id() == 0) {
    arguments.summaries[index].status = static_cast<std::int32_t>(Status::bad_tile);
    __threadfence_system();
  }
}

template <bool patch, typename Messages>
cudaError_t launch(const DecodeArguments<Messages>& arguments, dim3 grid, bool aligned, cudaStream_t stream) {
  if (aligned) {
    decode_kernel<true, patch><<<grid, block_threads, 0, stream>>>(arguments);
  } else {
    decode_kernel<false, patch><<<grid, block_threads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

cudaError_t launch_row(const DecodeJob& job, cudaStream_t stream) {
  DecodeArguments<ReceivedRow> arguments{};
  arguments.messages = ReceivedRow(job);
  arguments.checks = ReceivedChecks(job);
  arguments.summaries = job.summaries;
  arguments.overflow = static_cast<const std::uint8_t*>(job.overflow);
  arguments.overflow_stride = job.overflow_stride;
  arguments.overflow_begin = job.overflow_begin;
  arguments.overflow_step = job.overflow_step;
  arguments.overflow_size = job.overflow_size;
  const dim3 grid(blocks_of(arguments.messages.layout.tiles, block_warps), job.message_count);
  const bool aligned = is_aligned(job.values) && (job.message_count == 1 || job.value_stride % sizeof(uint4) == 0);
  return job.overflow_size == 0 ? launch<false>(arguments, grid, aligned, stream)
                                : launch<true>(arguments, grid, aligned, stream);
}

template <unsigned capacity>
using ListArguments = DecodeArguments<ReceivedList<capacity>>;

cudaError_t launch_list(const DecodeJob& job, cudaStream_t stream) {
  return launch_parts<ListArguments>(
      job.item_count, [&](auto& arguments, std::uint32_t first, std::uint32_t part, bool) {
        const dim3 grid(arguments.messages.fill(job, first, part, block_warps));
        arguments.checks = ReceivedChecks(job);
        arguments.summaries = job.summaries == nullptr ? nullptr : job.summaries + first;
        const bool aligned = std::all_of(job.items + first, job.items + first + part,
                                         [](const DecodeItem& item) { return is_aligned(item.values); });
        return launch<false>(arguments, grid, aligned, stream);
      });
}

}  // namespace

cudaError_t launch_decode(const DecodeJob& job, cudaStream_t stream) {
  return job.items == nullptr ? launch_row(job, stream) : launch_list(job, stream);
}

cudaError_t load_decode() {
  cudaError_t error = cudaSuccess;
  const auto load = [&](auto kernel) {
    cudaFuncAttributes attributes{};
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  load(decode_kernel<true, false, ReceivedRow>);
  load(decode_kernel<true, true, ReceivedRow>);
  load(decode_kernel<false, false, ReceivedRow>);
  load(decode_kernel<false, true, ReceivedRow>);
  load(decode_kernel<true, false, ReceivedList<small_list>>);
  load(decode_kernel<false, false, ReceivedList<small_list>>);
  load(decode_kernel<true, false, ReceivedList<large_list>>);
  load(decode_kernel<false, false, ReceivedList<large_list>>);
  return error;
}

}  // namespace zipccl::codec::cuda
