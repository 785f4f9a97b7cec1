// What collectives ask of a Device's streams: pauses, streams of one's own, and while a CUDA graph is captured whether
// a stream captures, events that fork and join, external events, memory. Exit code 77 without a GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "test/gpu/cuda_check.hpp"
#include "test/gpu/device_fixture.hpp"

namespace zipccl::test {
namespace {

constexpr std::size_t bytes = 8 << 20;
constexpr int launches = 50;

class OwnStream {
 public:
  explicit OwnStream(codec::Device& device, int priority = 0) : device_(device) {
    require(device.create_stream(&stream_, priority), device, "create_stream");
  }
  ~OwnStream() { device_.destroy_stream(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  codec::Stream get() const { return stream_; }

 private:
  codec::Device& device_;
  codec::Stream stream_ = nullptr;
};

class OwnEvent {
 public:
  explicit OwnEvent(codec::Device& device) : device_(device) {
    require(device.create_event(&event_), device, "create_event");
  }
  ~OwnEvent() { device_.destroy_event(event_); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  codec::Event get() const { return event_; }

 private:
  codec::Device& device_;
  codec::Event event_ = nullptr;
};

bool captures(codec::Device& device, codec::Stream stream) {
  std::uint64_t id = 0;
  require(device.capture(stream, &id), device, "capture");
  return id != 0;
}

void own_streams(codec::Device& device) {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (const int wanted : {least, greatest}) {
    const OwnStream stream(device, wanted);
    unsigned flags = 0;
    int priority = 0;
    check(cudaStreamGetFlags(stream.get(), &flags));
    require(device.priority(stream.get(), &priority), device, "priority");
    expect(flags == cudaStreamNonBlocking && priority == wanted, "flags or priority of a stream");
  }
}

// A pause lasts about as long as asked, and holds back its own stream only.
void pauses(codec::Device& device) {
  const OwnStream paused(device);
  const OwnStream other(device);
  const Memory out(device, 512);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  for (const std::uint32_t wanted_us : {10u, 200u, 1000u}) {
    float shortest_ms = 1e9f;
    for (int round = 0; round < 5; ++round) {
      check(cudaEventRecord(begin, paused.get()));
      require(device.pause(wanted_us * 1000, paused.get()), device, "pause");
      check(cudaEventRecord(end, paused.get()));
      check(cudaEventSynchronize(end));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end));
      shortest_ms = std::min(shortest_ms, ms);
    }
    const double us = 1000.0 * shortest_ms;
    expect(us >= wanted_us && us < wanted_us + 20,
           "a pause of " + std::to_string(wanted_us) + " us took " + std::to_string(us));
  }
  require(device.pause(1'000'000, paused.get()), device, "pause");
  check(cudaEventRecord(end, paused.get()));
  require(device.copy(out.data(), out.data() + 256, 256, other.get()), device, "copy");
  check(cudaStreamSynchronize(other.get()));
  expect(cudaEventQuery(end) == cudaErrorNotReady, "a pause held back another stream");
  expect(device.pause(1'000'001, paused.get()) == Status::invalid_argument, "a pause that is too long");
  require(device.synchronize(), device, "synchronize");
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
}

// A graph of copies on two branches: `middle` and `out` get what `in` holds when it is launched.
void graphs(codec::Device& device, cudaStreamCaptureMode mode) {
  const OwnStream main(device);
  const OwnStream side(device);
  const OwnStream outside(device);
  const OwnEvent ready(device);
  const OwnEvent done(device);
  const OwnEvent fork(device);
  const OwnEvent join(device);
  const Memory in(device, bytes);
  const Memory middle(device, bytes);
  const Memory out(device, bytes);
  const Memory sources(device, launches * 256);
  const Memory results(device, launches * 256);
  for (int i = 0; i < launches; ++i) fill(sources.data() + i * 256, i + 1, 256);
  fill(in.data(), 0, bytes);

  check(cudaStreamBeginCapture(main.get(), mode));
  expect(captures(device, main.get()) && !captures(device, side.get()), "which streams capture");
  require(device.wait_external(ready.get(), main.get()), device, "wait_external");
  require(device.record(fork.get(), main.get()), device, "record");
  require(device.wait(fork.get(), side.get()), device, "wait");
  expect(captures(device, side.get()), "a stream that joined a capture");
  require(device.copy(middle.data(), in.data(), bytes, side.get()), device, "copy");
  require(device.record(join.get(), side.get()), device, "record");
  require(device.wait(join.get(), main.get()), device, "wait");
  require(device.copy(out.data(), middle.data(), bytes, main.get()), device, "copy");
  require(device.record_external(done.get(), main.get()), device, "record_external");
  // What may happen elsewhere in the process meanwhile.
  const OwnStream another(device);
  const OwnEvent unrelated(device);
  bool passed = false;
  require(device.query(unrelated.get(), &passed), device, "query");
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(main.get(), &graph));
  expect(!captures(device, main.get()) && !captures(device, side.get()), "streams after a capture");
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0));

  // All launches are in flight at once: only the events order them with the other stream.
  for (int i = 0; i < launches; ++i) {
    require(device.copy(in.data() + bytes - 256, sources.data() + i * 256, 256, outside.get()), device, "copy");
    require(device.record_external(ready.get(), outside.get()), device, "record_external");
    check(cudaGraphLaunch(executable, main.get()));
    require(device.wait_external(done.get(), outside.get()), device, "wait_external");
    require(device.copy(results.data() + i * 256, out.data() + bytes - 256, 256, outside.get()), device, "copy");
  }
  require(device.synchronize(), device, "synchronize");
  expect(count_differences(results.data(), sources.data(), launches * 256) == 0, "results of a graph's launches");
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(graph));
}

// Memory of the device's own stream serves a graph that another stream is captured into meanwhile.
void memory_during_capture(codec::Device& device, cudaStreamCaptureMode mode) {
  const OwnStream stream(device);
  const Memory out(device, bytes);
  fill(out.data(), 0x11, bytes);
  check(cudaStreamBeginCapture(stream.get(), mode));
  void* memory = nullptr;
  require(device.allocate_async(&memory, bytes, device.own_stream()), device, "allocate_async");
  require(device.clear(memory, bytes), device, "clear");
  require(device.copy(out.data(), memory, bytes, stream.get()), device, "copy");
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream.get(), &graph));
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0));
  check(cudaGraphLaunch(executable, stream.get()));
  require(device.synchronize(), device, "synchronize");
  expect(count_other_bytes(out.data(), 0, bytes) == 0, "memory allocated during a capture");
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(graph));
  device.release_async(memory, device.own_stream());
  require(device.synchronize(), device, "synchronize");
}

}  // namespace
}  // namespace zipccl::test

int main() {
  const auto device = zipccl::test::open_device();
  if (device == nullptr) return zipccl::test::skip_exit_code;
  zipccl::test::own_streams(*device);
  zipccl::test::pauses(*device);
  for (const auto mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    zipccl::test::graphs(*device, mode);
    zipccl::test::memory_during_capture(*device, mode);
  }
  std::printf("gpu-graph-test on %s: %d failures\n", device->name(), zipccl::test::failures());
  return zipccl::test::failures() == 0 ? 0 : 1;
}
