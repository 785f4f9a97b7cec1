// What benchmarks do on a device beside NCCL's calls: occupy a stream, see which kernels run, capture graphs. Failures
// end the process with a message.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "test/support/nccl.hpp"

namespace zipccl::test {

class DeviceWork {
 public:
  static constexpr int marker_streams = 38;  // of which high_priority_streams are of high priority
  static constexpr int high_priority_streams = 4;

  virtual ~DeviceWork() = default;

  // One small kernel that occupies the stream for about that long; returns at once.
  virtual void delay(cudaStream_t stream, double microseconds) = 0;
  virtual bool is_done(cudaStream_t stream) = 0;

  // One kernel on each of marker_streams streams of our own; returns at once. The last ones must have run.
  virtual void launch_markers() = 0;
  virtual int count_markers() = 0;  // how many of the last launch have run
  virtual void await_markers() = 0;

  virtual void copy_to_host(void* host, const void* device, std::size_t bytes, cudaStream_t stream) = 0;

  // Times what a stream does between begin and end; one span at a time. elapsed() after both are done: microseconds.
  virtual void begin_span(cudaStream_t stream) = 0;
  virtual void end_span(cudaStream_t stream) = 0;
  virtual double elapsed() = 0;

  // What `enqueue` puts on the stream, as a graph.
  virtual void* capture(cudaStream_t stream, const std::function<void()>& enqueue) = 0;
  virtual void launch(void* graph, cudaStream_t stream) = 0;
  virtual void destroy(void* graph) = 0;
};

// For the device that is current. Every kernel is loaded on return: one that is loaded while another waits would wait
// with it.
std::unique_ptr<DeviceWork> make_device_work();

}  // namespace zipccl::test
