// Receive jobs (ReceiveJob) of rows and lists, each a launch, but for long lists.
#include <algorithm>

#include "codec/cuda/engine.hpp"
#include "codec/cuda/lists.cuh"
#include "codec/cuda/receive_block.cuh"

namespace zipccl::codec::cuda {
namespace {

template <bool aligned, typename Messages>
__global__ void __launch_bounds__(decode_block_threads, decode_blocks_per_multiprocessor)
    receive_kernel(const __grid_constant__ ReceiveArguments<Messages> arguments) {
  __shared__ __align__(16) std::uint8_t distances[decode_block_warps][escape_room];
  receive_block<aligned>(arguments, blockIdx.x, blockIdx.x == gridDim.x - 1, [&] { return distances[warp_id()]; });
}

template <typename Messages>
cudaError_t launch(const ReceiveArguments<Messages>& arguments, cudaStream_t stream) {
  const std::uint32_t blocks = arguments.messages.block_total() + 1;
  if (arguments.messages.is_aligned()) {
    receive_kernel<true><<<blocks, decode_block_threads, 0, stream>>>(arguments);
  } else {
    receive_kernel<false><<<blocks, decode_block_threads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

template <unsigned capacity>
using ListArguments = ReceiveArguments<ReceivedList<capacity>>;

}  // namespace

cudaError_t launch_receive(const ReceiveJob& job, cudaStream_t stream) {
  if (job.decode.items == nullptr) {
    return launch(ReceiveArguments<ReceivedRow>{shared_arguments(job), ReceivedRow(job.decode)}, stream);
  }
  return launch_parts<ListArguments>(job.decode.item_count,
                                     [&](auto& arguments, std::uint32_t first, std::uint32_t part, bool last) {
                                       arguments.shared = shared_arguments(job);
                                       arguments.shared.first = first == 0;
                                       arguments.shared.last = last;
                                       arguments.messages.fill(job.decode, first, part);
                                       return launch(arguments, stream);
                                     });
}

cudaError_t load_receive() {
  return load_kernels(receive_kernel<true, ReceivedRow>, receive_kernel<false, ReceivedRow>,
                      receive_kernel<true, ReceivedList<small_list>>, receive_kernel<false, ReceivedList<small_list>>,
                      receive_kernel<true, ReceivedList<large_list>>, receive_kernel<false, ReceivedList<large_list>>);
}

}  // namespace zipccl::codec::cuda
