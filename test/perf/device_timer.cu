#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "test/gpu/device_fixture.hpp"
#include "test/perf/device_timer.hpp"

namespace zipccl::test {
namespace {

void check(cudaError_t error) { require(error == cudaSuccess, cudaGetErrorString(error)); }

}  // namespace

double median_microseconds(unsigned launches, unsigned warmup, unsigned samples,
                           const std::function<void(unsigned, codec::Stream)>& enqueue) {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  cudaGraphExec_t graph = nullptr;
  if (launches > 1) {
    cudaGraph_t captured = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (unsigned i = 0; i < launches; ++i) enqueue(i, stream);
    check(cudaStreamEndCapture(stream, &captured));
    check(cudaGraphInstantiate(&graph, captured, 0));
    check(cudaGraphDestroy(captured));
  }
  const auto launch = [&] {
    if (graph != nullptr) {
      check(cudaGraphLaunch(graph, stream));
    } else {
      enqueue(0, stream);
    }
  };
  std::vector<float> milliseconds(std::max(samples, 1u));
  for (unsigned i = 0; i < warmup; ++i) launch();
  for (float& sample : milliseconds) {
    check(cudaEventRecord(begin, stream));
    launch();
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&sample, begin, end));
  }
  if (graph != nullptr) check(cudaGraphExecDestroy(graph));
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  check(cudaStreamDestroy(stream));
  const auto middle = milliseconds.begin() + static_cast<std::ptrdiff_t>(milliseconds.size() / 2);
  std::nth_element(milliseconds.begin(), middle, milliseconds.end());
  return 1e3 * static_cast<double>(*middle) / launches;
}

}  // namespace zipccl::test
