#include "test/standin/stream.hpp"

#include <unordered_map>
#include <utility>

#include "test/standin/capture.hpp"
#include "test/standin/error.hpp"

namespace standin {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<cudaStream_t, std::shared_ptr<Stream>> streams;  // null: the default stream
};

// Never destroyed: threads may still be running when the process exits.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

void Marker::pass() {
  const std::lock_guard lock(mutex_);
  passed_ = true;
  changed_.notify_all();
}

bool Marker::passed() {
  const std::lock_guard lock(mutex_);
  return passed_;
}

void Marker::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return passed_; });
}

Point Event::latest() {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

void Event::record(Point point) {
  const std::lock_guard lock(mutex_);
  std::swap(recorded_, point);  // the former one goes outside the lock
}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    if (const auto current = capture_locked(); current != nullptr && current->began_on(this)) current->abandon();
    closing_ = true;
    changed_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
}

void Stream::enqueue(Work work) {
  const std::lock_guard lock(mutex_);
  if (const auto current = capture_locked()) {
    current->add(branch_, Issue([work = std::move(work)] { return work; }));
  } else {
    push_locked(std::move(work));
  }
}

void Stream::issue(Issue issue) {
  const std::lock_guard lock(mutex_);
  if (const auto current = capture_locked()) {
    current->add(branch_, std::move(issue));
  } else {
    push_locked(issue());
  }
}

Point Stream::record() {
  const std::lock_guard lock(mutex_);
  const auto current = capture_locked();
  if (current == nullptr) return {mark_locked(), nullptr, 0};
  return {nullptr, current, current->add_point(branch_)};
}

void Stream::wait_for(const Point& point) {
  if (!point.given()) return;
  const std::lock_guard lock(mutex_);
  const auto current = capture_locked();
  const auto refuse = [&](const char* why) {
    if (current != nullptr) current->invalidate();
    if (point.capture != nullptr) point.capture->invalidate();
    return Error(ncclUnhandledCudaError, why);
  };
  if (point.capture == nullptr) {
    if (current != nullptr) throw refuse("a capture waits for an event that was recorded outside");
    push_locked([marker = point.marker] { marker->wait(); });
    return;
  }
  if (!point.capture->active()) throw refuse("the event was recorded in a capture that has ended");
  if (current == nullptr) {
    capture_ = point.capture;
    branch_ = capture_->add_branch();
  } else if (current != point.capture) {
    throw refuse("a capture waits for an event of another one");
  }
  capture_->add_wait(branch_, point.index);
}

void Stream::record_external(const std::shared_ptr<Event>& event) {
  const std::lock_guard lock(mutex_);
  if (const auto current = capture_locked()) {
    current->add_external_record(branch_, event);
  } else {
    event->record({mark_locked(), nullptr, 0});
  }
}

void Stream::wait_external(const std::shared_ptr<Event>& event) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto current = capture_locked()) {
      current->add_external_wait(branch_, event);
      return;
    }
  }
  wait_for(event->latest());
}

void Stream::synchronize() {
  if (const auto current = capture()) {
    current->invalidate();
    throw Error(ncclUnhandledCudaError, "the stream captures, so that it cannot be waited for");
  }
  drain();
}

void Stream::drain() {
  std::shared_ptr<Marker> marker;
  {
    const std::lock_guard lock(mutex_);
    if (!worker_.joinable()) return;
    marker = mark_locked();
  }
  marker->wait();
}

void Stream::begin_capture() {
  const std::lock_guard lock(mutex_);
  if (capture_locked() != nullptr) throw Error(ncclUnhandledCudaError, "the stream captures already");
  capture_ = std::make_shared<Capture>(this);
  branch_ = 0;
}

std::unique_ptr<Graph> Stream::end_capture() {
  std::shared_ptr<Capture> ended;
  const std::lock_guard lock(mutex_);
  ended = capture_locked();
  if (ended == nullptr) throw Error(ncclUnhandledCudaError, "the stream does not capture");
  if (!ended->began_on(this)) {
    ended->invalidate();
    throw Error(ncclUnhandledCudaError, "the capture began on another stream");
  }
  capture_.reset();
  return ended->end();
}

int Stream::capture_status() {
  const auto current = capture();
  if (current == nullptr) return ZIPCCL_CAPTURE_NONE;
  return current->invalid() ? ZIPCCL_CAPTURE_INVALIDATED : ZIPCCL_CAPTURE_ACTIVE;
}

unsigned long long Stream::capture_id() {
  const auto current = capture();
  if (current == nullptr) return 0;
  if (current->invalid()) throw Error(ncclUnhandledCudaError, "the capture is spoilt");
  return current->number();
}

std::shared_ptr<Capture> Stream::capture() {
  const std::lock_guard lock(mutex_);
  return capture_locked();
}

std::shared_ptr<Capture> Stream::capture_locked() {
  if (capture_ != nullptr && !capture_->active()) capture_.reset();
  return capture_;
}

std::shared_ptr<Marker> Stream::mark_locked() {
  auto marker = std::make_shared<Marker>();
  push_locked([marker] { marker->pass(); });
  return marker;
}

void Stream::push_locked(Work work) {
  if (!worker_.joinable()) worker_ = std::thread([this] { run(); });
  queue_.push_back(std::move(work));
  changed_.notify_all();
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // what it holds is released outside the lock
    lock.lock();
  }
}

std::shared_ptr<Stream> find_stream(cudaStream_t handle) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (handle == nullptr && all.streams.count(nullptr) == 0) all.streams[nullptr] = std::make_shared<Stream>();
  const auto found = all.streams.find(handle);
  if (found == all.streams.end()) throw Error(ncclUnhandledCudaError, "not a stream of this library");
  return found->second;
}

cudaStream_t create_stream() {
  auto stream = std::make_shared<Stream>();
  const auto handle = reinterpret_cast<cudaStream_t>(stream.get());
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.streams[handle] = std::move(stream);
  return handle;
}

void destroy_stream(cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (handle != nullptr) stream = find_stream(handle);
  if (stream == nullptr) throw Error(ncclUnhandledCudaError, "the default stream cannot be destroyed");
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.streams.erase(handle);
  // `stream` is declared before `lock`, so its destructor waits for the work without the registry's lock.
}

std::vector<std::shared_ptr<Stream>> all_streams() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<std::shared_ptr<Stream>> streams;
  for (const auto& [handle, stream] : all.streams) streams.push_back(stream);
  return streams;
}

}  // namespace standin
