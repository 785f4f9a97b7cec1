#include "test/standin/stream.hpp"

#include <unordered_map>
#include <utility>

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

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
}

void Stream::enqueue(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (!worker_.joinable()) worker_ = std::thread([this] { run(); });
  queue_.push_back(std::move(work));
  changed_.notify_all();
}

std::shared_ptr<Marker> Stream::mark() {
  auto marker = std::make_shared<Marker>();
  enqueue([marker] { marker->pass(); });
  return marker;
}

void Stream::wait_for(std::shared_ptr<Marker> marker) {
  enqueue([marker = std::move(marker)] { marker->wait(); });
}

void Stream::synchronize() {
  {
    const std::lock_guard lock(mutex_);
    if (!worker_.joinable()) return;
  }
  mark()->wait();
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
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
