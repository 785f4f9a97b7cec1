#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "codec/host_engine.hpp"
#include "codec/job_messages.hpp"
#include "test/unit/loopback.hpp"

namespace zipccl::test {

LoopbackDevice::~LoopbackDevice() {
  for (void* pointer : released_) {
    std::free(pointer);
  }
}

Status LoopbackDevice::count() { return ++operations == fail_at ? Status::device_error : Status::ok; }

Status LoopbackDevice::allocate(void** pointer, std::size_t bytes) {
  if (bytes > memory_limit) {
    return Status::out_of_memory;
  }
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*pointer, 0x5A, bytes);
  ++allocations;
  return Status::ok;
}

void LoopbackDevice::release(void* pointer) {
  --allocations;
  std::free(pointer);
}

Status LoopbackDevice::allocate_async(void** pointer, std::size_t bytes, codec::Stream stream) {
  if (count() != Status::ok) {
    return Status::out_of_memory;
  }
  const Status status = captured(stream) ? Status::device_error : allocate(pointer, bytes);
  if (status == Status::ok) {
    grown_[*pointer] = bytes;
  }
  return status;
}

// The device's own stream is for memory that nothing uses.
void LoopbackDevice::release_async(void* pointer, codec::Stream stream) {
  const auto found = grown_.find(pointer);
  if (stream != own_stream()) {
    order.releases(pointer, found->second, stream);
  }
  grown_.erase(found);
  released_.push_back(pointer);
  --allocations;
}

Status LoopbackDevice::clear_async(void* pointer, std::size_t bytes, codec::Stream stream) {
  const Status status = count();
  return status != Status::ok ? status : submit(stream, [=, this](codec::Stream actual) {
    order.step(actual);
    order.writes(pointer, bytes, actual);
    return clear(pointer, bytes);
  });
}

Status LoopbackDevice::allocate_mapped(void** pointer, std::size_t bytes) {
  if (const Status status = allocate(pointer, bytes); status != Status::ok) {
    return status;
  }
  return clear(*pointer, bytes);
}

Status LoopbackDevice::clear(void* pointer, std::size_t bytes) {
  std::memset(pointer, 0, bytes);
  return Status::ok;
}

Status LoopbackDevice::create_stream(codec::Stream* stream, int) {
  void* memory = nullptr;
  const Status status = allocate(&memory, 1);
  *stream = static_cast<codec::Stream>(memory);
  return status;
}

Status LoopbackDevice::create_event(codec::Event* event) { return allocate(event, 1); }

std::uint64_t LoopbackDevice::capture_of(codec::Stream stream) const {
  const auto found = capturing_.find(stream);
  return found != capturing_.end() ? found->second : 0;
}

void LoopbackDevice::begin_capture(codec::Stream stream) {
  capturing_[stream] = ++captures_;
  graphs_[captures_] = {};
}

LoopbackDevice::Graph LoopbackDevice::end_capture(codec::Stream stream) {
  const auto graph = graphs_.extract(capture_of(stream));
  std::erase_if(capturing_, [&](const auto& entry) { return entry.second == graph.key(); });
  return graph.mapped();
}

Status LoopbackDevice::launch(const Graph& graph, codec::Stream stream) {
  std::map<codec::Stream, codec::Stream> streams;
  Status status = Status::ok;
  order.begin_launch();
  for (const Node& node : graph) {
    codec::Stream& own = streams[node.stream];
    if (own == nullptr) {
      own = reinterpret_cast<codec::Stream>(++launch_streams_);
      order.order(stream, own);
    }
    const Status done = node.work(own);
    status = status == Status::ok ? done : status;
  }
  for (const auto& [captured, own] : streams) {
    order.order(own, stream);
  }
  return status;
}

Status LoopbackDevice::submit(codec::Stream stream, Work work) {
  if (captured(stream)) {
    graphs_[capture_of(stream)].push_back({stream, std::move(work)});
    return Status::ok;
  }
  return work(stream);
}

namespace {

// What an event stands for within a capture is apart from what it stands for outside.
codec::Event inside(codec::Event event) { return static_cast<std::byte*>(event) + 1; }

}  // namespace

