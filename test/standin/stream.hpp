// Streams and events of host memory: a stream runs its work in order on a thread of its own, created with its first
// work; while it captures, its work goes into a graph instead (capture.hpp).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "test/standin/standin_nccl.h"

namespace standin {

class Capture;
class Graph;

// Passed once everything enqueued on a stream before it is done.
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

// A place in a stream's order, in a capture if there is one.
struct Point {
  std::shared_ptr<Marker> marker;
  std::shared_ptr<Capture> capture;
  std::size_t index = 0;  // in the capture

  bool given() const { return marker != nullptr || capture != nullptr; }
};

// What an event handle stands for. Graphs keep it beyond the handle.
class Event {
 public:
  Point latest();  // not given before the first record
  void record(Point point);

 private:
  std::mutex mutex_;
  Point recorded_;
};

using Work = std::function<void()>;
// Is called when work is issued, which for captured work is every time its graph is launched, and gives what the
// stream's thread then runs. What is issued later is asked later.
using Issue = std::function<Work()>;

class Stream {
 public:
  Stream() = default;
  ~Stream();  // waits for the work enqueued so far; ends a capture that began here
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // While the stream captures, all of these go into the graph. They throw Error(ncclUnhandledCudaError), and spoil the
  // capture, for what the host runtime's header forbids.
  void enqueue(Work work);
  void issue(Issue issue);
  Point record();
  void wait_for(const Point& point);  // work enqueued later waits for it; nothing if it is not given
  void record_external(const std::shared_ptr<Event>& event);
  void wait_external(const std::shared_ptr<Event>& event);

  void synchronize();  // throws while the stream captures
  void drain();        // waits for what runs, whether the stream captures or not

  void begin_capture();
  std::unique_ptr<Graph> end_capture();
  int capture_status();                // ZIPCCL_CAPTURE_*
  unsigned long long capture_id();     // 0: none. Throws an Error if it is spoilt
  std::shared_ptr<Capture> capture();  // the one in progress, or null

 private:
  std::shared_ptr<Capture> capture_locked();
  std::shared_ptr<Marker> mark_locked();
  void push_locked(Work work);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool closing_ = false;
  std::thread worker_;
  std::shared_ptr<Capture> capture_;  // may have ended
  std::size_t branch_ = 0;            // of the capture
};

// A handle's stream, the default stream for null. Throws Error(ncclUnhandledCudaError) for one that does not exist.
std::shared_ptr<Stream> find_stream(cudaStream_t handle);
cudaStream_t create_stream();
void destroy_stream(cudaStream_t handle);
std::vector<std::shared_ptr<Stream>> all_streams();

}  // namespace standin
