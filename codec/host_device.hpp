// Device on host memory: the streams and events of a host runtime (host_runtime.h), the host engine as codec.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "codec/device.hpp"
#include "codec/host_runtime.h"

namespace zipccl::codec {

class HostDevice final : public Device {
 public:
  // `runtime` must outlive the device. unsupported if its version is not this header's, out_of_memory.
  static Status create(const zipccl_host_runtime_v1* runtime, std::unique_ptr<HostDevice>* device);

  // Waits for the device's work that is still on streams.
  ~HostDevice() override;
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  int ordinal() const override { return 0; }
  const char* name() const override { return "host"; }
  const char* last_error() const override;
  std::uint64_t total_memory() const override { return total_memory_; }  // physical memory of the machine

  Status allocate(void** pointer, std::size_t bytes) override;
  void release(void* pointer) override;
  Status allocate_mapped(void** pointer, std::size_t bytes) override;
  void release_mapped(void* pointer) override;
  Status clear(void* pointer, std::size_t bytes) override;
  Status allocate_async(void** pointer, std::size_t bytes, Stream stream) override;
  void release_async(void* pointer, Stream stream) override;
  Status clear_async(void* pointer, std::size_t bytes, Stream stream) override;
  Stream own_stream() override { return nullptr; }  // the runtime's default stream

  Status priority(Stream stream, int* priority) override;  // always 0
  Status create_stream(Stream* stream, int priority) override;
  void destroy_stream(Stream stream) override;  // waits for the stream's work
  Status create_event(Event* event) override;
  void destroy_event(Event event) override;
  Status record(Event event, Stream stream) override;
  Status query(Event event, bool* done) override;
  Status wait(Event event, Stream stream) override;
  Status record_external(Event event, Stream stream) override;
  Status wait_external(Event event, Stream stream) override;

  // Enqueued work is a copy of the job, taken from a free list that starts with room for `first_jobs` jobs in flight.
  // Only when more are in flight, or for a list longer than the job's last ones, does a call allocate; what it
  // allocates stays on the free list. A job captured into a graph is in flight until the graph is destroyed, which must
  // happen before the device goes.
  Status copy(void* destination, const void* source, std::size_t bytes, Stream stream) override;
  Status capture(Stream stream, std::uint64_t* id) override;
  Status synchronize() override;
  // A job that breaks its contract is refused here with invalid_argument, nothing being enqueued.
  Status encode(const EncodeJob& job, Stream stream) override;  // waits, if it must, on the stream's thread
  Status decode(const DecodeJob& job, Stream stream) override;
  Status receive(const ReceiveJob& job, Stream stream) override;  // waits, if it must, on the stream's thread
  // One after the other, as one piece of work.
  Status encode_and_receive(const EncodeJob& encode, const ReceiveJob& receive, Stream stream) override;
  Status observe(const ObserveJob& job, Stream stream) override;
  Status pause(std::uint32_t, Stream) override { return Status::ok; }  // streams do not compete for anything there

  static constexpr std::size_t first_jobs = 64;

 private:
  struct Job;

  HostDevice(const zipccl_host_runtime_v1* runtime, std::uint64_t total_memory);
  template <typename Work>
  Status enqueue(const Work& work, Stream stream);
  Job* take_job();  // null if there is no memory for another one
  bool add_job();   // with mutex_ held, or before the device is shared
  void return_job(Job* job);
  static void run_job(void* job);
  static void release_job(void* job);

  const zipccl_host_runtime_v1* runtime_;
  std::uint64_t total_memory_;
  std::mutex mutex_;                        // guards the two lists
  std::vector<std::unique_ptr<Job>> jobs_;  // all jobs
  std::vector<Job*> free_jobs_;             // those not in flight; capacity for all
};

}  // namespace zipccl::codec
