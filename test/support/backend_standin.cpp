#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "test/support/backend.hpp"

namespace zipccl::test {

namespace {

void check(int result, const char* what) {
  if (result != 0) {
    std::fprintf(stderr, "host runtime: %s failed with %d\n", what, result);
    std::_Exit(1);
  }
}

class StandinBackend final : public Backend {
 public:
  void* allocate(std::size_t bytes) override {
    void* pointer = nullptr;
    check(zipccl_host_runtime.allocate(&pointer, bytes), "allocate");
    return pointer;
  }
  void release(void* pointer) override { check(zipccl_host_runtime.release(pointer), "release"); }
  cudaStream_t create_stream() override {
    CUstream_st* stream = nullptr;
    check(zipccl_host_runtime.stream_create(&stream), "stream_create");
    return stream;
  }
  void destroy_stream(cudaStream_t stream) override {
    check(zipccl_host_runtime.stream_destroy(stream), "stream_destroy");
  }
  void synchronize(cudaStream_t stream) override {
    check(zipccl_host_runtime.stream_synchronize(stream), "stream_synchronize");
  }
  void wait_for(cudaStream_t stream, cudaStream_t other) override {
    void* event = nullptr;
    check(zipccl_host_runtime.event_create(&event), "event_create");
    check(zipccl_host_runtime.event_record(event, other), "event_record");
    check(zipccl_host_runtime.stream_wait_event(stream, event), "stream_wait_event");
    check(zipccl_host_runtime.event_destroy(event), "event_destroy");
  }
  void begin_capture(cudaStream_t stream) override {
    check(zipccl_host_runtime.stream_capture_begin(stream), "stream_capture_begin");
  }
  void* end_capture(cudaStream_t stream) override {
    void* graph = nullptr;
    check(zipccl_host_runtime.stream_capture_end(stream, &graph), "stream_capture_end");
    return graph;
  }
  void launch(void* graph, cudaStream_t stream) override {
    check(zipccl_host_runtime.graph_launch(graph, stream), "graph_launch");
  }
  void destroy_graph(void* graph) override { check(zipccl_host_runtime.graph_destroy(graph), "graph_destroy"); }
  std::size_t used_memory() override { return 0; }
  std::size_t total_memory() override {
    return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  }
  void upload(void* device, const void* host, std::size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, std::size_t bytes) override { std::memcpy(host, device, bytes); }
  void fill(void* device, std::uint8_t byte, std::size_t bytes) override { std::memset(device, byte, bytes); }
  bool equal(const void* one, const void* other, std::size_t bytes) override {
    return std::memcmp(one, other, bytes) == 0;
  }
  void copy(void* destination, const void* source, std::size_t bytes) override {
    std::memcpy(destination, source, bytes);
  }
};

}  // namespace

std::unique_ptr<Backend> make_backend(int) { return std::make_unique<StandinBackend>(); }

int count_gpus() { return 0; }

}  // namespace zipccl::test
