// A NCCL and compressed calls that write down what is asked of them, for tests of groups.
#pragma once

#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "interpose/group.hpp"
#include "interpose/process.hpp"

namespace zipccl::test {

using namespace zipccl::interpose;

// A NCCL that writes down what is called and fails on demand.
inline std::vector<std::string> calls;
inline ncclResult_t start_result = ncclSuccess;
inline ncclResult_t end_result = ncclSuccess;
inline ncclResult_t all_gather_result = ncclSuccess;
inline ncclResult_t before_result = ncclSuccess;  // of a batch
inline std::string lacks_memory;                  // the step that throws
inline std::vector<std::size_t> all_gather_sizes;
inline std::vector<std::size_t> begun;  // sizes of the eligible all-gathers that were decided about
inline ncclResult_t begin_result = ncclSuccess;
inline ncclResult_t apart_result = ncclSuccess;

inline ncclResult_t note(const std::string& text, ncclResult_t result = ncclSuccess) {
  calls.push_back(RealCall::active() ? text : text + " outside a real call");
  return result;
}

inline NcclTable fake_nccl() {
  calls.clear();
  all_gather_sizes.clear();
  begun.clear();
  lacks_memory.clear();
  apart_result = begin_result = start_result = end_result = all_gather_result = before_result = ncclSuccess;
  NcclTable table;
  table.ncclGroupStart = [] { return note("start", start_result); };
  table.ncclGroupEnd = [] { return note("end", end_result); };
  table.ncclGroupSimulateEnd = [](ncclSimInfo_t*) { return note("simulate", end_result); };
  table.ncclAllGather = [](const void*, void*, size_t count, ncclDataType_t, ncclComm_t, cudaStream_t) {
    return note("all-gather " + std::to_string(count));
  };
  table.ncclSend = [](const void*, size_t count, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return note("send " + std::to_string(count));
  };
  table.ncclRecv = [](void*, size_t count, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return note("receive " + std::to_string(count));
  };
  return table;
}

inline void allocate(const char* step) {
  if (lacks_memory == step) {
    throw std::bad_alloc();
  }
}

// Notes what a batch of compressed sends and receives is asked to do.
class FakeBatch final : public EligibleCalls::Batch {
 public:
  explicit FakeBatch(std::span<const EligibleTransfer> transfers) {
    for (const EligibleTransfer& call : transfers) {
      counts_.push_back(call.transfer.count);
    }
  }
  ncclResult_t before() override {
    calls.push_back("before " + std::to_string(counts_.size()));
    allocate("before");
    return before_result;
  }
  ncclResult_t issue(std::size_t index) override {
    allocate("issue");
    return note("transfer " + std::to_string(counts_.at(index)));
  }
  ncclResult_t after(ncclResult_t result, bool dropped) override {
    calls.push_back("after " + std::to_string(result) + (dropped ? " dropped" : ""));
    return result;
  }

 private:
  std::vector<std::uint64_t> counts_;
};

// Notes when calls are taken off the callers' streams, and when those go on.
class FakeApart final : public EligibleCalls::Apart {
 public:
  FakeApart(std::size_t count, std::size_t native) : count_(count), native_(native) {}
  ncclResult_t begin() override {
    calls.push_back("apart " + std::to_string(count_) + (native_ > 0 ? "+" + std::to_string(native_) : ""));
    return apart_result;
  }
  ncclResult_t end(ncclResult_t result) override {
    calls.push_back("joined " + std::to_string(result));
    return result;
  }

