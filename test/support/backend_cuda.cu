#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "test/support/backend.hpp"

namespace zipccl::test {

namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "CUDA: %s failed: %s\n", what, cudaGetErrorString(error));
    std::_Exit(1);
  }
}

// Counts differing bytes, 16 at a time where both sides allow.
__global__ void count_differences(const unsigned char* one, const unsigned char* other, std::size_t bytes,
                                  unsigned long long* differences) {
  const std::size_t step = std::size_t{blockDim.x} * gridDim.x;
  const std::size_t start = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  unsigned long long found = 0;
  std::size_t done = 0;
  if (((reinterpret_cast<std::size_t>(one) | reinterpret_cast<std::size_t>(other)) & 15) == 0) {
    const auto* wide_one = reinterpret_cast<const uint4*>(one);
    const auto* wide_other = reinterpret_cast<const uint4*>(other);
    for (std::size_t index = start; index < bytes / 16; index += step) {
      const uint4 a = wide_one[index];
      const uint4 b = wide_other[index];
      found += a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w;
    }
    done = bytes / 16 * 16;
  }
  for (std::size_t index = done + start; index < bytes; index += step) {
    found += one[index] != other[index];
  }
  if (found != 0) {
    atomicAdd(differences, found);
  }
}

class CudaBackend final : public Backend {
 public:
  CudaBackend() { differences_ = static_cast<unsigned long long*>(allocate(sizeof(unsigned long long))); }
  ~CudaBackend() override { cudaFree(differences_); }

  void* allocate(std::size_t bytes) override {
    void* pointer = nullptr;
    check(cudaMalloc(&pointer, bytes == 0 ? 1 : bytes), "cudaMalloc");
    return pointer;
  }
  void release(void* pointer) override { check(cudaFree(pointer), "cudaFree"); }
  cudaStream_t create_stream() override {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
  }
  void destroy_stream(cudaStream_t stream) override { check(cudaStreamDestroy(stream), "cudaStreamDestroy"); }
  void synchronize(cudaStream_t stream) override { check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }
  void wait_for(cudaStream_t stream, cudaStream_t other) override {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventRecord(event, other), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
    check(cudaEventDestroy(event), "cudaEventDestroy");  // once it has been waited for
  }
  void begin_capture(cudaStream_t stream) override {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  }
  void* end_capture(cudaStream_t stream) override {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return executable;
  }
  void launch(void* graph, cudaStream_t stream) override {
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream), "cudaGraphLaunch");
  }
  void destroy_graph(void* graph) override {
    check(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)), "cudaGraphExecDestroy");
  }
  std::size_t used_memory() override {
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
    return total - free_bytes;
  }
  std::size_t total_memory() override {
    int device = 0;
    cudaDeviceProp properties{};
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    return properties.totalGlobalMem;
  }
  void upload(void* device, const void* host, std::size_t bytes) override {
    check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "upload");
    // From pageable memory cudaMemcpy returns before the last bytes have arrived, and other streams do not wait.
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "download");
  }
  void fill(void* device, std::uint8_t byte, std::size_t bytes) override {
    check(cudaMemset(device, byte, bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  bool equal(const void* one, const void* other, std::size_t bytes) override {
    if (bytes == 0) {
      return true;
    }
    check(cudaMemset(differences_, 0, sizeof(*differences_)), "cudaMemset");
    count_differences<<<1024, 256>>>(static_cast<const unsigned char*>(one), static_cast<const unsigned char*>(other),
                                     bytes, differences_);
    unsigned long long found = 0;
    check(cudaMemcpy(&found, differences_, sizeof(found), cudaMemcpyDeviceToHost), "compare");
    return found == 0;
  }
  void copy(void* destination, const void* source, std::size_t bytes) override {
    check(cudaMemcpy(destination, source, bytes, cudaMemcpyDeviceToDevice), "copy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  unsigned long long* differences_ = nullptr;
};

}  // namespace

std::unique_ptr<Backend> make_backend(int local_rank) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  check(cudaSetDevice(local_rank % devices), "cudaSetDevice");
  return std::make_unique<CudaBackend>();
}

// The driver's device files, because asking CUDA would initialise it in a process that still forks.
int count_gpus() {
  int gpus = 0;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(gpus))) {
    ++gpus;
  }
  return gpus;
}

}  // namespace zipccl::test
