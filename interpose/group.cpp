#include "interpose/group.hpp"

#include <array>
#include <cstddef>
#include <exception>
#include <forward_list>
#include <memory>
#include <memory_resource>
#include <type_traits>
#include <utility>
#include <vector>

#include "interpose/log.hpp"
#include "interpose/process.hpp"

namespace zipccl::interpose {

namespace {

struct Contents {
  std::vector<RecordedCall> calls;  // in program order
  std::vector<Completion> completions;
};

// Trivial, so that a thread which ends inside a group, or never opens one, costs nothing.
struct ThreadGroup {
  int depth = 0;
  bool recording = false;
  ncclResult_t error = ncclSuccess;
  Contents* contents = nullptr;  // made when first needed, until the outermost end
};
constinit thread_local ThreadGroup current;

constexpr std::size_t usual_calls = 8;  // of a group, for which memory is taken at once

Contents& contents() {
  if (current.contents == nullptr) {
    current.contents = new Contents;
    current.contents->calls.reserve(usual_calls);
  }
  return *current.contents;
}

// Leaves the group: calls made from now on are outside it.
Contents close() {
  const std::unique_ptr<Contents> held(std::exchange(current.contents, nullptr));
  current = {};
  return held != nullptr ? std::move(*held) : Contents{};
}

ncclComm_t comm_of(const NativeCall& call) { return call.comm; }
template <typename Eligible>
ncclComm_t comm_of(const Eligible& call) {
  return call.owner->communicator.handle;
}

cudaStream_t& stream_of(NativeCall& call) { return call.stream; }
cudaStream_t& stream_of(EligibleAllGather& call) { return call.call.stream; }
cudaStream_t& stream_of(EligibleTransfer& call) { return call.transfer.stream; }
cudaStream_t& stream_of(EligibleAllToAll& call) { return call.stream; }

ncclResult_t issue_natively(const RecordedCall& call, const NcclTable& nccl) {
  return std::visit(
      [&](const auto& one) -> ncclResult_t {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(one)>, NativeCall>) {
          return one.issue(nccl, one.stream);
        } else {
          return one.run_natively(nccl);
        }
      },
      call);
}

// For steps between a begin and an end that must come in any case: a real group that stays open would take in all that
// the thread calls later, and streams that are not joined again would overwrite what others use.
template <typename Step>
ncclResult_t guarded(Step step) {
  try {
    return step();
  } catch (const std::exception& error) {
    log::write(LogLevel::error, "a group cannot be issued: %s", error.what());
    return ncclSystemError;
  }
}

// What a recorded group comes to, when it is decided which calls are compressed. Refers to the calls, and costs those
// that stay native little: a job may make many.
class Plan {
 public:
  explicit Plan(const EligibleCalls& eligible) : eligible_(eligible) {}

  ncclResult_t decide(std::vector<RecordedCall>& calls) {
    calls_.reserve(calls.size());
    begun_.reserve(calls.size());
    for (RecordedCall& call : calls) {
      const ncclResult_t begun = guarded([&] { return std::visit([&](auto& one) { return add(one, call); }, call); });
      if (begun != ncclSuccess) {
        note_dropped();
        return begun;
      }
    }
    return ncclSuccess;
  }

  template <typename CloseGroup>
  ncclResult_t issue(const NcclTable& nccl, CloseGroup close_group) {
    if (!several_ || (all_gathers_.empty() && transfers_.empty())) {
      return issue_calls(nccl, close_group);
    }
    std::unique_ptr<EligibleCalls::Apart> apart;
    ncclResult_t result = guarded([&] {
      apart = eligible_.apart(all_gathers_, transfers_, native_streams());
      return apart->begin();
    });
    if (result == ncclSuccess) {
      result = guarded([&] { return issue_calls(nccl, close_group); });
    } else {
      note_dropped();
    }
    return apart != nullptr ? apart->end(result) : result;
  }

  void add_native(RecordedCall& call) { calls_.push_back({&call, 0}); }

 private:
  struct Issue {
    RecordedCall* native = nullptr;  // null: a transfer
    std::size_t transfer = 0;        // in transfers_
  };

