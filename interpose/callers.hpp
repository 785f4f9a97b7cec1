// What surrounds the work of a compressed call, whichever it is.
#pragma once

#include <exception>
#include <span>
#include <vector>

#include "collectives/outcome.hpp"
#include "interpose/comm_table.hpp"

namespace zipccl::interpose {

// Marks a thread as inside a compressed call of these communicators, and keeps their state, as long as it lives.
class Callers {
 public:
  template <typename Eligible>
  explicit Callers(std::span<const Eligible> calls) {
    owners_.reserve(calls.size());
    for (const Eligible& call : calls) {
      call.owner->callers.fetch_add(1);  // ordered with CommState::communicator.aborted
      owners_.push_back(call.owner);
    }
  }
  ~Callers();
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;

 private:
  std::vector<CommPointer> owners_;
};

// One log line. `what` is the kind of call: "all-gather".
void log_failure(const CommState& state, const char* what, const collectives::Outcome& outcome);

// NCCL has dropped calls of the communicator that have begun: its classes stay as they are. If that cannot be, no
// compressed call of it can follow, and the log says so.
void note_dropped_calls(CommState& state);

// For a call outside any group that went natively and has begun: if NCCL has refused it, it has dropped it, and other
// ranks know nothing of it. Returns the result.
ncclResult_t note_refused(CommState& state, ncclResult_t result);

// Runs a call outside any group, which is dropped if it throws: it may have begun.
template <typename Run>
ncclResult_t run_or_drop(CommState& state, Run run) {
  try {
    return run();
  } catch (const std::exception&) {
    note_dropped_calls(state);
    throw;
  }
}

// A compressed all-gather of the communicator has run in a group whose rest NCCL has dropped. If this rank alone made
// the mistake, its next all-gather would meet the others' last one, of the same size, and nobody would see: no
// compressed call of it can follow, and the log says so.
void note_ran_ahead(CommState& state);

// For a call that its fence keeps from beginning; `what` with its article. Logs once for a communicator.
ncclResult_t refuse(CommState& state, const char* what, Status status);

}  // namespace zipccl::interpose
