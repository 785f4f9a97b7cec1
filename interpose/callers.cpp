#include "interpose/callers.hpp"

#include "interpose/log.hpp"

namespace zipccl::interpose {

namespace {

const char* advice(Status status) {
  switch (status) {
    case Status::nccl_error:
      return "; NCCL_DEBUG=WARN says more";
    case Status::out_of_memory:
      return "; leave the device more memory or take p2p out of ZIPCCL_COLLECTIVES";
    case Status::device_error:
    case Status::aborted:
      return "";
    default:
      return "; run with ZIPCCL=off and report this";
  }
}

}  // namespace

Callers::~Callers() {
  for (const CommPointer& owner : owners_) {
    owner->callers.fetch_sub(1);
  }
}

void log_failure(const CommState& state, const char* what, const collectives::Outcome& outcome) {
  const collectives::Communicator& communicator = state.communicator;
  const log::DeviceScope device(communicator.device->ordinal());
  const bool explained = outcome.status == Status::device_error || outcome.status == Status::out_of_memory;
  log::write(outcome.status == Status::aborted ? LogLevel::info : LogLevel::error,
             "communicator %s, rank %d: compressed %s failed: %s%s%s (NCCL result %d); its output is undefined%s",
             state.name.c_str(), communicator.rank, what, describe(outcome.status), explained ? ": " : "",
             explained ? communicator.device->last_error() : "", static_cast<int>(outcome.result),
             advice(outcome.status));
}

void note_ran_ahead(CommState& state) {
  collectives::Communicator& communicator = state.communicator;
  if (communicator.failure != ncclSuccess) {
    return;
  }
  communicator.failure = ncclInternalError;
  log::write(
      LogLevel::error,
      "communicator %s, rank %d: a group failed when its compressed all-gathers had run already, which NCCL would "
      "have left out; its compressed calls fail from now on (NCCL result %d): mend the call that failed",
      state.name.c_str(), communicator.rank, static_cast<int>(communicator.failure));
}

void note_dropped_calls(CommState& state) {
  collectives::Communicator& communicator = state.communicator;
  if (state.classes->keep() || communicator.failure != ncclSuccess) {
    return;
  }
  communicator.failure = ncclInternalError;
  log::write(
      LogLevel::error,
      "communicator %s, rank %d: a call or group failed while the ranks were about to change what is compressed; its "
      "compressed calls fail from now on (NCCL result %d)",
      state.name.c_str(), communicator.rank, static_cast<int>(communicator.failure));
}

ncclResult_t note_refused(CommState& state, ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) {
    note_dropped_calls(state);
  }
  return result;
}

ncclResult_t refuse(CommState& state, const char* what, Status status) {
  const ncclResult_t result = collectives::nccl_result(status);
  if (state.statistics.note_error(status)) {
    log::write(status == Status::aborted ? LogLevel::info : LogLevel::error,
               "communicator %s, rank %d: %s cannot begin, since the ranks cannot agree any more whether it is "
               "compressed: %s (NCCL result %d)",
               state.name.c_str(), state.communicator.rank, what, describe(status), static_cast<int>(result));
  }
  return result;
}

}  // namespace zipccl::interpose