Status LoopbackDevice::record(codec::Event event, codec::Stream stream) {
  if (const Status status = count(); status != Status::ok) {
    return status;
  }
  recorded_[event] = capture_of(stream);
  const codec::Event key = captured(stream) ? inside(event) : event;
  return submit(stream, [this, key](codec::Stream actual) {
    order.record(key, actual);
    return Status::ok;
  });
}

Status LoopbackDevice::wait(codec::Event event, codec::Stream stream) {
  if (const Status status = count(); status != Status::ok) {
    return status;
  }
  const std::uint64_t recorded = recorded_[event];
  const bool joins = graphs_.contains(recorded);  // a capture that goes on
  if (joins ? captured(stream) && capture_of(stream) != recorded : captured(stream) || recorded != 0) {
    return Status::device_error;
  }
  if (joins) {
    capturing_[stream] = recorded;
  }
  return submit(stream, [this, key = joins ? inside(event) : event](codec::Stream actual) {
    order.wait(key, actual);
    return Status::ok;
  });
}

Status LoopbackDevice::record_external(codec::Event event, codec::Stream stream) {
  const Status status = captured(stream) ? count() : Status::device_error;
  return status != Status::ok ? status : submit(stream, [this, event](codec::Stream actual) {
    order.record(event, actual);
    return Status::ok;
  });
}

Status LoopbackDevice::wait_external(codec::Event event, codec::Stream stream) {
  const Status status = captured(stream) ? count() : Status::device_error;
  return status != Status::ok ? status : submit(stream, [this, event](codec::Stream actual) {
    order.wait_before_launch(event, actual);
    return Status::ok;
  });
}

Status LoopbackDevice::capture(codec::Stream stream, std::uint64_t* id) {
  *id = capture_of(stream);
  return Status::ok;
}

Status LoopbackDevice::query(codec::Event, bool* done) {
  *done = !never_done;
  return Status::ok;
}

Status LoopbackDevice::copy(void* destination, const void* source, std::size_t bytes, codec::Stream stream) {
  const Status status = count();
  return status != Status::ok ? status : submit(stream, [=, this](codec::Stream actual) {
    std::memcpy(destination, source, bytes);
    order.step(actual);
    order.reads(source, bytes, actual);
    order.writes(destination, bytes, actual);
    return Status::ok;
  });
}

namespace {

// Jobs whose lists are their own.
template <typename Job, typename Item>
Job with_list(Job job, const std::vector<Item>& items) {
  job.items = job.items != nullptr ? items.data() : nullptr;
  return job;
}
template <typename Item>
std::vector<Item> copy_of(const Item* items, std::uint32_t count) {
  std::vector<Item> own;
  own.reserve(count + 1);  // an empty list has an address too
  own.assign(items, items + count);
  return own;
}

}  // namespace

Status LoopbackDevice::encode(const codec::EncodeJob& given, codec::Stream stream) {
  const Status status = count();
  return status != Status::ok
             ? status
             : submit(stream, [this, given, items = copy_of(given.items, given.item_count)](codec::Stream actual) {
                 const codec::EncodeJob job = with_list(given, items);
                 order.step(actual);
                 note(job, actual);
                 return codec::HostEngine<codec::Bf16Traits>::encode(job);
               });
}

void LoopbackDevice::note(const codec::EncodeJob& job, codec::Stream stream) {
  const std::uint32_t messages = codec::message_total(job);
  for (std::uint32_t index = 0; index < messages; ++index) {
    const codec::EncodeItem item = codec::message_of(job, index);
    order.reads(item.values, item.count * sizeof(std::uint16_t), stream);
    order.writes(item.message, codec::Layout::of(item.count, job.pool_fraction).static_bytes, stream);
  }
  order.writes(job.scratch, std::min(messages, codec::encode_scratch_messages) * codec::encode_scratch_bytes, stream);
  order.writes(job.overflow, job.overflow_bytes, stream);
  order.reads(job.sequence_counter, sizeof(*job.sequence_counter), stream);
  order.writes(job.message_counter, sizeof(*job.message_counter), stream);
  order.writes(job.started_ns, sizeof(*job.started_ns), stream);
  order.writes(job.header_copy, sizeof(*job.header_copy), stream);
}

