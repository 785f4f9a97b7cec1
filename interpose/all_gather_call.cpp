#include "interpose/all_gather_call.hpp"

#include <vector>

#include "interpose/callers.hpp"
#include "interpose/dtypes.hpp"
#include "interpose/log.hpp"
#include "interpose/real_nccl.hpp"
#include "interpose/report.hpp"

namespace zipccl::interpose {

namespace {

using collectives::AllGatherCall;
using collectives::Collective;
using collectives::Route;

void count(CommState& state, std::uint64_t values, ncclDataType_t dtype, Route route) {
  const std::uint64_t bytes = values * bytes_of(dtype) * static_cast<std::uint64_t>(state.communicator.rank_count);
  state.statistics.bucket(Collective::all_gather, bytes)
      .calls[static_cast<std::size_t>(route)]
      .fetch_add(1, std::memory_order_relaxed);
  report::tick();
}

ncclResult_t run(std::span<const EligibleAllGather> calls, std::span<const AllGatherCall> plain) {
  const Callers callers(calls);
  const RealCall scope;
  Status status = Status::ok;
  const ncclResult_t result = collectives::all_gather(plain, &status);
  if (status != Status::ok) {
    for (const EligibleAllGather& call : calls) {
      log_failure(*call.owner, "all-gather", {result, status});
    }
  }
  report::tick();
  return result;
}

}  // namespace

// Whether the class is compressed comes first, so that all ranks count alike; then what this rank alone knows, in which
// NCCL demands that the ranks do alike.
ncclResult_t begin_all_gather(EligibleAllGather* eligible, bool* compressed) {
  CommState& state = *eligible->owner;
  AllGatherCall& call = eligible->call;
  collectives::Communicator& communicator = state.communicator;
  const std::uint64_t bytes = call.count * bytes_of(eligible->dtype);
  const bool registered =
      state.registered.overlaps(call.send, bytes) ||
      state.registered.overlaps(call.receive, bytes * static_cast<std::uint64_t>(communicator.rank_count));
  // A device that cannot answer fails in NCCL, which says why.
  const bool answers = communicator.device->capture(call.stream, &call.capture) == Status::ok;
  const bool capturing = !answers || call.capture != 0;
  bool agreed = false;
  if (const Status status =
          state.classes->all_gather().begin({call.send, call.count, call.stream, capturing, !registered}, &agreed);
      status != Status::ok) {
    return refuse(state, "an all-gather", status);
  }
  const bool capturable = answers && communicator.agreement.exchange == collectives::Exchange::fixed;
  const Route route = registered                 ? Route::registered
                      : !agreed                  ? Route::native
                      : capturing && !capturable ? Route::captured
                                                 : Route::compressed;
  *compressed = route == Route::compressed;
  if (!*compressed) {
    count(state, call.count, eligible->dtype, route);
  }
  return ncclSuccess;
}

ncclResult_t run_all_gathers(std::span<const EligibleAllGather> calls) {
  if (calls.size() == 1) {
    return run(calls, {&calls.front().call, 1});
  }
  std::vector<AllGatherCall> plain;
  plain.reserve(calls.size());
  for (const EligibleAllGather& call : calls) {
    plain.push_back(call.call);
  }
  return run(calls, plain);
}

ncclResult_t all_gather(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                        cudaStream_t stream) {
  CommPointer state = CommTable::instance().find(comm);
  Route route = Route::closed;
  if (state != nullptr) {
    if (state->active()) {
      route = collectives::route_all_gather(state->communicator, count, dtype);
    }
    if (route != Route::compressed) {
      interpose::count(*state, count, dtype, route);
    }
  }
  if (route != Route::compressed) {
    if (Group::recording()) {
      return Group::add(NativeCall{[=](const NcclTable& nccl, cudaStream_t on) {
                                     return nccl.ncclAllGather(send, receive, count, dtype, comm, on);
                                   },
                                   count > 0 ? comm : nullptr, stream});
    }
    return call_real<&NcclTable::ncclAllGather>(send, receive, count, dtype, comm, stream);
  }
  if (send == nullptr || receive == nullptr) {
    log::write(LogLevel::warn, "ncclAllGather: a buffer is null");
    if (Group::recording()) {
      Group::poison(ncclInvalidArgument);
    }
    return ncclInvalidArgument;
  }
  EligibleAllGather call{{&state->communicator, send, receive, count, stream}, dtype, std::move(state)};
  if (Group::recording()) {
    return Group::add(std::move(call));
  }
  return run_or_drop(*call.owner, [&] {
    bool compressed = false;
    if (const ncclResult_t result = begin_all_gather(&call, &compressed); result != ncclSuccess) {
      return result;
    }
    if (!compressed) {
      return note_refused(*call.owner, call_real<&NcclTable::ncclAllGather>(send, receive, count, dtype, comm, stream));
    }
    if (Group::open()) {
      log::write(LogLevel::error, "ncclAllGather: communicator %s became ready after this group had been opened",
                 call.owner->name.c_str());
      note_dropped_calls(*call.owner);
      return ncclInvalidUsage;
    }
    return run_all_gathers({&call, 1});
  });
}

}  // namespace zipccl::interpose
