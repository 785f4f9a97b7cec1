#include "interpose/transfer_call.hpp"

#include <utility>
#include <vector>

#include "interpose/callers.hpp"
#include "interpose/compressed_calls.hpp"
#include "interpose/dtypes.hpp"
#include "interpose/log.hpp"
#include "interpose/real_nccl.hpp"
#include "interpose/report.hpp"

namespace zipccl::interpose {

namespace {

using collectives::Collective;
using collectives::Outcome;
using collectives::Route;
using collectives::Transfer;
using collectives::TransferGroup;

// A group's operations, one TransferGroup for each communicator.
class Batch final : public EligibleCalls::Batch {
 public:
  explicit Batch(std::span<const EligibleTransfer> calls) : callers_(calls) {
    places_.reserve(calls.size());
    for (const EligibleTransfer& call : calls) {
      const std::size_t group = group_of(call);
      places_.push_back({group, groups_[group].transfers.add(call.transfer)});
    }
  }

  ncclResult_t before() override {
    const RealCall scope;
    return for_each([](TransferGroup& transfers) { return transfers.encode(); });
  }

  ncclResult_t issue(std::size_t index) override {
    const Place place = places_[index];
    Group& group = groups_[place.group];
    const Outcome outcome = group.transfers.issue(place.index);
    log(group, outcome);
    return outcome.result;
  }

  ncclResult_t after(ncclResult_t group_result, bool dropped) override {
    const RealCall scope;
    ncclResult_t result = group_result;
    if (result == ncclSuccess) {
      result = for_each([](TransferGroup& transfers) { return transfers.decode(); });
    } else if (!dropped) {
      note(groups_.front(), Outcome::of(result));
    }
    for (Group& group : groups_) {
      if (dropped && group.outcome.ok()) {
        group.transfers.drop();
      } else if (result != ncclSuccess) {  // also where it went well: the real group may have run or not
        group.transfers.abandon(group.outcome.ok() ? Outcome::of(result) : group.outcome);
      }
    }
    report::tick();
    return result;
  }

 private:
  struct Group {
    TransferGroup transfers;
    const CommState* owner;
    Outcome outcome;  // of encode or decode
  };
  struct Place {
    std::size_t group;
    std::size_t index;
  };

  std::size_t group_of(const EligibleTransfer& call) {
    for (std::size_t index = 0; index < groups_.size(); ++index) {
      if (groups_[index].owner == call.owner.get()) {
        return index;
      }
    }
    groups_.push_back({TransferGroup(call.owner->communicator), call.owner.get(), {}});
    return groups_.size() - 1;
  }

  template <typename Step>
  ncclResult_t for_each(Step step) {
    for (Group& group : groups_) {
      // One that throws has begun and must be abandoned as one that fails.
      const Outcome outcome = collectives::attempt([&] { return step(group.transfers); });
      if (const ncclResult_t result = note(group, outcome); result != ncclSuccess) {
        return result;
      }
    }
    return ncclSuccess;
  }

  static ncclResult_t note(Group& group, const Outcome& outcome) {
    group.outcome = outcome;
    log(group, outcome);
    return outcome.result;
  }

  static void log(const Group& group, const Outcome& outcome) {
    if (outcome.status != Status::ok) {
      log_failure(*group.owner, "sends and receives", outcome);
    }
  }

