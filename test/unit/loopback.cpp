#include "test/unit/loopback.hpp"

#include <cstring>
#include <functional>
#include <utility>

namespace zipccl::test {

namespace {

using collectives::NcclTable;

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  LoopbackRank* rank = nullptr;  // of its sends and receives
  std::vector<std::function<void()>> operations;
  std::vector<std::function<void()>> receives;  // they wait, and come last
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

// Whether this call is the one with the fault.
bool faulty(LoopbackRank& self) {
  const LoopbackWorld& world = *self.world;
  const bool here = self.rank == world.fault_rank || world.fault_rank == LoopbackWorld::every_rank;
  return ++self.calls == world.fault_call && here;
}

ncclResult_t group_end() {
  if (--group.depth > 0) {
    return ncclSuccess;
  }
  const Group ended = std::exchange(group, {});
  if (ended.error != ncclSuccess) {
    return ended.error;
  }
  if (ended.rank != nullptr && faulty(*ended.rank) && ended.rank->world->fault_result != ncclSuccess) {
    return ended.rank->world->fault_result;
  }
  for (const auto* operations : {&ended.operations, &ended.receives}) {
    for (const auto& operation : *operations) {
      operation();
    }
  }
  return ncclSuccess;
}

// NCCL drops a group in which a call failed.
ncclResult_t fail(ncclResult_t result) {
  group.error = group.depth > 0 ? result : ncclSuccess;
  return result;
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
    return fail(self.world->fault_result);
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
        world.gathers_on_default_stream += actual == nullptr ? 1 : 0;
      }
      world.wires[static_cast<std::size_t>(self.rank)] = {send, count};
      world.barrier.arrive_and_wait();
      for (int sender = 0; sender < world.rank_count; ++sender) {
        std::byte* slot = static_cast<std::byte*>(receive) + static_cast<std::size_t>(sender) * count;
        if (sender != self.rank) {
          receive_from(self, sender, slot, fault);
        } else if (slot != send) {  // which the others read at the same time
          std::memmove(slot, send, count);
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
    return fail(self.world->fault_result);
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

ncclResult_t send(const void* buffer, std::size_t bytes, ncclDataType_t, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  LoopbackRank& self = rank_of(comm);
  if (faulty(self) && self.world->fault_result != ncclSuccess) {
    return fail(self.world->fault_result);
  }
  group.rank = group.depth > 0 ? &self : nullptr;
  submit([=, &self] {
    static_cast<void>(self.device->submit(stream, [=, &self](cudaStream_t actual) {
      StreamOrder& order = self.device->order;
      order.step(actual);
      order.reads(buffer, bytes, actual);
      const auto* first = static_cast<const std::byte*>(buffer);
      self.world->put(self.rank, peer, {first, first + bytes});
      return Status::ok;
    }));
  });
  return ncclSuccess;
}

ncclResult_t receive(void* buffer, std::size_t bytes, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  LoopbackRank& self = rank_of(comm);
  const bool fault = faulty(self);
  if (fault && self.world->fault_result != ncclSuccess) {
    return fail(self.world->fault_result);
  }
  group.rank = group.depth > 0 ? &self : nullptr;
  auto operation = [=, &self] {
    static_cast<void>(self.device->submit(stream, [=, &self](cudaStream_t actual) {
      StreamOrder& order = self.device->order;
      order.step(actual);
      order.writes(buffer, bytes, actual);
      LoopbackWorld::Message message = self.world->take(peer, self.rank);
      if (fault) {
        message.at(self.world->fault_byte) ^= std::byte{0xFF};
      }
      if (message.size() != bytes) {
        return Status::invalid_argument;  // shows as an output that is wrong
      }
      std::memcpy(buffer, message.data(), bytes);
      return Status::ok;
    }));
  };
  if (group.depth > 0) {
    group.receives.push_back(std::move(operation));
  } else {
    operation();
  }
  return ncclSuccess;
}

ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t* error) {
  const LoopbackRank& self = rank_of(comm);
  *error = self.rank == self.world->fault_rank ? self.world->fault_result : ncclSuccess;
  return ncclSuccess;
}

}  // namespace

LoopbackWorld::LoopbackWorld(int ranks) : rank_count(ranks), barrier(ranks), wires(static_cast<std::size_t>(ranks)) {}

void LoopbackWorld::put(int sender, int receiver, Message message) {
  const std::lock_guard lock(mutex_);
  messages_[{sender, receiver}].push_back(std::move(message));
  arrived_.notify_all();
}

LoopbackWorld::Message LoopbackWorld::take(int sender, int receiver) {
  std::unique_lock lock(mutex_);
  auto& queue = messages_[{sender, receiver}];
  arrived_.wait(lock, [&] { return !queue.empty(); });
  Message message = std::move(queue.front());
  queue.pop_front();
  return message;
}

std::size_t LoopbackWorld::in_flight() {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [pair, queue] : messages_) {
    count += queue.size();
  }
  return count;
}

const NcclTable& loopback_table() {
  static const NcclTable table = [] {
    NcclTable made;
    made.ncclGroupStart = group_start;
    made.ncclGroupEnd = group_end;
    made.ncclAllGather = all_gather;
    made.ncclBroadcast = broadcast;
    made.ncclSend = send;
    made.ncclRecv = receive;
    made.ncclCommGetAsyncError = get_async_error;
    return made;
  }();
  return table;
}

}  // namespace zipccl::test