void LoopbackDevice::note(const codec::DecodeJob& job, const codec::MessageHeader* own_header, codec::Stream stream) {
  order.reads(job.sequence_counter, sizeof(*job.sequence_counter), stream);
  for (std::uint32_t index = 0; index < codec::message_total(job); ++index) {
    const codec::DecodeItem item = codec::message_of(job, index);
    const bool own = codec::is_skipped(job, index);
    if (own && own_header != nullptr) {
      order.reads(own_header, sizeof(*own_header), stream);
    } else {
      order.reads(item.message, codec::Layout::of(item.count, job.pool_fraction).static_bytes, stream);
    }
    if (!own) {
      order.writes(item.values, item.count * sizeof(std::uint16_t), stream);
    }
  }
  order.writes(job.summaries, codec::message_total(job) * sizeof(codec::MessageSummary), stream);
}

Status LoopbackDevice::decode(const codec::DecodeJob& given, codec::Stream stream) {
  const Status status = count();
  if (status != Status::ok) {
    return status;
  }
  ++decodes;
  return submit(stream, [this, job = given](codec::Stream actual) {
    order.step(actual);
    note(job, nullptr, actual);
    return codec::HostEngine<codec::Bf16Traits>::decode(job);
  });
}

Status LoopbackDevice::receive(const codec::ReceiveJob& given, codec::Stream stream) {
  const Status status = count();
  if (status != Status::ok) {
    return status;
  }
  decodes += codec::message_total(given.decode) == 0 ? 0 : 1;
  const auto run = [this, given, items = copy_of(given.decode.items, given.decode.item_count)](codec::Stream actual) {
    codec::ReceiveJob job = given;
    job.decode = with_list(given.decode, items);
    order.step(actual);
    note(job, actual);
    return codec::HostEngine<codec::Bf16Traits>::receive(job);
  };
  return submit(stream, run);
}

void LoopbackDevice::note(const codec::ReceiveJob& job, codec::Stream stream) {
  note(job.decode, job.own_header, stream);
  order.writes(job.room, job.mailbox_capacity, stream);
  order.writes(job.advance, sizeof(*job.advance), stream);
  order.writes(job.mailbox, sizeof(codec::Mailbox), stream);
  order.writes(job.counters, sizeof(codec::ExchangeCounters), stream);
  order.reads(job.started_ns, sizeof(*job.started_ns), stream);
}

Status LoopbackDevice::encode_and_receive(const codec::EncodeJob& encode, const codec::ReceiveJob& receive,
                                          codec::Stream stream) {
  const Status status = count();
  if (status != Status::ok) {
    return status;
  }
  decodes += codec::message_total(receive.decode) == 0 ? 0 : 1;
  ++together;
  const auto run = [this, encode, receive, encodes = copy_of(encode.items, encode.item_count),
                    decodes = copy_of(receive.decode.items, receive.decode.item_count)](codec::Stream actual) {
    const codec::EncodeJob first = with_list(encode, encodes);
    codec::ReceiveJob second = receive;
    second.decode = with_list(receive.decode, decodes);
    const codec::Stream beside = order.fork(actual);
    order.step(actual);
    note(first, actual);
    order.step(beside);
    note(second, beside);
    order.join(beside, actual);
    const Status encoded = codec::HostEngine<codec::Bf16Traits>::encode(first);
    return encoded == Status::ok ? codec::HostEngine<codec::Bf16Traits>::receive(second) : encoded;
  };
  return submit(stream, run);
}

Status LoopbackDevice::observe(const codec::ObserveJob& job, codec::Stream) {
  const Status status = codec::HostEngine<codec::Bf16Traits>::observe(job);
  return status == Status::ok ? count() : status;
}

Status LoopbackDevice::pause(std::uint32_t, codec::Stream stream) {
  const Status status = count();
  if (status != Status::ok) {
    return status;
  }
  ++pauses;
  return submit(stream, [this](codec::Stream actual) {
    order.step(actual);
    return Status::ok;
  });
}

}  // namespace zipccl::test
