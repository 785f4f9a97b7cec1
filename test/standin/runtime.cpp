// The exported host runtime: a table of functions over streams and events.
#include <cstdlib>
#include <memory>
#include <mutex>

#include "test/standin/error.hpp"
#include "test/standin/stream.hpp"

namespace standin {
namespace {

constexpr std::size_t allocation_alignment = 256;

struct Event {
  std::mutex mutex;
  std::shared_ptr<Marker> recorded;  // null before the first record

  std::shared_ptr<Marker> latest() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
};

template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.code();
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return ncclSystemError;
  }
}

int allocate(void** pointer, size_t bytes) {
  return guarded([&] {
    const std::size_t rounded = (bytes + allocation_alignment - 1) / allocation_alignment * allocation_alignment;
    *pointer = std::aligned_alloc(allocation_alignment, rounded == 0 ? allocation_alignment : rounded);
    if (*pointer == nullptr) throw std::bad_alloc();
  });
}

int release(void* pointer) {
  std::free(pointer);
  return 0;
}

int stream_create(CUstream_st** stream) {
  return guarded([&] { *stream = create_stream(); });
}

int stream_destroy(CUstream_st* stream) {
  return guarded([&] { destroy_stream(stream); });
}

int stream_synchronize(CUstream_st* stream) {
  return guarded([&] { find_stream(stream)->synchronize(); });
}

int stream_enqueue(CUstream_st* stream, void (*function)(void*), void* argument) {
  return guarded([&] { find_stream(stream)->enqueue([=] { function(argument); }); });
}

int event_create(void** event) {
  return guarded([&] { *event = new Event; });
}

int event_destroy(void* event) {
  delete static_cast<Event*>(event);
  return 0;
}

int event_record(void* event, CUstream_st* stream) {
  return guarded([&] {
    auto marker = find_stream(stream)->mark();
    Event& target = *static_cast<Event*>(event);
    const std::lock_guard lock(target.mutex);
    target.recorded = std::move(marker);
  });
}

int event_query(void* event, int* done) {
  return guarded([&] {
    const auto marker = static_cast<Event*>(event)->latest();
    *done = marker == nullptr || marker->passed() ? 1 : 0;
  });
}

int event_synchronize(void* event) {
  return guarded([&] {
    if (const auto marker = static_cast<Event*>(event)->latest()) marker->wait();
  });
}

int stream_wait_event(CUstream_st* stream, void* event) {
  return guarded([&] {
    if (auto marker = static_cast<Event*>(event)->latest()) find_stream(stream)->wait_for(std::move(marker));
  });
}

int device_synchronize() {
  return guarded([] {
    for (const auto& stream : all_streams()) stream->synchronize();
  });
}

}  // namespace
}  // namespace standin

extern "C" const zipccl_host_runtime_v1 zipccl_host_runtime = {
    ZIPCCL_HOST_RUNTIME_VERSION, sizeof(zipccl_host_runtime_v1), standin::allocate,           standin::release,
    standin::stream_create,      standin::stream_destroy,        standin::stream_synchronize, standin::stream_enqueue,
    standin::event_create,       standin::event_destroy,         standin::event_record,       standin::event_query,
    standin::event_synchronize,  standin::stream_wait_event,     standin::device_synchronize,
};
