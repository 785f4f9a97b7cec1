#include "codec/cuda/engine.hpp"
#include "codec/cuda/system_scope.cuh"

namespace zipccl::codec::cuda {
namespace {

__global__ void pause_kernel(std::uint32_t nanoseconds) {
  constexpr unsigned step_ns = 500;
  const std::uint64_t begin = global_timer();
  while (global_timer() - begin < nanoseconds) __nanosleep(step_ns);
}

}  // namespace

cudaError_t launch_pause(std::uint32_t nanoseconds, cudaStream_t stream) {
  pause_kernel<<<1, 1, 0, stream>>>(nanoseconds);
  return cudaGetLastError();
}

cudaError_t load_pause() { return load_kernels(pause_kernel); }

}  // namespace zipccl::codec::cuda