  template <typename CloseGroup>
  ncclResult_t issue_calls(const NcclTable& nccl, CloseGroup close_group) {
    if (!all_gathers_.empty()) {
      if (const ncclResult_t result = guarded([&] { return eligible_.run(all_gathers_); }); result != ncclSuccess) {
        note_dropped();
        return result;
      }
    }
    if (calls_.empty()) {
      return ncclSuccess;
    }
    bool dropped = true;
    ncclResult_t issued = ncclSuccess;
    ncclResult_t result = ncclSuccess;
    if (transfers_.empty()) {
      result = issued = issue_group(
          nccl, close_group, [](std::size_t) { return ncclInternalError; }, &dropped);
    } else {
      std::unique_ptr<EligibleCalls::Batch> batch;
      result = guarded([&] {
        batch = eligible_.batch(transfers_);
        return batch->before();
      });
      if (result == ncclSuccess) {
        result = issued = issue_group(
            nccl, close_group, [&](std::size_t index) { return batch->issue(index); }, &dropped);
      }
      result = batch != nullptr ? batch->after(result, dropped) : result;
    }
    // At a group's end NCCL refuses what it could not see before, as streams of which only some are captured.
    if (dropped || (issued != ncclSuccess && issued != ncclInProgress)) {
      note_dropped();
      if (!all_gathers_.empty()) {
        eligible_.ran_ahead(all_gathers_);
      }
    }
    return result;
  }

  void see(ncclComm_t comm, cudaStream_t stream) {
    if (comm == nullptr) {
      return;
    }
    several_ = several_ || (comm_ != nullptr && (comm != comm_ || stream != stream_));
    comm_ = comm;
    stream_ = stream;
  }

  // Of the calls in the real group that zipccl leaves as they are.
  std::vector<NativeStream> native_streams() const {
    std::vector<NativeStream> streams;
    for (const Issue& call : calls_) {
      if (call.native != nullptr) {
        std::visit([&](auto& one) { streams.push_back({comm_of(one), &stream_of(one)}); }, *call.native);
      }
    }
    return streams;
  }

  ncclResult_t add(NativeCall& call, RecordedCall& whole) {
    see(call.comm, call.stream);
    add_native(whole);
    return ncclSuccess;
  }

  template <typename Eligible>
  ncclResult_t add(Eligible& call, RecordedCall& whole) {
    bool compressed = false;
    begun_.push_back(&call.owner);  // before: one that throws may have begun
    const ncclResult_t begun = eligible_.begin(&call, &compressed);
    if (begun != ncclSuccess) {
      begun_.pop_back();
      return begun;
    }
    see(call.owner->communicator.handle, stream_of(call));
    compressed ? add_compressed(call) : add_native(whole);
    return ncclSuccess;
  }

  void note_dropped() const {
    if (!begun_.empty()) {
      eligible_.dropped(begun_);
    }
  }

  void add_compressed(EligibleAllGather call) { all_gathers_.push_back(std::move(call)); }
  void add_compressed(EligibleTransfer call) {
    calls_.push_back({nullptr, transfers_.size()});
    transfers_.push_back(std::move(call));
  }
  void add_compressed(const EligibleAllToAll& call) {
    for (RecordedCall& part : eligible_.parts(call)) {
      if (auto* const transfer = std::get_if<EligibleTransfer>(&part)) {
        add_compressed(std::move(*transfer));
      } else {
        add_native(native_parts_.emplace_front(std::move(part)));
      }
    }
  }

  // One real group, closed by `close_group`. NCCL drops the group if a call in it failed, which *dropped tells.
  template <typename CloseGroup, typename IssueTransfer>
  ncclResult_t issue_group(const NcclTable& nccl, CloseGroup close_group, IssueTransfer issue_transfer, bool* dropped) {
    const RealCall scope;
    *dropped = true;
    if (const ncclResult_t opened = nccl.ncclGroupStart(); opened != ncclSuccess) {
      return opened;
    }
    ncclResult_t error = ncclSuccess;
    for (const Issue& call : calls_) {
      error = guarded(
          [&] { return call.native != nullptr ? issue_natively(*call.native, nccl) : issue_transfer(call.transfer); });
      if (error != ncclSuccess && error != ncclInProgress) {
        break;
      }
      error = ncclSuccess;
    }
    const ncclResult_t closed = close_group();
    *dropped = error != ncclSuccess;
    return *dropped ? error : closed;
  }

