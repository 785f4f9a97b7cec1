// Kernel launches of the CUDA engine; CudaDevice is their only user. Jobs have been validated. Every call enqueues
// kernels, nearly always one, on the stream of the current device and returns.
#pragma once

#include <cuda_runtime_api.h>

#include "codec/device.hpp"
#include "codec/overflow.hpp"

namespace zipccl::codec::cuda {

cudaError_t launch_encode(const EncodeJob& job, cudaStream_t stream);
cudaError_t launch_decode(const DecodeJob& job, cudaStream_t stream);
cudaError_t launch_receive(const ReceiveJob& job, cudaStream_t stream);
cudaError_t launch_encode_and_receive(const EncodeJob& encode, const ReceiveJob& receive, cudaStream_t stream);
cudaError_t launch_observe(const ObserveJob& job, cudaStream_t stream);
cudaError_t launch_pause(std::uint32_t nanoseconds, std::uint32_t* word, cudaStream_t stream);  // word: device memory

// Load the kernels' code onto the current device, which a first launch would otherwise do, waiting for whatever runs.
cudaError_t load_encode();
cudaError_t load_decode();
cudaError_t load_receive();
cudaError_t load_encode_and_receive();
cudaError_t load_observe();
cudaError_t load_pause();

// What they consist of. Stops at the first error.
template <typename... Kernels>
cudaError_t load_kernels(Kernels... kernels) {
  cudaError_t error = cudaSuccess;
  const auto load = [&](const void* kernel) {
    cudaFuncAttributes attributes{};
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  (load(reinterpret_cast<const void*>(kernels)), ...);
  return error;
}

}  // namespace zipccl::codec::cuda
