#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "test/perf/device_work.hpp"

namespace zipccl::test {

namespace {

void check(int result, const char* what) {
  if (result != 0) {
    std::fprintf(stderr, "host runtime: %s failed with %d\n", what, result);
    std::_Exit(1);
  }
}

class StandinWork final : public DeviceWork {
 public:
  StandinWork() {
    for (cudaStream_t& stream : streams_) {
      check(zipccl_host_runtime.stream_create(&stream), "stream_create");
    }
    check(zipccl_host_runtime.event_create(&event_), "event_create");
  }
  ~StandinWork() override {
    zipccl_host_runtime.event_destroy(event_);
    for (cudaStream_t stream : streams_) {
      zipccl_host_runtime.stream_destroy(stream);
    }
  }

  void delay(cudaStream_t stream, double microseconds) override {
    enqueue(stream,
            [microseconds] { std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(microseconds)); });
  }
  bool is_done(cudaStream_t stream) override {
    int done = 0;
    check(zipccl_host_runtime.event_record(event_, stream), "event_record");
    // The event of an idle stream may take its thread a moment.
    for (int tries = 0; tries < 50 && done == 0; ++tries) {
      check(zipccl_host_runtime.event_query(event_, &done), "event_query");
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return done != 0;
  }

  void launch_markers() override {
    marked_ = 0;
    for (cudaStream_t stream : streams_) {
      enqueue(stream, [this] { ++marked_; });
    }
  }
  int count_markers() override { return marked_; }
  void await_markers() override {
    for (cudaStream_t stream : streams_) {
      check(zipccl_host_runtime.stream_synchronize(stream), "stream_synchronize");
    }
  }

  void copy_to_host(void* host, const void* device, std::size_t bytes, cudaStream_t stream) override {
    enqueue(stream, [host, device, bytes] { std::memcpy(host, device, bytes); });
  }

  void begin_span(cudaStream_t stream) override {
    enqueue(stream, [this] { begin_ = Clock::now(); });
  }
  void end_span(cudaStream_t stream) override {
    enqueue(stream, [this] { end_ = Clock::now(); });
  }
  double elapsed() override { return std::chrono::duration<double, std::micro>(end_ - begin_).count(); }

  void* capture(cudaStream_t stream, const std::function<void()>& work) override {
    void* graph = nullptr;
    check(zipccl_host_runtime.stream_capture_begin(stream), "stream_capture_begin");
    work();
    check(zipccl_host_runtime.stream_capture_end(stream, &graph), "stream_capture_end");
    return graph;
  }
  void launch(void* graph, cudaStream_t stream) override {
    check(zipccl_host_runtime.graph_launch(graph, stream), "graph_launch");
  }
  void destroy(void* graph) override { check(zipccl_host_runtime.graph_destroy(graph), "graph_destroy"); }

 private:
  using Clock = std::chrono::steady_clock;

  static void enqueue(cudaStream_t stream, std::function<void()> work) {
    const auto run = [](void* argument) {
      const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(argument));
      (*owned)();
    };
    check(zipccl_host_runtime.stream_enqueue(stream, run, new std::function<void()>(std::move(work))),
          "stream_enqueue");
  }

  std::array<cudaStream_t, marker_streams> streams_{};
  void* event_ = nullptr;
  std::atomic<int> marked_ = 0;
  Clock::time_point begin_;  // of the stream's thread; read when the stream is idle
  Clock::time_point end_;
};

}  // namespace

std::unique_ptr<DeviceWork> make_device_work() { return std::make_unique<StandinWork>(); }

}  // namespace zipccl::test
