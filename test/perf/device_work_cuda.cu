#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "test/perf/device_work.hpp"

namespace zipccl::test {

namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "CUDA: %s failed: %s\n", what, cudaGetErrorString(error));
    std::_Exit(1);
  }
}

__device__ std::uint64_t nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin(std::uint64_t duration) {
  const std::uint64_t end = nanoseconds() + duration;
  while (nanoseconds() < end) {
  }
}

__global__ void mark(volatile int* marker, int value) { *marker = value; }

class CudaWork final : public DeviceWork {
 public:
  CudaWork() {
    check(cudaHostAlloc(&markers_, marker_streams * sizeof(int), cudaHostAllocMapped), "cudaHostAlloc");
    std::fill_n(markers_, marker_streams, 0);
    int* mapped = nullptr;
    check(cudaHostGetDevicePointer(&mapped, markers_, 0), "cudaHostGetDevicePointer");
    mapped_ = mapped;
    int lowest = 0;
    int highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    for (int index = 0; index < marker_streams; ++index) {
      const int priority = index < high_priority_streams ? highest : lowest;
      check(cudaStreamCreateWithPriority(&streams_[index], cudaStreamNonBlocking, priority), "cudaStreamCreate");
    }
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
    delay(streams_[0], 1);
    launch_markers();
    await_markers();
  }
  ~CudaWork() override {
    for (cudaStream_t stream : streams_) {
      cudaStreamDestroy(stream);
    }
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaFreeHost(markers_);
  }

  void delay(cudaStream_t stream, double microseconds) override {
    spin<<<1, 1, 0, stream>>>(static_cast<std::uint64_t>(microseconds * 1e3));
    check(cudaGetLastError(), "delay");
  }
  bool is_done(cudaStream_t stream) override {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state != cudaErrorNotReady) {
      check(state, "cudaStreamQuery");
    }
    return state == cudaSuccess;
  }

  void launch_markers() override {
    ++launch_;
    for (int index = 0; index < marker_streams; ++index) {
      mark<<<1, 1, 0, streams_[index]>>>(mapped_ + index, launch_);
    }
    check(cudaGetLastError(), "markers");
  }
  int count_markers() override {
    const volatile int* markers = markers_;
    return static_cast<int>(std::count(markers, markers + marker_streams, launch_));
  }
  void await_markers() override {
    for (cudaStream_t stream : streams_) {
      check(cudaStreamSynchronize(stream), "markers");
    }
  }

  void copy_to_host(void* host, const void* device, std::size_t bytes, cudaStream_t stream) override {
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  }

  void begin_span(cudaStream_t stream) override { check(cudaEventRecord(begin_, stream), "cudaEventRecord"); }
  void end_span(cudaStream_t stream) override { check(cudaEventRecord(end_, stream), "cudaEventRecord"); }
  double elapsed() override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds);
  }

  void* capture(cudaStream_t stream, const std::function<void()>& enqueue) override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    enqueue();
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return executable;
  }
  void launch(void* graph, cudaStream_t stream) override {
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream), "cudaGraphLaunch");
  }
  void destroy(void* graph) override {
    check(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)), "cudaGraphExecDestroy");
  }

 private:
  cudaStream_t streams_[marker_streams] = {};
  int* markers_ = nullptr;
  volatile int* mapped_ = nullptr;  // markers_, as the device sees them
  int launch_ = 0;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceWork> make_device_work() { return std::make_unique<CudaWork>(); }

}  // namespace zipccl::test
