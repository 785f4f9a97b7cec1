#include "test/unit/loopback.hpp"

#include <cstdlib>
#include <cstring>
#include <functional>

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
  return ++self.calls == world.fault_call && self.rank == world.fault_rank;
}

void receive_from(LoopbackRank& self, int sender, void* receive, bool corrupt) {
  const LoopbackWorld::Wire& wire = self.world->wires[static_cast<std::size_t>(sender)];
  std::memmove(receive, wire.send, wire.bytes);
  if (corrupt && sender == 0 && self.world->fault_byte < wire.bytes) {
    static_cast<std::byte*>(receive)[self.world->fault_byte] ^= std::byte{0xFF};
  }
}

ncclResult_t all_gather(const void* send, void* receive, std::size_t count, ncclDataType_t, ncclComm_t comm,
                        cudaStream_t) {
  LoopbackRank& self = rank_of(comm);
  const bool fault = faulty(self);
  if (fault && self.world->fault_result != ncclSuccess) {
    return self.world->fault_result;
  }
  submit([&self, send, receive, count, fault] {
    LoopbackWorld& world = *self.world;
    if (self.rank == 0) {
      ++world.gathers;
    }
    world.wires[static_cast<std::size_t>(self.rank)] = {send, count};
    world.barrier.arrive_and_wait();
    for (int sender = 0; sender < world.rank_count; ++sender) {
      if (sender != self.rank) {
        receive_from(self, sender, static_cast<std::byte*>(receive) + static_cast<std::size_t>(sender) * count, fault);
      }
    }
    world.barrier.arrive_and_wait();
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

Status LoopbackDevice::create_event(codec::Event* event) { return allocate(event, 1); }

void LoopbackDevice::destroy_event(codec::Event event) { release(event); }

Status LoopbackDevice::query(codec::Event, bool* done) {
  *done = !never_done;
  return Status::ok;
}

Status LoopbackDevice::copy(void* destination, const void* source, std::size_t bytes, codec::Stream) {
  std::memcpy(destination, source, bytes);
  return count();
}

Status LoopbackDevice::capturing(codec::Stream, bool* active) {
  *active = false;
  return Status::ok;
}

Status LoopbackDevice::encode(const codec::EncodeJob& job, codec::Stream) {
  const Status status = codec::HostEngine<codec::Bf16Traits>::encode(job);
  return status == Status::ok ? count() : status;
}

Status LoopbackDevice::decode(const codec::DecodeJob& job, codec::Stream) {
  const Status status = codec::HostEngine<codec::Bf16Traits>::decode(job);
  return status == Status::ok ? count() : status;
}

Status LoopbackDevice::patch(const codec::PatchJob& job, codec::Stream) {
  const Status status = codec::HostEngine<codec::Bf16Traits>::patch(job);
  return status == Status::ok ? count() : status;
}

Status LoopbackDevice::observe(const codec::ObserveJob& job, codec::Stream) {
  const Status status = codec::HostEngine<codec::Bf16Traits>::observe(job);
  return status == Status::ok ? count() : status;
}

}  // namespace zipccl::test
