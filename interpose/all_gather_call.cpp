#include "interpose/all_gather_call.hpp"

#include <array>
#include <vector>

#include "interpose/log.hpp"
#include "interpose/real_nccl.hpp"
#include "interpose/report.hpp"

namespace zipccl::interpose {

namespace {

using collectives::AllGatherCall;
using collectives::Collective;
using collectives::Route;

std::uint64_t bytes_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 1;
  }
}

// What this rank alone knows comes last; NCCL demands that the ranks do alike in it. Not ok if the call must fail.
Status route_of(CommState& state, const void* send, const void* receive, std::uint64_t count, ncclDataType_t dtype,
                cudaStream_t stream, Route* route, std::uint64_t* capture) {
  collectives::Communicator& communicator = state.communicator;
  *route = Route::closed;
  if (!state.active()) {
    return Status::ok;
  }
  if (*route = collectives::route_all_gather(communicator, count, dtype); *route != Route::compressed) {
    return Status::ok;
  }
  const std::uint64_t bytes = count * bytes_of(dtype);
  const bool registered =
      state.registered.overlaps(send, bytes) ||
      state.registered.overlaps(receive, bytes * static_cast<std::uint64_t>(communicator.rank_count));
  // A device that cannot answer fails in NCCL, which says why.
  const bool answers = communicator.device->capture(stream, capture) == Status::ok;
  const bool capturing = !answers || *capture != 0;
  bool compressed = false;
  const Status status = state.classes->all_gather().begin({send, count, stream, capturing, !registered}, &compressed);
  if (*capture != 0 && compressed && !registered) {
    communicator.captured.store(true);
  }
  const bool capturable = answers && communicator.agreement.exchange == collectives::Exchange::fixed;
  *route = registered                 ? Route::registered
           : !compressed              ? Route::native
           : capturing && !capturable ? Route::captured
                                      : Route::compressed;
  return status;
}

// Marks a thread as inside a compressed collective of these communicators.
class Callers {
 public:
  explicit Callers(std::span<const CompressedAllGather> calls) : calls_(calls) { add(1); }
  ~Callers() { add(-1); }
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;

 private:
  void add(int step) {
    for (const CompressedAllGather& call : calls_) {
      call.owner->callers.fetch_add(step);  // ordered with CommState::communicator.aborted
    }
  }
  std::span<const CompressedAllGather> calls_;
};

const char* advice(Status status) {
  switch (status) {
    case Status::nccl_error:
      return "; NCCL_DEBUG=WARN says more";
    case Status::out_of_memory:
    case Status::device_error:
    case Status::aborted:
      return "";
    default:
      return "; run with ZIPCCL=off and report this";
  }
}

void log_failure(std::span<const CompressedAllGather> calls, ncclResult_t result, Status status) {
  for (const CompressedAllGather& call : calls) {
    const collectives::Communicator& communicator = call.owner->communicator;
    const log::DeviceScope device(communicator.device->ordinal());
    log::write(status == Status::aborted ? LogLevel::info : LogLevel::error,
               "communicator %s, rank %d: compressed all-gather %llu failed: %s%s%s (NCCL result %d); its output is "
               "undefined%s",
               call.owner->name.c_str(), communicator.rank, static_cast<unsigned long long>(communicator.sequence),
               describe(status), status == Status::device_error ? ": " : "",
               status == Status::device_error ? communicator.device->last_error() : "", static_cast<int>(result),
               advice(status));
  }
}

// A call that its fence keeps from beginning.
ncclResult_t fail_to_begin(CommState& state, Status status) {
  const ncclResult_t result = collectives::nccl_result(status);
  std::int32_t none = 0;
  if (state.statistics.error.compare_exchange_strong(none, static_cast<std::int32_t>(status))) {
    log::write(status == Status::aborted ? LogLevel::info : LogLevel::error,
               "communicator %s, rank %d: an all-gather cannot begin, since the ranks cannot agree any more whether it "
               "is compressed: %s (NCCL result %d)",
               state.name.c_str(), state.communicator.rank, describe(status), static_cast<int>(result));
  }
  if (Group::recording()) {
    Group::poison(result);
  }
  return result;
}

ncclResult_t run(std::span<const CompressedAllGather> calls, std::span<const AllGatherCall> plain) {
  const Callers callers(calls);
  const RealCall scope;
  Status status = Status::ok;
  const ncclResult_t result = collectives::all_gather(plain, &status);
  if (status != Status::ok) {
    log_failure(calls, result, status);
  }
  report::tick();
  return result;
}

}  // namespace

ncclResult_t run_compressed(std::span<const CompressedAllGather> calls) {
  if (calls.size() == 1) {
    return run(calls, {&calls.front().call, 1});
  }
  std::vector<AllGatherCall> plain;
  plain.reserve(calls.size());
  for (const CompressedAllGather& call : calls) {
    plain.push_back(call.call);
  }
  return run(calls, plain);
}

ncclResult_t all_gather(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                        cudaStream_t stream) {
  CommPointer state = CommTable::instance().find(comm);
  Route route = Route::closed;
  std::uint64_t capture = 0;
  if (state != nullptr) {
    const Status status = route_of(*state, send, receive, count, dtype, stream, &route, &capture);
    if (status != Status::ok) {
      return fail_to_begin(*state, status);
    }
    if (route != Route::compressed) {
      const std::uint64_t bytes = count * bytes_of(dtype) * static_cast<std::uint64_t>(state->communicator.rank_count);
      state->statistics.bucket(Collective::all_gather, bytes)
          .calls[static_cast<std::size_t>(route)]
          .fetch_add(1, std::memory_order_relaxed);
      report::tick();
    }
  }
  if (route != Route::compressed) {
    if (Group::recording()) {
      return Group::add(
          [=](const NcclTable& nccl) { return nccl.ncclAllGather(send, receive, count, dtype, comm, stream); });
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
  CompressedAllGather call{{&state->communicator, send, receive, count, stream, capture}, dtype, std::move(state)};
  if (Group::recording()) {
    return Group::add(std::move(call));
  }
  if (Group::open()) {
    log::write(LogLevel::error, "ncclAllGather: communicator %s became ready after this group had been opened",
               call.owner->name.c_str());
    return ncclInvalidUsage;
  }
  return run_compressed({&call, 1});
}

}  // namespace zipccl::interpose
