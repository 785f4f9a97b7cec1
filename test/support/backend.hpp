// Memory and streams for programs that run on GPUs or on the stand-in. Every failure ends the process with a message:
// these are tests and benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "test/support/nccl.hpp"

namespace zipccl::test {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* pointer) = 0;
  virtual cudaStream_t create_stream() = 0;
  virtual void destroy_stream(cudaStream_t stream) = 0;
  virtual void synchronize(cudaStream_t stream) = 0;
  virtual void wait_for(cudaStream_t stream, cudaStream_t other) = 0;  // for what is enqueued there so far

  // CUDA graphs, captured as PyTorch does. What the stream is given between begin and end goes into the graph.
  virtual void begin_capture(cudaStream_t stream) = 0;
  virtual void* end_capture(cudaStream_t stream) = 0;  // the graph, ready for launch
  virtual void launch(void* graph, cudaStream_t stream) = 0;
  virtual void destroy_graph(void* graph) = 0;  // after its launches

  virtual std::size_t used_memory() = 0;   // bytes of the device that are in use, by whomever; 0 on the stand-in
  virtual std::size_t total_memory() = 0;  // bytes of the device, or of the machine

  // Synchronous, but only for memory that no stream uses at the time.
  virtual void upload(void* device, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* device, std::size_t bytes) = 0;
  virtual void fill(void* device, std::uint8_t byte, std::size_t bytes) = 0;
  virtual bool equal(const void* one, const void* other, std::size_t bytes) = 0;    // both device memory
  virtual void copy(void* destination, const void* source, std::size_t bytes) = 0;  // both device memory
};

// For local rank `local_rank` of this machine: GPU local_rank % number of GPUs, which becomes current, or the
// stand-in's host memory.
std::unique_ptr<Backend> make_backend(int local_rank);

// GPUs that make_backend can use; 0 on the stand-in. Initialises nothing in this process.
int count_gpus();

}  // namespace zipccl::test
