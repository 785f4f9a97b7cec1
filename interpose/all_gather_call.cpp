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

void count(CommState& state, std::uint64_t values, ncclDataType_t dtype, Route route) {
  const std::uint64_t bytes = values * bytes_of(dtype) * static_cast<std::uint64_t>(state.communicator.rank_count);
  state.statistics.bucket(Collective::all_gather, bytes)
      .calls[static_cast<std::size_t>(route)]
      .fetch_add(1, std::memory_order_relaxed);
  report::tick();
}

// Marks a thread as inside a compressed collective of these communicators.
class Callers {
 public:
  explicit Callers(std::span<const EligibleAllGather> calls) : calls_(calls) { add(1); }
  ~Callers() { add(-1); }
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;

 private:
  void add(int step) {
    for (const EligibleAllGather& call : calls_) {
      call.owner->callers.fetch_add(step);  // ordered with CommState::communicator.aborted
    }
  }
  std::span<const EligibleAllGather> calls_;
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

void log_failure(std::span<const EligibleAllGather> calls, ncclResult_t result, Status status) {
  for (const EligibleAllGather& call : calls) {
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
void log_refusal(CommState& state, ncclResult_t result, Status status) {
  std::int32_t none = 0;
  if (state.statistics.error.compare_exchange_strong(none, static_cast<std::int32_t>(status))) {
    log::write(status == Status::aborted ? LogLevel::info : LogLevel::error,
               "communicator %s, rank %d: an all-gather cannot begin, since the ranks cannot agree any more whether it "
               "is compressed: %s (NCCL result %d)",
               state.name.c_str(), state.communicator.rank, describe(status), static_cast<int>(result));
  }
}

ncclResult_t run(std::span<const EligibleAllGather> calls, std::span<const AllGatherCall> plain) {
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

// Whether the class is compressed comes first, so that all ranks count alike; then what this rank alone knows, in which
// NCCL demands that the ranks do alike.
ncclResult_t begin(EligibleAllGather* eligible, bool* compressed) {
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
    const ncclResult_t result = collectives::nccl_result(status);
    log_refusal(state, result, status);
    return result;
  }
  if (call.capture != 0 && agreed && !registered) {
    communicator.captured.store(true);
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

ncclResult_t run_compressed(std::span<const EligibleAllGather> calls) {
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

const AllGatherFunctions all_gather_functions = {begin, run_compressed};

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
  EligibleAllGather call{{&state->communicator, send, receive, count, stream}, dtype, std::move(state)};
  if (Group::recording()) {
    return Group::add(std::move(call));
  }
  bool compressed = false;
  if (const ncclResult_t result = begin(&call, &compressed); result != ncclSuccess) {
    return result;
  }
  if (!compressed) {
    return call_real<&NcclTable::ncclAllGather>(send, receive, count, dtype, comm, stream);
  }
  if (Group::open()) {
    log::write(LogLevel::error, "ncclAllGather: communicator %s became ready after this group had been opened",
               call.owner->name.c_str());
    return ncclInvalidUsage;
  }
  return run_compressed({&call, 1});
}

}  // namespace zipccl::interpose
