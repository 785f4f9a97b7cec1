// For CUDA calls that no test is about.
#pragma once

#include <cuda_runtime_api.h>

#include "test/gpu/device_fixture.hpp"

namespace zipccl::test {

inline void check(cudaError_t error) { require(error == cudaSuccess, cudaGetErrorString(error)); }

}  // namespace zipccl::test
