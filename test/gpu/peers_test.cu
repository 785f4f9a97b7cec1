// Two GPUs of one process: each reaches what the other's Device has allocated, in whichever way, as NCCL's kernels do
// where ranks are threads of one process. Exit code 77 without two GPUs that can.
#include <cuda_runtime.h>

#include <cstdio>

#include "codec/cuda/cuda_device.hpp"
#include "test/gpu/cuda_check.hpp"
#include "test/gpu/device_fixture.hpp"

namespace zipccl::test {
namespace {

constexpr std::size_t bytes = 1 << 20;

__global__ void write(std::uint8_t* memory) { memory[std::size_t{blockIdx.x} * blockDim.x + threadIdx.x] = 0x5A; }

std::unique_ptr<codec::Device> open_device(int ordinal) {
  std::unique_ptr<codec::Device> device;
  std::string why;
  require(codec::make_cuda_device(ordinal, &device, &why) == Status::ok, why);
  return device;
}

void* pool_memory(codec::Device& device) {
  void* memory = nullptr;
  require(device.allocate_async(&memory, bytes, device.own_stream()), device, "allocate_async");
  require(device.clear(memory, bytes), device, "clear");
  return memory;
}

// GPU `writer` writes to memory of the other one; a fault ends the program, as nothing on the GPU works after it.
void cross(int writer, void* memory, const std::string& what) {
  check(cudaSetDevice(writer));
  constexpr unsigned threads = 256;
  write<<<bytes / threads, threads>>>(static_cast<std::uint8_t*>(memory));
  const cudaError_t error = cudaDeviceSynchronize();
  require(error == cudaSuccess, what + ": " + cudaGetErrorString(error));
  check(cudaSetDevice(1 - writer));
  expect(count_other_bytes(memory, 0x5A, bytes) == 0, what);
}

bool reachable() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) return false;
  int forth = 0;
  int back = 0;
  check(cudaDeviceCanAccessPeer(&forth, 0, 1));
  check(cudaDeviceCanAccessPeer(&back, 1, 0));
  return forth != 0 && back != 0;
}

void pools() {
  for (int gpu = 0; gpu < 2; ++gpu) {
    check(cudaSetDevice(gpu));
    check(cudaDeviceEnablePeerAccess(1 - gpu, 0));
  }
  const auto first = open_device(0);
  void* const early = pool_memory(*first);
  const auto second = open_device(1);
  void* const late = pool_memory(*first);
  void* const seconds = pool_memory(*second);
  cross(1, early, "memory of before the second device was there");
  cross(1, late, "memory of the first device");
  cross(0, seconds, "memory of the second device");
  for (void* memory : {early, late}) first->release_async(memory, first->own_stream());
  second->release_async(seconds, second->own_stream());
  require(first->synchronize(), *first, "synchronize");
  require(second->synchronize(), *second, "synchronize");
}

}  // namespace
}  // namespace zipccl::test

int main() {
  if (!zipccl::test::reachable()) {
    std::fprintf(stderr, "there are not two GPUs that reach each other's memory\n");
    return zipccl::test::skip_exit_code;
  }
  zipccl::test::pools();
  std::printf("gpu-peers-test: %d failures\n", zipccl::test::failures());
  return zipccl::test::failures() == 0 ? 0 : 1;
}