 private:
  std::size_t count_;
  std::size_t native_;
};

// Calls of fewer than 1,000 values go compressed.
class FakeCalls final : public EligibleCalls {
 public:
  ncclResult_t begin(EligibleAllGather* call, bool* compressed) const override {
    return decide(call->call.count, compressed);
  }
  ncclResult_t begin(EligibleTransfer* call, bool* compressed) const override {
    return decide(call->transfer.count, compressed);
  }
  ncclResult_t begin(EligibleAllToAll* call, bool* compressed) const override {
    return decide(call->count, compressed);
  }
  void ran_ahead(std::span<const EligibleAllGather> gathers) const override {
    calls.push_back("ran ahead " + std::to_string(gathers.size()));
  }
  void dropped(std::span<const CommPointer* const> owners) const override {
    calls.push_back("keep " + std::to_string(owners.size()));
  }
  ncclResult_t run(std::span<const EligibleAllGather> gathers) const override {
    calls.emplace_back("compressed");
    for (const EligibleAllGather& gather : gathers) {
      all_gather_sizes.push_back(gather.call.count);
    }
    return all_gather_result;
  }
  std::unique_ptr<Batch> batch(std::span<const EligibleTransfer> transfers) const override {
    allocate("batch");
    return std::make_unique<FakeBatch>(transfers);
  }
  std::unique_ptr<Apart> apart(std::span<EligibleAllGather> all_gathers, std::span<EligibleTransfer> transfers,
                               std::span<const NativeStream> native) const override {
    allocate("apart");
    return std::make_unique<FakeApart>(all_gathers.size() + transfers.size(), native.size());
  }
  std::vector<RecordedCall> parts(const EligibleAllToAll& call) const override {
    allocate("parts");
    EligibleTransfer part{{}, ncclBfloat16, call.owner};
    part.transfer.count = call.count;
    std::vector<RecordedCall> made;
    made.emplace_back(NativeCall{[](const NcclTable&, cudaStream_t) { return note("own part"); }});
    made.emplace_back(part);
    made.emplace_back(part);
    return made;
  }

 private:
  static ncclResult_t decide(std::uint64_t count, bool* compressed) {
    if (begin_result != ncclSuccess) {
      return begin_result;
    }
    begun.push_back(count);
    allocate("begin");
    *compressed = count < 1000;
    return ncclSuccess;
  }
};
inline const FakeCalls fakes;

inline RecordedCall native(const std::string& name, ncclResult_t result = ncclSuccess, ncclComm_t comm = nullptr) {
  return NativeCall{[=](const NcclTable&, cudaStream_t) { return note(name, result); }, comm};
}

inline ncclComm_t communicator(std::uintptr_t number) { return reinterpret_cast<ncclComm_t>(number); }

inline RecordedCall eligible(std::uint64_t count, ncclComm_t comm = nullptr) {
  auto owner = std::make_shared<CommState>();
  owner->communicator.handle = comm;
  EligibleAllGather gather{{}, ncclBfloat16, owner};
  gather.call.communicator = &owner->communicator;
  gather.call.count = count;
  return gather;
}

inline cudaStream_t stream(std::uintptr_t number) { return reinterpret_cast<cudaStream_t>(number); }

inline RecordedCall on_stream(RecordedCall call, std::uintptr_t number) {
  if (auto* const gather = std::get_if<EligibleAllGather>(&call)) {
    gather->call.stream = stream(number);
  } else if (auto* const transfer = std::get_if<EligibleTransfer>(&call)) {
    transfer->transfer.stream = stream(number);
  } else {
    std::get<NativeCall>(call).stream = stream(number);
  }
  return call;
}

inline RecordedCall transfer(std::uint64_t count, bool sends, ncclComm_t comm = nullptr) {
  static std::byte buffer;
  auto owner = std::make_shared<CommState>();
  owner->communicator.handle = comm;
  EligibleTransfer recorded{{}, ncclBfloat16, owner};
  recorded.transfer.communicator = &owner->communicator;
  recorded.transfer.count = count;
  recorded.transfer.kind = sends ? zipccl::collectives::Collective::send : zipccl::collectives::Collective::receive;
  recorded.transfer.send = sends ? &buffer : nullptr;
  recorded.transfer.receive = sends ? nullptr : &buffer;
  return recorded;
}

using Calls = std::vector<std::string>;

}  // namespace zipccl::test
