#include "interpose/group.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "interpose/process.hpp"

namespace zipccl::interpose {

namespace {

struct Contents {
  std::vector<RecordedCall> calls;  // in program order
  std::vector<Completion> completions;
  ncclResult_t error = ncclSuccess;
};

// Trivial, so that a thread which ends inside a group, or never opens one, costs nothing.
struct ThreadGroup {
  int depth = 0;
  bool recording = false;
  Contents* contents = nullptr;  // made when first needed, until the outermost end
};
constinit thread_local ThreadGroup current;

Contents& contents() {
  if (current.contents == nullptr) {
    current.contents = new Contents;
  }
  return *current.contents;
}

// Leaves the group: calls made from now on are outside it.
Contents close() {
  const std::unique_ptr<Contents> held(std::exchange(current.contents, nullptr));
  current = {};
  return held != nullptr ? std::move(*held) : Contents{};
}

// Takes the call's contents.
NativeCall native_form(RecordedCall& call) {
  if (auto* const native = std::get_if<NativeCall>(&call)) {
    return std::move(*native);
  }
  return [all_gather = std::move(std::get<EligibleAllGather>(call))](const NcclTable& nccl) {
    return all_gather.run_natively(nccl);
  };
}

// One real group of the recorded native calls, closed by `close_group`. NCCL drops the group if a call in it failed.
template <typename CloseGroup>
ncclResult_t issue(const NcclTable& nccl, const std::vector<NativeCall>& calls, CloseGroup close_group) {
  const RealCall scope;
  if (const ncclResult_t opened = nccl.ncclGroupStart(); opened != ncclSuccess) {
    return opened;
  }
  ncclResult_t error = ncclSuccess;
  for (const NativeCall& call : calls) {
    error = call(nccl);
    if (error != ncclSuccess && error != ncclInProgress) {
      break;
    }
    error = ncclSuccess;
  }
  const ncclResult_t closed = close_group();
  return error != ncclSuccess ? error : closed;
}

// What waits for the group's end, in order. The first error counts.
ncclResult_t complete(const std::vector<Completion>& completions, ncclResult_t result) {
  ncclResult_t error = ncclSuccess;
  for (const Completion& completion : completions) {
    const ncclResult_t own = completion(result);
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
  Contents held = close();
  if (recorded) {
    result = held.error != ncclSuccess ? held.error : issue_recorded(held);
  }
  return complete(held.completions, result);
}

}  // namespace

ncclResult_t EligibleAllGather::run_natively(const NcclTable& nccl) const {
  return nccl.ncclAllGather(call.send, call.receive, call.count, dtype, call.communicator->handle, call.stream);
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
  Contents& held = contents();
  if (held.error != ncclSuccess) {
    return held.error;
  }
  held.calls.push_back(std::move(call));
  return ncclSuccess;
}

void Group::poison(ncclResult_t error) {
  Contents& held = contents();
  if (held.error == ncclSuccess) {
    held.error = error;
  }
}

void Group::at_end(Completion completion) { contents().completions.push_back(std::move(completion)); }

ncclResult_t Group::end(const NcclTable& nccl, const AllGatherFunctions& all_gathers) {
  const auto close_group = [&] { return nccl.ncclGroupEnd(); };
  return finish(close_group, [&](Contents& held) {
    std::vector<NativeCall> native;
    std::vector<EligibleAllGather> compressed;
    for (RecordedCall& call : held.calls) {
      bool goes_compressed = false;
      auto* const all_gather = std::get_if<EligibleAllGather>(&call);
      if (all_gather != nullptr) {
        if (const ncclResult_t begun = all_gathers.begin(all_gather, &goes_compressed); begun != ncclSuccess) {
          return begun;
        }
      }
      if (goes_compressed) {
        compressed.push_back(std::move(*all_gather));
      } else {
        native.push_back(native_form(call));
      }
    }
    ncclResult_t result = ncclSuccess;
    if (!compressed.empty()) {
      result = all_gathers.run_compressed(compressed);
    }
    if (result == ncclSuccess && !native.empty()) {
      result = issue(nccl, native, close_group);
    }
    return result;
  });
}

ncclResult_t Group::simulate_end(const NcclTable& nccl, ncclSimInfo_t* info) {
  const auto close_group = [&] { return nccl.ncclGroupSimulateEnd(info); };
  return finish(close_group, [&](Contents& held) {
    std::vector<NativeCall> calls;
    std::transform(held.calls.begin(), held.calls.end(), std::back_inserter(calls), native_form);
    return issue(nccl, calls, close_group);
  });
}

}  // namespace zipccl::interpose
