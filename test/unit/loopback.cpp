#include "test/unit/loopback.hpp"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "codec/host_engine.hpp"

namespace zipccl::test {

namespace {

using collectives::NcclTable;

struct Group {
  int depth = 0;
  std::vector<std::function<void()>> operations;
};
thread_local Group group;

LoopbackRank& rank_of(ncclComm_t handle) { return *reinterpret_cast<LoopbackRank*>(handle); }

void submit(std::function<void()> operation) {
  if (group.depth == 0) {
    operation();
  } else {
    group.operations.push_back(std::move(operation));
  }
}

ncclResult_t group_start() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t group_end() {
  if (--group.depth == 0) {
    for (const auto& operation : group.operations) {
      operation();
    }
    group.operations.clear();
  }
  return ncclSuccess;
}

// Whether this call is the one with the fault.
bool faulty(LoopbackRank& self) {
  const LoopbackWorld& world = *self.world;
  const bool here = self.rank == world.fault_rank || world.fault_rank == LoopbackWorld::every_rank;
  return ++self.calls == world.fault_call && here;
}

void receive_from(LoopbackRank& self, int sender, void* receive, bool corrupt) {
  const LoopbackWorld::Wire& wire = self.world->wires[static_cast<std::size_t>(sender)];
  std::memmove(receive, wire.send, wire.bytes);
  const int faulty = self.world->fault_sender;
  if (corrupt && (faulty == sender || faulty == LoopbackWorld::every_rank) && self.world->fault_byte < wire.bytes) {
    static_cast<std::byte*>(receive)[self.world->fault_byte] ^= std::byte{0xFF};
  }
}

ncclResult_t all_gather(const void* send, void* receive, std::size_t count, ncclDataType_t, ncclComm_t comm,
                        cudaStream_t stream) {
  LoopbackRank& self = rank_of(comm);
  const bool fault = faulty(self);
  if (fault && self.world->fault_result != ncclSuccess) {
    return self.world->fault_result;
  }
  submit([&self, send, receive, count, fault, stream] {
    static_cast<void>(self.device->submit(stream, [&self, send, receive, count, fault](cudaStream_t actual) {
      LoopbackWorld& world = *self.world;
      StreamOrder& order = self.device->order;
      order.step(actual);
      order.reads(send, count, actual);
      order.writes(receive, count * static_cast<std::size_t>(world.rank_count), actual);
      if (self.rank == 0) {
        ++world.gathers;
      }
      world.wires[static_cast<std::size_t>(self.rank)] = {send, count};
      world.barrier.arrive_and_wait();
      for (int sender = 0; sender < world.rank_count; ++sender) {
        std::byte* slot = static_cast<std::byte*>(receive) + static_cast<std::size_t>(sender) * count;
        if (sender == self.rank) {
          std::memmove(slot, send, count);
        } else {
          receive_from(self, sender, slot, fault);
        }
      }
      world.barrier.arrive_and_wait();
      return Status::ok;
    }));
  });
  return ncclSuccess;
}

ncclResult_t broadcast(const void* send, void* receive, std::size_t count, ncclDataType_t, int root, ncclComm_t comm,
                       cudaStream_t) {
  LoopbackRank& self = rank_of(comm);
  const bool fault = faulty(self);
  if (fault && self.world->fault_result != ncclSuccess) {
    return self.world->fault_result;
  }
  submit([&self, send, receive, count, root, fault] {
    LoopbackWorld& world = *self.world;
    if (self.rank == 0) {
      ++world.broadcasts;
    }
    if (self.rank == root) {
      world.wires[static_cast<std::size_t>(root)] = {send, count};
    }
    world.barrier.arrive_and_wait();
    if (self.rank != root) {
      receive_from(self, root, receive, fault);
    }
    world.barrier.arrive_and_wait();
  });
  return ncclSuccess;
}

ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t* error) {
  const LoopbackRank& self = rank_of(comm);
  *error = self.rank == self.world->fault_rank ? self.world->fault_result : ncclSuccess;
  return ncclSuccess;
}

}  // namespace

