#include "interpose/apart.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "interpose/callers.hpp"
#include "interpose/log.hpp"
#include "interpose/process.hpp"

namespace zipccl::interpose {

namespace {

using collectives::Outcome;

class Apart final : public EligibleCalls::Apart {
 public:
  Apart(std::span<EligibleAllGather> all_gathers, std::span<EligibleTransfer> transfers,
        std::span<const NativeStream> native)
      : gather_callers_(std::span<const EligibleAllGather>(all_gathers)),
        transfer_callers_(std::span<const EligibleTransfer>(transfers)),
        all_gathers_(all_gathers),
        transfers_(transfers),
        native_(native.begin(), native.end()) {}

  ncclResult_t begin() override {
    const RealCall scope;
    if (const ncclResult_t result = check(); result != ncclSuccess) {
      return result;
    }
    for (EligibleAllGather& call : all_gathers_) {
      if (const ncclResult_t result = move(*call.owner, &call.call.stream); result != ncclSuccess) {
        return result;
      }
    }
    for (EligibleTransfer& call : transfers_) {
      if (const ncclResult_t result = move(*call.owner, &call.transfer.stream); result != ncclSuccess) {
        return result;
      }
    }
    for (const NativeStream& call : native_) {
      CommState* const owner = owner_of(call.comm);
      if (const ncclResult_t result = owner != nullptr ? move(*owner, call.stream) : ncclSuccess;
          result != ncclSuccess) {
        return result;
      }
    }
    return ncclSuccess;
  }

  ncclResult_t end(ncclResult_t group_result) override {
    const RealCall scope;
    ncclResult_t result = group_result;
    for (const Branch& branch : branches_) {
      const Status status = join(branch);
      if (status != Status::ok) {
        static_cast<void>(join(branch));  // what fails once must not leave the caller's buffers in use
      }
      const ncclResult_t joined = note(*branch.owner, status);
      result = result == ncclSuccess ? joined : result;
    }
    return result;
  }

 private:
  struct Branch {
    CommState* owner;  // the calls keep it
    codec::Stream caller;
    codec::Stream own;
  };

  // What NCCL refuses, before anything is enqueued, so that the communicators can go on: to order such streams spoils
  // captures, and takes in streams that none of them has.
  ncclResult_t check() const {
    std::map<ncclComm_t, std::uint64_t> captures;
    ncclResult_t result = ncclSuccess;
    const auto look = [&](const CommState& state, ncclComm_t comm, codec::Stream stream) {
      result = result == ncclSuccess ? check(state, comm, stream, &captures) : result;
    };
    for (const EligibleAllGather& call : all_gathers_) {
      look(*call.owner, call.owner->communicator.handle, call.call.stream);
    }
    for (const EligibleTransfer& call : transfers_) {
      look(*call.owner, call.owner->communicator.handle, call.transfer.stream);
    }
    const CommState& any = all_gathers_.empty() ? *transfers_.front().owner : *all_gathers_.front().owner;
    for (const NativeStream& call : native_) {
      if (call.comm != nullptr) {
        look(any, call.comm, *call.stream);
      }
    }
    return result;
  }

  // One stream of a communicator, with the device of `state`.
  static ncclResult_t check(const CommState& state, ncclComm_t comm, codec::Stream stream,
                            std::map<ncclComm_t, std::uint64_t>* captures) {
    codec::Device& device = *state.communicator.device;
    std::uint64_t capture = 0;
    if (device.capture(stream, &capture) != Status::ok) {
      log::write(LogLevel::warn, "a group cannot be issued: a stream's capture cannot be told: %s",
                 device.last_error());
      return ncclUnhandledCudaError;
    }
    const auto [known, added] = captures->try_emplace(comm, capture);
    if (!added && known->second != capture) {
      log::write(LogLevel::warn,
                 "a group cannot be issued: a communicator's streams must all be captured into the same graph, or none "
                 "of them");
      return ncclInvalidUsage;
    }
    return ncclSuccess;
  }

  static Status join(const Branch& branch) {
    return branch.owner->communicator.chain->order(branch.own, branch.caller);
  }

  // Of a communicator that has compressed calls; the others are NCCL's alone.
  CommState* owner_of(ncclComm_t comm) const {
    const auto found = std::ranges::find_if(
        branches_, [=](const Branch& branch) { return branch.owner->communicator.handle == comm; });
    return found != branches_.end() ? found->owner : nullptr;
  }

  // One stream for all of a communicator's calls, as NCCL has it.
  ncclResult_t move(CommState& owner, codec::Stream* stream) {
    if (owner.communicator.failure != ncclSuccess) {
      return owner.communicator.failure;  // said before
    }
    codec::Stream own = nullptr;
    for (const Branch& branch : branches_) {
      if (branch.owner == &owner && branch.caller == *stream) {
        *stream = branch.own;
        return ncclSuccess;
      }
      own = branch.owner == &owner ? branch.own : own;
    }
    branches_.reserve(branches_.size() + 1);
    Status status = owner.communicator.aborted.load() ? Status::aborted : Status::ok;
    if (status == Status::ok && own == nullptr) {
      status = collectives::find_own_stream(owner.communicator, *stream, &own);
    }
    if (status == Status::ok) {
      status = owner.communicator.chain->order(*stream, own);
    }
    if (status == Status::ok) {
      branches_.push_back({&owner, *stream, own});
      *stream = own;
    }
    return note(owner, status);
  }

  // A communicator whose streams are not in order cannot go on.
  static ncclResult_t note(CommState& owner, Status status) {
    const Outcome outcome = Outcome::of(status);
    if (!outcome.ok() && owner.communicator.failure == ncclSuccess) {
      owner.communicator.failure = outcome.result;
      owner.statistics.note_error(status);
      log_failure(owner, "calls of a group", outcome);
    }
    return outcome.result;
  }

  Callers gather_callers_;
  Callers transfer_callers_;
  std::span<EligibleAllGather> all_gathers_;
  std::span<EligibleTransfer> transfers_;
  const std::vector<NativeStream> native_;
  std::vector<Branch> branches_;
};

}  // namespace

std::unique_ptr<EligibleCalls::Apart> make_apart(std::span<EligibleAllGather> all_gathers,
                                                 std::span<EligibleTransfer> transfers,
                                                 std::span<const NativeStream> native) {
  return std::make_unique<Apart>(all_gathers, transfers, native);
}

}  // namespace zipccl::interpose
