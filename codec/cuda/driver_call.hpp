// Finds calls of the CUDA driver by name: the library links none of it.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace zipccl::codec::cuda {

template <typename Function>
cudaError_t find_driver_call(const char* name, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  constexpr unsigned version = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) return error;
  if (result != cudaDriverEntryPointSuccess) return cudaErrorSymbolNotFound;
  function = reinterpret_cast<Function>(address);
  return cudaSuccess;
}

}  // namespace zipccl::codec::cuda
