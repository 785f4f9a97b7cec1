#include "codec/cuda/engine.hpp"
#include "codec/cuda/tile_decode.cuh"

namespace zipccl::codec::cuda {
namespace {

struct DecodeArguments {
  ReceivedRow messages;
  ReceivedChecks checks;
  MessageSummary* summaries;
  std::uint32_t tile_blocks;  // in a first pass one more looks at headers, if there are summaries
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
}

template <bool aligned, bool patch>
__global__ void __launch_bounds__(decode_block_threads, decode_blocks_per_multiprocessor)
    decode_kernel(const __grid_constant__ DecodeArguments arguments) {
  __shared__ __align__(16) std::uint8_t distances[decode_block_warps][escape_room];
  const ReceivedRow& messages = arguments.messages;
  if (blockIdx.x == arguments.tile_blocks) {
    for (unsigned index = threadIdx.x; index < messages.count; index += decode_block_threads) {
      summarise(messages.place(index), arguments.checks, arguments.summaries[index]);
    }
    return;
  }
  const auto piece_of = [&](unsigned index) {
    return OverflowPiece{arguments.overflow + index * arguments.overflow_stride, arguments.overflow_begin,
                         arguments.overflow_step, arguments.overflow_size};
  };
  decode_block<aligned, patch>(
      messages, blockIdx.x, piece_of, [&] { return distances[warp_id()]; },
      [&](unsigned index) {
        if (arguments.summaries != nullptr) {
          arguments.summaries[index].status = static_cast<std::int32_t>(Status::bad_tile);
        }
      });
}

template <bool patch>
cudaError_t launch(const DecodeArguments& arguments, bool aligned, cudaStream_t stream) {
  const std::uint32_t blocks = arguments.tile_blocks + (!patch && arguments.summaries != nullptr ? 1 : 0);
  if (blocks == 0) return cudaSuccess;
  if (aligned) {
    decode_kernel<true, patch><<<blocks, decode_block_threads, 0, stream>>>(arguments);
  } else {
    decode_kernel<false, patch><<<blocks, decode_block_threads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_decode(const DecodeJob& job, cudaStream_t stream) {
  DecodeArguments arguments{};
  arguments.messages = ReceivedRow(job);
  arguments.checks = ReceivedChecks(job);
  arguments.summaries = job.summaries;
  arguments.tile_blocks = arguments.messages.block_total();
  arguments.overflow = static_cast<const std::uint8_t*>(job.overflow);
  arguments.overflow_stride = job.overflow_stride;
  arguments.overflow_begin = job.overflow_begin;
  arguments.overflow_step = job.overflow_step;
  arguments.overflow_size = job.overflow_size;
  const bool aligned = arguments.messages.is_aligned();
  return job.overflow_size == 0 ? launch<false>(arguments, aligned, stream) : launch<true>(arguments, aligned, stream);
}

cudaError_t load_decode() {
  return load_kernels(decode_kernel<true, false>, decode_kernel<true, true>, decode_kernel<false, false>,
                      decode_kernel<false, true>);
}

}  // namespace zipccl::codec::cuda