  const EligibleCalls& eligible_;
  // A usual group's lists need no allocation.
  std::array<std::byte, 4 * usual_calls * sizeof(Issue)> room_;
  std::pmr::monotonic_buffer_resource memory_{room_.data(), room_.size()};
  std::vector<EligibleAllGather> all_gathers_;
  std::pmr::vector<Issue> calls_{&memory_};  // of the real group, in program order
  std::vector<EligibleTransfer> transfers_;
  std::forward_list<RecordedCall> native_parts_;          // of compressed all-to-alls
  std::pmr::vector<const CommPointer*> begun_{&memory_};  // owners of the eligible calls that have begun
  ncclComm_t comm_ = nullptr;                             // of the latest call that has one
  cudaStream_t stream_ = nullptr;                         // its stream
  bool several_ = false;                                  // calls of several communicators or on several streams
};

ncclResult_t decide_and_issue(const NcclTable& nccl, const EligibleCalls& eligible, std::vector<RecordedCall>& calls) {
  Plan plan(eligible);
  const ncclResult_t decided = plan.decide(calls);
  return decided == ncclSuccess ? plan.issue(nccl, [&] { return nccl.ncclGroupEnd(); }) : decided;
}

// What waits for the group's end, in order. The first error counts.
ncclResult_t complete(const std::vector<Completion>& completions, ncclResult_t result) {
  ncclResult_t error = ncclSuccess;
  for (const Completion& completion : completions) {
    const ncclResult_t own = guarded([&] { return completion(result); });
    error = error == ncclSuccess ? own : error;
  }
  return error != ncclSuccess ? error : result;
}

// Leaves one level of the group. At the outermost one, `issue_recorded` issues what was recorded, if anything was.
template <typename CloseGroup, typename IssueRecorded>
ncclResult_t finish(CloseGroup close_group, IssueRecorded issue_recorded) {
  ncclResult_t result = ncclSuccess;
  if (!current.recording) {
    const RealCall scope;
    result = close_group();
  }
  if (current.depth > 1) {
    --current.depth;
    return result;
  }
  const bool recorded = current.recording;
  const ncclResult_t error = current.error;
  Contents held = close();
  if (recorded) {
    result = error != ncclSuccess ? error : guarded([&] { return issue_recorded(held); });
  }
  return complete(held.completions, result);
}

}  // namespace

ncclResult_t EligibleAllGather::run_natively(const NcclTable& nccl) const {
  return nccl.ncclAllGather(call.send, call.receive, call.count, dtype, call.communicator->handle, call.stream);
}

ncclResult_t EligibleTransfer::run_natively(const NcclTable& nccl) const {
  const ncclComm_t comm = transfer.communicator->handle;
  return transfer.kind != collectives::Collective::receive
             ? nccl.ncclSend(transfer.send, transfer.count, dtype, transfer.peer, comm, transfer.stream)
             : nccl.ncclRecv(transfer.receive, transfer.count, dtype, transfer.peer, comm, transfer.stream);
}

bool Group::open() { return current.depth > 0; }
bool Group::recording() { return current.recording; }

ncclResult_t Group::start(const NcclTable& nccl, bool record) {
  if (current.depth == 0) {
    current.recording = record;
  }
  if (!current.recording) {
    const RealCall scope;
    if (const ncclResult_t result = nccl.ncclGroupStart(); result != ncclSuccess) {
      return result;
    }
  }
  ++current.depth;
  return ncclSuccess;
}

ncclResult_t Group::add(RecordedCall call) {
  if (current.error != ncclSuccess) {
    return current.error;
  }
  contents().calls.push_back(std::move(call));
  return ncclSuccess;
}

void Group::poison(ncclResult_t error) {
  if (current.error == ncclSuccess) {
    current.error = error;
  }
}

void Group::at_end(Completion completion) { contents().completions.push_back(std::move(completion)); }

ncclResult_t Group::end(const NcclTable& nccl, const EligibleCalls& eligible) {
  const auto close_group = [&] { return nccl.ncclGroupEnd(); };
  return finish(close_group, [&](Contents& held) { return decide_and_issue(nccl, eligible, held.calls); });
}

ncclResult_t Group::alone(const NcclTable& nccl, const EligibleCalls& eligible, RecordedCall call) {
  std::vector<RecordedCall> calls;
  calls.push_back(std::move(call));
  return decide_and_issue(nccl, eligible, calls);
}

ncclResult_t Group::simulate_end(const NcclTable& nccl, const EligibleCalls& eligible, ncclSimInfo_t* info) {
  const auto close_group = [&] { return nccl.ncclGroupSimulateEnd(info); };
  return finish(close_group, [&](Contents& held) {
    Plan plan(eligible);
    for (RecordedCall& call : held.calls) {
      plan.add_native(call);
    }
    return plan.issue(nccl, close_group);
  });
}

}  // namespace zipccl::interpose