  Callers callers_;
  std::vector<Group> groups_;
  std::vector<Place> places_;
};

void count_native(CommState& state, Collective kind, std::uint64_t bytes, Route route) {
  state.statistics.bucket(kind, bytes).calls[static_cast<std::size_t>(route)].fetch_add(1, std::memory_order_relaxed);
  report::tick();
}

template <typename Native>
ncclResult_t issue_natively(ncclComm_t comm, cudaStream_t stream, Native native) {
  if (Group::recording()) {
    return Group::add(NativeCall{std::move(native), comm, stream});
  }
  const RealCall scope;
  return native(RealNccl::get().table(), stream);
}

ncclResult_t invalid(const char* function, const char* why) {
  log::write(LogLevel::warn, "%s: %s", function, why);
  if (Group::recording()) {
    Group::poison(ncclInvalidArgument);
  }
  return ncclInvalidArgument;
}

// For a call that would go compressed: what NCCL would refuse, and a group that was opened before the communicator was
// there, which nothing compressed can join.
ncclResult_t check(const char* function, bool buffers, const CommState& state) {
  if (!buffers) {
    return invalid(function, "a buffer is null");
  }
  if (Group::open() && !Group::recording()) {
    log::write(LogLevel::error, "%s: communicator %s became ready after this group had been opened", function,
               state.name.c_str());
    return ncclInvalidUsage;
  }
  return ncclSuccess;
}

// A lone operation is a group of one, but needs no real group around it.
ncclResult_t run_alone(const EligibleTransfer& call) {
  const std::unique_ptr<EligibleCalls::Batch> batch = make_transfer_batch({&call, 1});
  ncclResult_t result = batch->before();
  if (result == ncclSuccess) {
    const RealCall scope;
    result = batch->issue(0);
  }
  const bool dropped = result != ncclSuccess;
  result = batch->after(result, dropped);
  if (dropped) {
    note_dropped_calls(*call.owner);
  }
  return result;
}

// Whether the communicator's point to point may be compressed at all; both ends of a pair then count what passes.
bool counts_transfers(const CommState& state, int peer) {
  const collectives::Communicator& communicator = state.communicator;
  return state.active() && communicator.agreement.point_to_point && peer >= 0 && peer < communicator.rank_count &&
         peer != communicator.rank && collectives::compresses_link(communicator, peer);
}

template <typename Native>
ncclResult_t transfer(const char* function, Transfer operation, ncclDataType_t dtype, ncclComm_t comm, Native native) {
  CommPointer state = CommTable::instance().find(comm);
  operation.call_bytes = operation.count * bytes_of(dtype);
  const bool buffer = operation.send != nullptr || operation.receive != nullptr;
  // What a group would be dropped for must show before any of its calls begin, as the ranks count them.
  if (Group::recording() && state != nullptr && state->active()) {
    if (operation.peer < 0 || operation.peer >= state->communicator.rank_count) {
      return invalid(function, "the peer is not a rank of the communicator");
    }
  }
  if (state == nullptr || !counts_transfers(*state, operation.peer)) {
    if (state != nullptr) {
      const Route route = state->active()
                              ? collectives::route_transfer(state->communicator, operation.peer, operation.count, dtype)
                              : Route::closed;
      count_native(*state, operation.kind, operation.call_bytes, route);
    }
    return issue_natively(comm, operation.stream, std::move(native));
  }
  if (!buffer && operation.count > 0) {
    return invalid(function, "a buffer is null");
  }
  operation.communicator = &state->communicator;
  EligibleTransfer call{operation, dtype, std::move(state)};
  if (Group::recording()) {
    return Group::add(std::move(call));
  }
  return run_or_drop(*call.owner, [&] {
    bool compressed = false;
    if (const ncclResult_t begun = begin_transfer(&call, &compressed); begun != ncclSuccess) {
      return begun;
    }
    if (!compressed) {
      return note_refused(*call.owner, issue_natively(comm, operation.stream, std::move(native)));
    }
    const ncclResult_t wrong = check(function, buffer, *call.owner);
    if (wrong != ncclSuccess) {
      note_dropped_calls(*call.owner);
    }
    return wrong == ncclSuccess ? run_alone(call) : wrong;
  });
}

std::size_t offset_of(const EligibleAllToAll& call, int peer) {
  return static_cast<std::size_t>(peer) * call.count * bytes_of(call.dtype);
}

}  // namespace

ncclResult_t EligibleAllToAll::run_natively(const NcclTable& nccl) const {
  return all_to_all_natively(nccl, send, receive, count, dtype, owner->communicator.handle, stream);
}

ncclResult_t all_to_all_natively(const NcclTable& nccl, const void* send, void* receive, std::size_t count,
                                 ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream) {
  if (RealNccl::get().has(&NcclTable::ncclAlltoAll)) {
    return nccl.ncclAlltoAll(send, receive, count, dtype, comm, stream);
  }
  int ranks = 0;
  if (const ncclResult_t asked = nccl.ncclCommCount(comm, &ranks); asked != ncclSuccess) {
    return asked;
  }
  if (const ncclResult_t opened = nccl.ncclGroupStart(); opened != ncclSuccess) {
    return opened;
  }
  const std::size_t bytes = count * bytes_of(dtype);
  ncclResult_t result = ncclSuccess;
  for (int peer = 0; peer < ranks && result == ncclSuccess; ++peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
    result = nccl.ncclSend(static_cast<const std::byte*>(send) + offset, count, dtype, peer, comm, stream);
    if (result == ncclSuccess) {
      result = nccl.ncclRecv(static_cast<std::byte*>(receive) + offset, count, dtype, peer, comm, stream);
    }
  }
  const ncclResult_t closed = nccl.ncclGroupEnd();
  return result != ncclSuccess ? result : closed;
}

ncclResult_t send(const void* buffer, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  Transfer operation;
  operation.send = buffer;
  operation.count = count;
  operation.peer = peer;
  operation.stream = stream;
  operation.kind = Collective::send;
  return transfer("ncclSend", operation, dtype, comm, [=](const NcclTable& nccl, cudaStream_t on) {
    return nccl.ncclSend(buffer, count, dtype, peer, comm, on);
  });
}

ncclResult_t receive(void* buffer, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
  Transfer operation;
  operation.receive = buffer;
  operation.count = count;
  operation.peer = peer;
  operation.stream = stream;
  operation.kind = Collective::receive;
  return transfer("ncclRecv", operation, dtype, comm, [=](const NcclTable& nccl, cudaStream_t on) {
    return nccl.ncclRecv(buffer, count, dtype, peer, comm, on);
  });
}

ncclResult_t begin_transfer(EligibleTransfer* call, bool* compressed) {
  CommState& state = *call->owner;
  Transfer& operation = call->transfer;
  const Route route = collectives::route_transfer(state.communicator, operation.peer, operation.count, call->dtype);
  const bool sends = operation.kind == Collective::send;
  CallClass::Call one;
  one.send = operation.send;
  one.count = operation.count;
  one.stream = operation.stream;
  one.eligible = route == Route::compressed;
  one.form = operation.call_bytes << 1 | (call->dtype == ncclBfloat16 ? 1 : 0);
  bool answers = true;  // a device that cannot answer fails in NCCL, which says why and goes on afterwards
  if (one.eligible) {
    std::uint64_t capture = 0;
    answers = state.communicator.device->capture(operation.stream, &capture) == Status::ok;
    one.capturing = !answers || capture != 0;
  }
  CallClass& pair = state.classes->transfers().pair(static_cast<std::uint32_t>(operation.peer), sends);
  bool agreed = false;
  if (const Status status = pair.begin(one, &agreed); status != Status::ok) {
    return refuse(state, sends ? "a send" : "a receive", status);
  }
  *compressed = one.eligible && agreed && answers;
  operation.pool_fraction = pair.pool_fraction();
  if (!*compressed) {
    count_native(state, operation.kind, operation.call_bytes, one.eligible ? Route::native : route);
  }
  return ncclSuccess;
}

ncclResult_t all_to_all(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                        cudaStream_t stream) {
  const CommPointer state = CommTable::instance().find(comm);
  Route route = Route::closed;
  if (state != nullptr) {
    if (state->active()) {
      route = collectives::route_all_to_all(state->communicator, count, dtype);
    }
    if (route != Route::compressed) {
      const auto ranks = static_cast<std::uint64_t>(state->communicator.rank_count);
      count_native(*state, Collective::all_to_all, count * bytes_of(dtype) * ranks, route);
    }
  }
  const auto native = [=](const NcclTable& nccl, cudaStream_t on) {
    return all_to_all_natively(nccl, send, receive, count, dtype, comm, on);
  };
  if (route != Route::compressed) {
    return issue_natively(count > 0 ? comm : nullptr, stream, native);
  }
  if (const ncclResult_t wrong = check("ncclAlltoAll", send != nullptr && receive != nullptr, *state);
      wrong != ncclSuccess) {
    return wrong;
  }
  EligibleAllToAll call{send, receive, count, dtype, stream, state};
  if (Group::recording()) {
    return Group::add(std::move(call));
  }
  return Group::alone(RealNccl::get().table(), eligible_calls(), std::move(call));
}

ncclResult_t begin_all_to_all(EligibleAllToAll* call, bool* compressed) {
  CommState& state = *call->owner;
  const collectives::Communicator& communicator = state.communicator;
  const std::size_t bytes = offset_of(*call, communicator.rank_count);
  const bool registered =
      state.registered.overlaps(call->send, bytes) || state.registered.overlaps(call->receive, bytes);
  std::uint64_t capture = 0;
  const bool answers = communicator.device->capture(call->stream, &capture) == Status::ok;  // as for a transfer
  const bool capturing = !answers || capture != 0;
  const std::uint64_t values = call->count * static_cast<std::uint64_t>(communicator.rank_count);
  bool agreed = false;
  if (const Status status = state.classes->transfers().all_to_all().begin(
          {call->send, values, call->stream, capturing, !registered}, &agreed);
      status != Status::ok) {
    return refuse(state, "an all-to-all", status);
  }
  *compressed = agreed && !registered && answers;
  if (!*compressed) {
    count_native(state, Collective::all_to_all, bytes, registered ? Route::registered : Route::native);
  }
  return ncclSuccess;
}

std::vector<RecordedCall> parts_of_all_to_all(const EligibleAllToAll& call) {
  collectives::Communicator& communicator = call.owner->communicator;
  Transfer operation;
  operation.communicator = &communicator;
  operation.count = call.count;
  operation.stream = call.stream;
  operation.pool_fraction = call.owner->classes->transfers().all_to_all().pool_fraction();
  operation.kind = Collective::all_to_all;
  operation.call_bytes = offset_of(call, communicator.rank_count);
  operation.calls = 1;  // counted with the first operation
  std::vector<RecordedCall> parts;
  for (int peer = 0; peer < communicator.rank_count; ++peer) {
    const void* from = static_cast<const std::byte*>(call.send) + offset_of(call, peer);
    void* to = static_cast<std::byte*>(call.receive) + offset_of(call, peer);
    if (peer == communicator.rank || !collectives::compresses_link(communicator, peer)) {
      const ncclComm_t comm = communicator.handle;
      parts.emplace_back(NativeCall{
          [from, to, peer, count = call.count, dtype = call.dtype, comm](const NcclTable& nccl, cudaStream_t stream) {
            const ncclResult_t sent = nccl.ncclSend(from, count, dtype, peer, comm, stream);
            return sent == ncclSuccess ? nccl.ncclRecv(to, count, dtype, peer, comm, stream) : sent;
          },
          comm, call.stream});
      continue;
    }
    operation.peer = peer;
    operation.send = from;
    operation.receive = nullptr;
    parts.emplace_back(EligibleTransfer{operation, call.dtype, call.owner});
    operation.calls = 0;
    operation.send = nullptr;
    operation.receive = to;
    parts.emplace_back(EligibleTransfer{operation, call.dtype, call.owner});
  }
  return parts;
}

std::unique_ptr<EligibleCalls::Batch> make_transfer_batch(std::span<const EligibleTransfer> calls) {
  return std::make_unique<Batch>(calls);
}

}  // namespace zipccl::interpose
