// Streams and events of host memory: a stream runs its work in order on a thread of its own, created with its first
// work.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "test/standin/standin_nccl.h"

namespace standin {

// A point in a stream's order: passed once everything enqueued before it is done.
class Marker {
 public:
  void pass();
  bool passed();
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool passed_ = false;
};

class Stream {
 public:
  Stream() = default;
  ~Stream();  // waits for the work enqueued so far
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(std::function<void()> work);
  std::shared_ptr<Marker> mark();
  void wait_for(std::shared_ptr<Marker> marker);  // work enqueued later waits for the marker
  void synchronize();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool closing_ = false;
  std::thread worker_;
};

// A handle's stream, the default stream for null. Throws Error(ncclUnhandledCudaError) for one that does not exist.
std::shared_ptr<Stream> find_stream(cudaStream_t handle);
cudaStream_t create_stream();
void destroy_stream(cudaStream_t handle);
std::vector<std::shared_ptr<Stream>> all_streams();

}  // namespace standin