LoopbackWorld::LoopbackWorld(int ranks) : rank_count(ranks), barrier(ranks), wires(static_cast<std::size_t>(ranks)) {}

const NcclTable& loopback_table() {
  static const NcclTable table = [] {
    NcclTable made;
    made.ncclGroupStart = group_start;
    made.ncclGroupEnd = group_end;
    made.ncclAllGather = all_gather;
    made.ncclBroadcast = broadcast;
    made.ncclCommGetAsyncError = get_async_error;
    return made;
  }();
  return table;
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

void LoopbackDevice::begin_capture(codec::Stream stream) {
  ++capture_;
  capturing_ = {stream};
}

LoopbackDevice::Graph LoopbackDevice::end_capture() {
  capturing_.clear();
  return std::exchange(graph_, {});
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
    graph_.push_back({stream, std::move(work)});
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
  recorded_[event] = captured(stream) ? capture_ : 0;
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
  const bool of_this_capture = !capturing_.empty() && recorded_[event] == capture_;
  if (!of_this_capture && (captured(stream) || recorded_[event] != 0)) {
    return Status::device_error;
  }
  if (of_this_capture) {
    capturing_.insert(stream);
  }
  return submit(stream, [this, key = of_this_capture ? inside(event) : event](codec::Stream actual) {
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
  *id = captured(stream) ? capture_ : 0;
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

Status LoopbackDevice::encode(const codec::EncodeJob& job, codec::Stream stream) {
  const Status status = count();
  return status != Status::ok ? status : submit(stream, [this, job](codec::Stream actual) {
    order.step(actual);
    order.reads(job.values, job.count * sizeof(std::uint16_t), actual);
    order.writes(job.message, codec::Layout::of(job.count, job.pool_fraction).static_bytes, actual);
    order.writes(job.scratch, codec::encode_scratch_bytes, actual);
    order.writes(job.overflow, job.overflow_bytes, actual);
    order.reads(job.sequence_counter, sizeof(*job.sequence_counter), actual);
    order.writes(job.started_ns, sizeof(*job.started_ns), actual);
    return codec::HostEngine<codec::Bf16Traits>::encode(job);
  });
}

void LoopbackDevice::note(const codec::DecodeJob& job, codec::Stream stream) {
  order.reads(job.sequence_counter, sizeof(*job.sequence_counter), stream);
  order.reads(job.messages, job.message_count * job.message_stride, stream);
  order.writes(job.summaries, job.message_count * sizeof(codec::MessageSummary), stream);
  for (std::uint32_t message = 0; message < job.message_count; ++message) {
    if (message != job.skip) {
      order.writes(static_cast<std::byte*>(job.values) + message * job.value_stride, job.count * sizeof(std::uint16_t),
                   stream);
    }
  }
}

Status LoopbackDevice::decode(const codec::DecodeJob& job, codec::Stream stream) {
  const Status status = count();
  return status != Status::ok ? status : submit(stream, [this, job](codec::Stream actual) {
    order.step(actual);
    note(job, actual);
    return codec::HostEngine<codec::Bf16Traits>::decode(job);
  });
}

Status LoopbackDevice::patch(const codec::PatchJob& job, codec::Stream stream) {
  const Status status = count();
  return status != Status::ok ? status : submit(stream, [this, job](codec::Stream actual) {
    order.step(actual);
    note(job.decode, actual);
    order.writes(job.room, job.mailbox_capacity, actual);
    order.writes(job.advance, sizeof(*job.advance), actual);
    order.writes(job.mailbox, sizeof(codec::Mailbox), actual);
    order.writes(job.counters, sizeof(codec::ExchangeCounters), actual);
    order.reads(job.started_ns, sizeof(*job.started_ns), actual);
    return codec::HostEngine<codec::Bf16Traits>::patch(job);
  });
}

Status LoopbackDevice::observe(const codec::ObserveJob& job, codec::Stream) {
  const Status status = codec::HostEngine<codec::Bf16Traits>::observe(job);
  return status == Status::ok ? count() : status;
}

}  // namespace zipccl::test
