// The exported host runtime: a table of functions over streams and events.
#include <cstdlib>
#include <memory>
#include <mutex>

#include "test/standin/capture.hpp"
#include "test/standin/error.hpp"
#include "test/standin/stream.hpp"

namespace standin {
namespace {

constexpr std::size_t allocation_alignment = 256;

// What an event's handle points to.
struct EventHandle {
  std::shared_ptr<Event> event = std::make_shared<Event>();
};

const std::shared_ptr<Event>& event_of(void* handle) { return static_cast<EventHandle*>(handle)->event; }

// Throws if the event's latest record is part of a capture.
std::shared_ptr<Marker> latest_marker(void* handle) {
  const Point latest = event_of(handle)->latest();
  if (latest.capture != nullptr) {
    latest.capture->invalidate();
    throw Error(ncclUnhandledCudaError, "the event was last recorded within a capture");
  }
  return latest.marker;
}

// Enqueued work that owns its argument.
class OwnedWork {
 public:
  OwnedWork(void (*function)(void*), void (*release)(void*), void* argument)
      : function_(function), release_(release), argument_(argument) {}
  ~OwnedWork() {
    if (given_) release_(argument_);
  }
  OwnedWork(const OwnedWork&) = delete;
  OwnedWork& operator=(const OwnedWork&) = delete;

  void run() const { function_(argument_); }
  void give_up() { given_ = false; }

 private:
  void (*function_)(void*);
  void (*release_)(void*);
  void* argument_;
  bool given_ = true;
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
  return guarded([&] { *event = new EventHandle; });
}

int event_destroy(void* event) {
  delete static_cast<EventHandle*>(event);
  return 0;
}

int event_record(void* event, CUstream_st* stream) {
  return guarded([&] { event_of(event)->record(find_stream(stream)->record()); });
}

int event_query(void* event, int* done) {
  return guarded([&] {
    const auto marker = latest_marker(event);
    *done = marker == nullptr || marker->passed() ? 1 : 0;
  });
}

int event_synchronize(void* event) {
  return guarded([&] {
    if (const auto marker = latest_marker(event)) marker->wait();
  });
}

int stream_wait_event(CUstream_st* stream, void* event) {
  return guarded([&] { find_stream(stream)->wait_for(event_of(event)->latest()); });
}

int device_synchronize() {
  return guarded([] {
    for (const auto& stream : all_streams()) stream->drain();
  });
}

int stream_capture_begin(CUstream_st* stream) {
  return guarded([&] {
    if (stream == nullptr) throw Error(ncclUnhandledCudaError, "the default stream cannot capture");
    find_stream(stream)->begin_capture();
  });
}

int stream_capture_end(CUstream_st* stream, void** graph) {
  return guarded([&] {
    *graph = nullptr;
    *graph = find_stream(stream)->end_capture().release();
  });
}

int stream_capture_status(CUstream_st* stream, int* status) {
  return guarded([&] { *status = find_stream(stream)->capture_status(); });
}

int stream_capture_id(CUstream_st* stream, unsigned long long* id) {
  return guarded([&] { *id = find_stream(stream)->capture_id(); });
}

int graph_launch(void* graph, CUstream_st* stream) {
  return guarded([&] { static_cast<Graph*>(graph)->launch(find_stream(stream).get()); });
}

int graph_destroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return 0;
}

int event_record_external(void* event, CUstream_st* stream) {
  return guarded([&] { find_stream(stream)->record_external(event_of(event)); });
}

int stream_wait_event_external(CUstream_st* stream, void* event) {
  return guarded([&] { find_stream(stream)->wait_external(event_of(event)); });
}

int stream_enqueue_owned(CUstream_st* stream, void (*function)(void*), void (*release)(void*), void* argument) {
  return guarded([&] {
    const auto target = find_stream(stream);
    const auto work = std::make_shared<OwnedWork>(function, release, argument);
    try {
      target->enqueue([work] { work->run(); });
    } catch (...) {
      work->give_up();
      throw;
    }
  });
}

}  // namespace
}  // namespace standin

extern "C" const zipccl_host_runtime_v1 zipccl_host_runtime = {
    .version = ZIPCCL_HOST_RUNTIME_VERSION,
    .size = sizeof(zipccl_host_runtime_v1),
    .allocate = standin::allocate,
    .release = standin::release,
    .stream_create = standin::stream_create,
    .stream_destroy = standin::stream_destroy,
    .stream_synchronize = standin::stream_synchronize,
    .stream_enqueue = standin::stream_enqueue,
    .event_create = standin::event_create,
    .event_destroy = standin::event_destroy,
    .event_record = standin::event_record,
    .event_query = standin::event_query,
    .event_synchronize = standin::event_synchronize,
    .stream_wait_event = standin::stream_wait_event,
    .device_synchronize = standin::device_synchronize,
    .stream_capture_begin = standin::stream_capture_begin,
    .stream_capture_end = standin::stream_capture_end,
    .stream_capture_status = standin::stream_capture_status,
    .graph_launch = standin::graph_launch,
    .graph_destroy = standin::graph_destroy,
    .event_record_external = standin::event_record_external,
    .stream_wait_event_external = standin::stream_wait_event_external,
    .stream_enqueue_owned = standin::stream_enqueue_owned,
    .stream_capture_id = standin::stream_capture_id,
};
