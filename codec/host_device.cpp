#include "codec/host_device.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <variant>

#include "codec/host_engine.hpp"

namespace zipccl::codec {
namespace {

using Engine = HostEngine<Bf16Traits>;
using Value = Bf16Traits::Value;

struct CopyJob {
  void* destination;
  const void* source;
  std::size_t bytes;
};

struct ClearJob {
  void* pointer;
  std::size_t bytes;
};

struct ReleaseJob {
  HostDevice* device;
  void* pointer;
};

thread_local char last_error_text[96] = "";

struct EncodeAndReceiveJob {
  EncodeJob encode;
  ReceiveJob receive;
};

Status check(const char* function, int result) {
  if (result == 0) {
    return Status::ok;
  }
  std::snprintf(last_error_text, sizeof(last_error_text), "host runtime: %s returned %d", function, result);
  return Status::device_error;
}

// Jobs are validated before they are enqueued, so that running them cannot be refused.
void run(const CopyJob& job) {
  if (job.bytes != 0) {
    std::memmove(job.destination, job.source, job.bytes);
  }
}
void run(const ClearJob& job) { std::memset(job.pointer, 0, job.bytes); }
void run(const ReleaseJob& job) { job.device->release(job.pointer); }
void run(const EncodeJob& job) { static_cast<void>(Engine::encode(job)); }
void run(const DecodeJob& job) { static_cast<void>(Engine::decode(job)); }
void run(const ReceiveJob& job) { static_cast<void>(Engine::receive(job)); }
void run(const EncodeAndReceiveJob& job) {
  run(job.encode);
  run(job.receive);
}
void run(const ObserveJob& job) { static_cast<void>(Engine::observe(job)); }

}  // namespace

struct HostDevice::Job {
  explicit Job(HostDevice* device) : owner(device) {}

  HostDevice* owner;
  std::variant<CopyJob, ClearJob, ReleaseJob, EncodeJob, DecodeJob, ReceiveJob, EncodeAndReceiveJob, ObserveJob> work;
  // What the work's list points to; they keep their room from job to job.
  std::vector<EncodeItem> encode_items;
  std::vector<DecodeItem> decode_items;

  // Takes over copies of lists. Throws if there is no memory for them.
  void take(const CopyJob& job) { work = job; }
  void take(const ClearJob& job) { work = job; }
  void take(const ReleaseJob& job) { work = job; }
  void take(const ObserveJob& job) { work = job; }
  void take(const EncodeJob& job) { work = with_own_list(job); }
  void take(const DecodeJob& job) { work = job; }
  void take(const ReceiveJob& job) { work = with_own_list(job); }
  void take(const EncodeAndReceiveJob& job) {
    work = EncodeAndReceiveJob{with_own_list(job.encode), with_own_list(job.receive)};
  }

 private:
  EncodeJob with_own_list(const EncodeJob& job) {
    EncodeJob own = job;
    own.items = copy(job.items, job.item_count, encode_items);
    return own;
  }
  ReceiveJob with_own_list(const ReceiveJob& job) {
    ReceiveJob own = job;
    own.decode.items = copy(job.decode.items, job.decode.item_count, decode_items);
    return own;
  }
  template <typename Item>
  static const Item* copy(const Item* items, std::uint32_t count, std::vector<Item>& own) {
    if (items == nullptr) {
      return nullptr;
    }
    own.reserve(1);  // an empty list has an address too
    own.assign(items, items + count);
    return own.data();
  }
};

HostDevice::HostDevice(const zipccl_host_runtime_v1* runtime, std::uint64_t total_memory)
    : runtime_(runtime), total_memory_(total_memory) {}

Status HostDevice::create(const zipccl_host_runtime_v1* runtime, std::unique_ptr<HostDevice>* device) {
  if (runtime == nullptr || runtime->version != ZIPCCL_HOST_RUNTIME_VERSION || runtime->size < sizeof(*runtime)) {
    return Status::unsupported;
  }
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) {
    return Status::unsupported;
  }
  const auto memory = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
  std::unique_ptr<HostDevice> created(new (std::nothrow) HostDevice(runtime, memory));
  if (created == nullptr) {
    return Status::out_of_memory;
  }
  for (std::size_t i = 0; i < first_jobs; ++i) {
    if (!created->add_job()) {
      return Status::out_of_memory;
    }
  }
  *device = std::move(created);
  return Status::ok;
}

HostDevice::~HostDevice() {
  const auto idle = [this] {
    const std::lock_guard lock(mutex_);
    return free_jobs_.size() == jobs_.size();
  };
  if (!idle()) {
    static_cast<void>(runtime_->device_synchronize());
  }
}

const char* HostDevice::last_error() const { return last_error_text; }

Status HostDevice::allocate(void** pointer, std::size_t bytes) {
  return runtime_->allocate(pointer, bytes) == 0 ? Status::ok : Status::out_of_memory;
}

void HostDevice::release(void* pointer) { static_cast<void>(runtime_->release(pointer)); }

Status HostDevice::allocate_mapped(void** pointer, std::size_t bytes) {
  const Status status = allocate(pointer, bytes);
  if (status == Status::ok) {
    std::memset(*pointer, 0, bytes);
  }
  return status;
}

