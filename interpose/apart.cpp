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
    std::map<ncclComm_t, Known> known;
    const ncclResult_t result = each_call([&](const CommState& owner, ncclComm_t comm, codec::Stream* stream) {
      return check(owner, comm, *stream, &known);
    });
    if (result != ncclSuccess) {
      return result;
    }
    return each_call([&](CommState& owner, ncclComm_t comm, codec::Stream* stream) {
      CommState* const compressed = owner.communicator.handle == comm ? &owner : owner_of(comm);
      return compressed != nullptr ? move(*compressed, stream) : ncclSuccess;
    });
  }

  ncclResult_t end(ncclResult_t group_result) override {
    const RealCall scope;
    ncclResult_t result = group_result;
    for (const Branch& branch : branches_) {
      const Status status = branch.owner->communicator.chain->hand_back(branch.own, branch.caller);
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

  // A communicator's stream in the group, and the capture that it takes part in.
  struct Known {
    codec::Stream stream = nullptr;
    std::uint64_t capture = 0;
  };

  // visit(owner, comm, &stream) of compressed calls, then of NCCL's own, with the owner of any compressed call, until
  // one fails.
  template <typename Visit>
  ncclResult_t each_call(Visit visit) {
    ncclResult_t result = ncclSuccess;
    const auto next = [&](CommState& owner, ncclComm_t comm, codec::Stream* stream) {
      result = result == ncclSuccess ? visit(owner, comm, stream) : result;
    };
    for (EligibleAllGather& call : all_gathers_) {
      next(*call.owner, call.owner->communicator.handle, &call.call.stream);
    }
    for (EligibleTransfer& call : transfers_) {
      next(*call.owner, call.owner->communicator.handle, &call.transfer.stream);
    }
    CommState& any = all_gathers_.empty() ? *transfers_.front().owner : *all_gathers_.front().owner;
    for (const NativeStream& call : native_) {
      if (call.comm != nullptr) {
        next(any, call.comm, call.stream);
      }
    }
    return result;
  }

  // What NCCL refuses, before anything is enqueued, so that the communicators can go on: to order such streams spoils
  // captures, and takes in streams that none of them has.
  static ncclResult_t check(const CommState& owner, ncclComm_t comm, codec::Stream stream,
                            std::map<ncclComm_t, Known>* known) {
    const auto found = known->find(comm);
    if (found != known->end() && found->second.stream == stream) {
      return ncclSuccess;
    }
    codec::Device& device = *owner.communicator.device;
    std::uint64_t capture = 0;
    if (device.capture(stream, &capture) != Status::ok) {
      log::write(LogLevel::warn, "a group cannot be issued: a stream's capture cannot be told: %s",
                 device.last_error());
      return ncclUnhandledCudaError;
    }
    if (found != known->end() && found->second.capture != capture) {
      log::write(LogLevel::warn,
                 "a group cannot be issued: a communicator's streams must all be captured into the same graph, or none "
                 "of them");
      return ncclInvalidUsage;
    }
    known->insert_or_assign(comm, Known{stream, capture});
    return ncclSuccess;
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