void HostDevice::release_mapped(void* pointer) { release(pointer); }

Status HostDevice::clear(void* pointer, std::size_t bytes) {
  std::memset(pointer, 0, bytes);
  return Status::ok;
}

Status HostDevice::allocate_async(void** pointer, std::size_t bytes, Stream) { return allocate(pointer, bytes); }

void HostDevice::release_async(void* pointer, Stream stream) {
  static_cast<void>(enqueue(ReleaseJob{this, pointer}, stream));  // a runtime out of memory keeps it
}

Status HostDevice::clear_async(void* pointer, std::size_t bytes, Stream stream) {
  return enqueue(ClearJob{pointer, bytes}, stream);
}

Status HostDevice::create_event(Event* event) { return check("event_create", runtime_->event_create(event)); }

void HostDevice::destroy_event(Event event) { static_cast<void>(runtime_->event_destroy(event)); }

Status HostDevice::record(Event event, Stream stream) {
  return check("event_record", runtime_->event_record(event, stream));
}

Status HostDevice::query(Event event, bool* done) {
  int finished = 0;
  const Status status = check("event_query", runtime_->event_query(event, &finished));
  if (status == Status::ok) {
    *done = finished != 0;
  }
  return status;
}

Status HostDevice::wait(Event event, Stream stream) {
  return check("stream_wait_event", runtime_->stream_wait_event(stream, event));
}

Status HostDevice::record_external(Event event, Stream stream) {
  return check("event_record_external", runtime_->event_record_external(event, stream));
}

Status HostDevice::wait_external(Event event, Stream stream) {
  return check("stream_wait_event_external", runtime_->stream_wait_event_external(stream, event));
}

Status HostDevice::priority(Stream, int* priority) {
  *priority = 0;
  return Status::ok;
}

Status HostDevice::create_stream(Stream* stream, int) {
  return check("stream_create", runtime_->stream_create(stream));
}

void HostDevice::destroy_stream(Stream stream) { static_cast<void>(runtime_->stream_destroy(stream)); }

Status HostDevice::copy(void* destination, const void* source, std::size_t bytes, Stream stream) {
  return enqueue(CopyJob{destination, source, bytes}, stream);
}

Status HostDevice::capture(Stream stream, std::uint64_t* id) {
  unsigned long long number = 0;
  const Status status = check("stream_capture_id", runtime_->stream_capture_id(stream, &number));
  *id = number;
  return status;
}

Status HostDevice::synchronize() { return check("device_synchronize", runtime_->device_synchronize()); }

Status HostDevice::encode(const EncodeJob& job, Stream stream) {
  const Status status = validate(job, sizeof(Value));
  return status == Status::ok ? enqueue(job, stream) : status;
}

Status HostDevice::decode(const DecodeJob& job, Stream stream) {
  const Status status = validate(job, sizeof(Value));
  return status == Status::ok ? enqueue(job, stream) : status;
}

Status HostDevice::receive(const ReceiveJob& job, Stream stream) {
  const Status status = validate(job, sizeof(Value));
  return status == Status::ok ? enqueue(job, stream) : status;
}

Status HostDevice::encode_and_receive(const EncodeJob& encode, const ReceiveJob& receive, Stream stream) {
  Status status = validate(encode, sizeof(Value));
  if (status == Status::ok) {
    status = validate(receive, sizeof(Value));
  }
  return status == Status::ok ? enqueue(EncodeAndReceiveJob{encode, receive}, stream) : status;
}

Status HostDevice::observe(const ObserveJob& job, Stream stream) {
  const Status status = validate(job, sizeof(Value));
  return status == Status::ok ? enqueue(job, stream) : status;
}

template <typename Work>
Status HostDevice::enqueue(const Work& work, Stream stream) {
  Job* job = take_job();
  if (job == nullptr) {
    return Status::out_of_memory;
  }
  try {
    job->take(work);
  } catch (const std::bad_alloc&) {
    return_job(job);
    return Status::out_of_memory;
  }
  const Status status =
      check("stream_enqueue_owned", runtime_->stream_enqueue_owned(stream, &run_job, &release_job, job));
  if (status != Status::ok) {
    return_job(job);
  }
  return status;
}

HostDevice::Job* HostDevice::take_job() {
  const std::lock_guard lock(mutex_);
  if (free_jobs_.empty() && !add_job()) {
    return nullptr;
  }
  Job* job = free_jobs_.back();
  free_jobs_.pop_back();
  return job;
}

bool HostDevice::add_job() {
  try {
    auto job = std::make_unique<Job>(this);
    free_jobs_.reserve(jobs_.size() + 1);  // so that return_job never allocates
    jobs_.push_back(std::move(job));
    free_jobs_.push_back(jobs_.back().get());
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void HostDevice::return_job(Job* job) {
  const std::lock_guard lock(mutex_);
  free_jobs_.push_back(job);
}

void HostDevice::run_job(void* argument) {
  auto* job = static_cast<Job*>(argument);
  std::visit([](const auto& work) { run(work); }, job->work);
}

void HostDevice::release_job(void* argument) {
  auto* job = static_cast<Job*>(argument);
  job->owner->return_job(job);
}

}  // namespace zipccl::codec
