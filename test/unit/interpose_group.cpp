#include <new>
#include <string>
#include <vector>

#include "interpose/group.hpp"
#include "interpose/process.hpp"
#include "test/unit/catch.hpp"

using namespace zipccl::interpose;

namespace {

// A NCCL that writes down what is called and fails on demand.
std::vector<std::string> calls;
ncclResult_t start_result = ncclSuccess;
ncclResult_t end_result = ncclSuccess;
ncclResult_t all_gather_result = ncclSuccess;
ncclResult_t before_result = ncclSuccess;  // of a batch
std::string lacks_memory;                  // the step of a batch that throws
std::vector<std::size_t> all_gather_sizes;
std::vector<std::size_t> begun;  // sizes of the eligible all-gathers that were decided about
ncclResult_t begin_result = ncclSuccess;
ncclResult_t apart_result = ncclSuccess;

ncclResult_t note(const std::string& text, ncclResult_t result = ncclSuccess) {
  calls.push_back(RealCall::active() ? text : text + " outside a real call");
  return result;
}

NcclTable fake_nccl() {
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
  static void allocate(const char* step) {
    if (lacks_memory == step) {
      throw std::bad_alloc();
    }
  }

  std::vector<std::uint64_t> counts_;
};

// Notes when calls are taken off the callers' streams, and when those go on.
class FakeApart final : public EligibleCalls::Apart {
 public:
  explicit FakeApart(std::size_t count) : count_(count) {}
  ncclResult_t begin() override {
    calls.push_back("apart " + std::to_string(count_));
    return apart_result;
  }
  ncclResult_t end(ncclResult_t result) override {
    calls.push_back("joined " + std::to_string(result));
    return result;
  }

 private:
  std::size_t count_;
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
  void dropped(std::span<const CommPointer> owners) const override {
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
    return std::make_unique<FakeBatch>(transfers);
  }
  std::unique_ptr<Apart> apart(std::span<EligibleAllGather> all_gathers,
                               std::span<EligibleTransfer> transfers) const override {
    return std::make_unique<FakeApart>(all_gathers.size() + transfers.size());
  }
  std::vector<RecordedCall> parts(const EligibleAllToAll& call) const override {
    EligibleTransfer part{{}, ncclBfloat16, call.owner};
    part.transfer.count = call.count;
    std::vector<RecordedCall> made;
    made.emplace_back(NativeCall{[](const NcclTable&) { return note("own part"); }});
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
    *compressed = count < 1000;
    return ncclSuccess;
  }
};
const FakeCalls fakes;

RecordedCall native(const std::string& name, ncclResult_t result = ncclSuccess, ncclComm_t comm = nullptr) {
  return NativeCall{[=](const NcclTable&) { return note(name, result); }, comm};
}

ncclComm_t communicator(std::uintptr_t number) { return reinterpret_cast<ncclComm_t>(number); }

RecordedCall eligible(std::uint64_t count, ncclComm_t comm = nullptr) {
  auto owner = std::make_shared<CommState>();
  owner->communicator.handle = comm;
  EligibleAllGather gather{{}, ncclBfloat16, owner};
  gather.call.communicator = &owner->communicator;
  gather.call.count = count;
  return gather;
}

RecordedCall transfer(std::uint64_t count, bool sends, ncclComm_t comm = nullptr) {
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

}  // namespace

TEST_CASE("without a compressing communicator calls are not recorded") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, false) == ncclSuccess);
  CHECK(Group::open());
  CHECK(!Group::recording());
  CHECK(Group::start(nccl, true) == ncclSuccess);  // counts for an outermost group alone
  CHECK(!Group::recording());
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(Group::open());
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(!Group::open());
  CHECK(calls == Calls{"start", "start", "end", "end"});
}

TEST_CASE("compressed calls go first, then the others in program order as one real group") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::recording());
  CHECK(Group::add(native("send")) == ncclSuccess);
  CHECK(Group::add(eligible(10)) == ncclSuccess);
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(native("receive")) == ncclSuccess);
  CHECK(Group::add(eligible(20)) == ncclSuccess);
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(Group::add(native("reduce")) == ncclSuccess);
  CHECK(calls.empty());
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(!Group::open());
  CHECK(calls == Calls{"compressed", "start", "send", "receive", "reduce", "end"});
  CHECK(all_gather_sizes == std::vector<std::size_t>{10, 20});
}

TEST_CASE("compressed sends and receives keep their places in the one real group") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(transfer(1, true)) == ncclSuccess);
  CHECK(Group::add(native("reduce")) == ncclSuccess);
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(transfer(2, false)) == ncclSuccess);
  CHECK(Group::add(eligible(10)) == ncclSuccess);
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(Group::add(transfer(5000, true)) == ncclSuccess);  // decided to go natively
  CHECK(Group::add(transfer(3, true)) == ncclSuccess);
  CHECK(calls.empty());
  CHECK(begun.empty());
  SECTION("issued") {
    CHECK(Group::end(nccl, fakes) == ncclSuccess);
    CHECK(calls == Calls{"compressed", "before 3", "start", "transfer 1", "reduce", "transfer 2", "send 5000",
                         "transfer 3", "end", "after 0"});
  }
  SECTION("simulated: natively, and nothing begins") {
    CHECK(Group::simulate_end(nccl, fakes, nullptr) == ncclSuccess);
    CHECK(begun.empty());
    CHECK(calls == Calls{"start", "send 1", "reduce", "receive 2", "all-gather 10", "send 5000", "send 3", "simulate"});
  }
  SECTION("the compressed collectives fail: nothing else happens") {
    all_gather_result = ncclRemoteError;
    CHECK(Group::end(nccl, fakes) == ncclRemoteError);
    CHECK(calls == Calls{"compressed", "keep 5"});
  }
  SECTION("preparation fails: no real group, but the batch hears of it") {
    before_result = ncclUnhandledCudaError;
    CHECK(Group::end(nccl, fakes) == ncclUnhandledCudaError);
    CHECK(calls == Calls{"compressed", "before 3", "after 1 dropped", "keep 5"});
  }
  SECTION("memory runs out in the preparation: the batch hears of it") {
    lacks_memory = "before";
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls == Calls{"compressed", "before 3", "after 2 dropped", "keep 5"});
  }
  SECTION("memory runs out inside the real group: it is closed, and the batch hears of it") {
    lacks_memory = "issue";
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls == Calls{"compressed", "before 3", "start", "end", "after 2 dropped", "keep 5"});
  }
  SECTION("the real group fails") {
    end_result = ncclSystemError;
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls.back() == "after 2");
  }
  SECTION("a call in the real group fails") {
    CHECK(Group::add(native("broadcast", ncclInvalidArgument)) == ncclSuccess);
    CHECK(Group::add(transfer(4, true)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclInvalidArgument);
    CHECK(calls == Calls{"compressed", "before 4", "start", "transfer 1", "reduce", "transfer 2", "send 5000",
                         "transfer 3", "broadcast", "end", "after 4 dropped", "keep 6"});
  }
  CHECK(!Group::open());
}

TEST_CASE("compressed calls of a group with several communicators run apart from first to last") {
  const NcclTable nccl = fake_nccl();
  const auto one = communicator(1);
  const auto other = communicator(2);
  CHECK(Group::start(nccl, true) == ncclSuccess);
  SECTION("of one communicator: on the callers' streams") {
    CHECK(Group::add(native("initialise")) == ncclSuccess);  // belongs to none
    CHECK(Group::add(eligible(10, one)) == ncclSuccess);
    CHECK(Group::add(native("reduce", ncclSuccess, one)) == ncclSuccess);
    CHECK(Group::add(transfer(1, true, one)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSuccess);
    CHECK(calls == Calls{"compressed", "before 1", "start", "initialise", "reduce", "transfer 1", "end", "after 0"});
  }
  SECTION("none compressed: natively") {
    CHECK(Group::add(eligible(5000, one)) == ncclSuccess);
    CHECK(Group::add(native("reduce", ncclSuccess, other)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSuccess);
    CHECK(calls == Calls{"start", "all-gather 5000", "reduce", "end"});
  }
  SECTION("all-gathers of two") {
    CHECK(Group::add(eligible(10, one)) == ncclSuccess);
    CHECK(Group::add(eligible(20, other)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSuccess);
    CHECK(calls == Calls{"apart 2", "compressed", "joined 0"});
  }
  SECTION("the other's is native, and not the latest") {
    CHECK(Group::add(native("reduce", ncclSuccess, other)) == ncclSuccess);
    CHECK(Group::add(transfer(1, true, one)) == ncclSuccess);
    CHECK(Group::add(native("broadcast", ncclSuccess, one)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSuccess);
    CHECK(calls ==
          Calls{"apart 1", "before 1", "start", "reduce", "transfer 1", "broadcast", "end", "after 0", "joined 0"});
  }
  SECTION("the other's is eligible, but goes natively") {
    CHECK(Group::add(transfer(1, true, one)) == ncclSuccess);
    CHECK(Group::add(transfer(5000, true, other)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSuccess);
    CHECK(calls == Calls{"apart 1", "before 1", "start", "transfer 1", "send 5000", "end", "after 0", "joined 0"});
  }
  SECTION("taking them apart fails: nothing is issued, and what was taken is joined") {
    apart_result = ncclUnhandledCudaError;
    CHECK(Group::add(eligible(10, one)) == ncclSuccess);
    CHECK(Group::add(transfer(1, true, other)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclUnhandledCudaError);
    CHECK(calls == Calls{"apart 2", "keep 2", "joined 1"});
  }
  SECTION("a call fails: joined all the same") {
    all_gather_result = ncclRemoteError;
    CHECK(Group::add(eligible(10, one)) == ncclSuccess);
    CHECK(Group::add(transfer(1, true, other)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclRemoteError);
    CHECK(calls == Calls{"apart 2", "compressed", "keep 2", "joined 6"});
  }
  CHECK(!Group::open());
}

TEST_CASE("without a buffer, which NCCL allows for nothing, a send stays a send and a receive a receive") {
  const NcclTable nccl = fake_nccl();
  const auto empty = [](bool sends) {
    auto recorded = std::get<EligibleTransfer>(transfer(5000, sends));
    recorded.transfer.send = nullptr;
    recorded.transfer.receive = nullptr;
    return recorded;
  };
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(empty(true)) == ncclSuccess);
  CHECK(Group::add(empty(false)) == ncclSuccess);
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(calls == Calls{"start", "send 5000", "receive 5000", "end"});
}

TEST_CASE("a compressed all-to-all is its parts, in its place") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(native("before")) == ncclSuccess);
  CHECK(Group::add(EligibleAllToAll{nullptr, nullptr, 7, ncclBfloat16, nullptr, std::make_shared<CommState>()}) ==
        ncclSuccess);
  CHECK(Group::add(native("behind")) == ncclSuccess);
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(calls ==
        Calls{"before 2", "start", "before", "own part", "transfer 7", "transfer 7", "behind", "end", "after 0"});
}

TEST_CASE("a call alone is a group of its own, which nothing joins") {
  const NcclTable nccl = fake_nccl();
  SECTION("issued") {
    CHECK(Group::alone(nccl, fakes, transfer(7, true)) == ncclSuccess);
    CHECK(calls == Calls{"before 1", "start", "transfer 7", "end", "after 0"});
  }
  SECTION("failed") {
    lacks_memory = "issue";
    CHECK(Group::alone(nccl, fakes, transfer(7, true)) == ncclSystemError);
  }
  CHECK(!Group::open());
}

TEST_CASE("no real group is opened for nothing") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(calls.empty());
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(eligible(1)) == ncclSuccess);
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(calls == Calls{"compressed"});
}

TEST_CASE("an error inside a recording group drops all of it and is the group's result") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(native("send")) == ncclSuccess);
  CHECK(Group::add(eligible(1)) == ncclSuccess);
  Group::poison(ncclInvalidUsage);
  Group::poison(ncclSystemError);
  CHECK(Group::add(native("receive")) == ncclInvalidUsage);
  CHECK(Group::end(nccl, fakes) == ncclInvalidUsage);
  CHECK(calls.empty());
  // The next group knows nothing of it.
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(native("send")) == ncclSuccess);
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(calls == Calls{"start", "send", "end"});
}

TEST_CASE("errors of the real calls") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  SECTION("a compressed call fails: nothing else is issued") {
    all_gather_result = ncclInternalError;
    CHECK(Group::add(eligible(1)) == ncclSuccess);
    CHECK(Group::add(native("send")) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclInternalError);
    CHECK(calls == Calls{"compressed", "keep 1"});
  }
  SECTION("a native call fails: the rest is left out and the real group closed") {
    end_result = ncclSystemError;
    CHECK(Group::add(native("send", ncclInvalidArgument)) == ncclSuccess);
    CHECK(Group::add(native("receive")) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclInvalidArgument);
    CHECK(calls == Calls{"start", "send", "end"});
  }
  SECTION("a nonblocking communicator's call is no failure") {
    end_result = ncclInProgress;
    CHECK(Group::add(native("send", ncclInProgress)) == ncclSuccess);
    CHECK(Group::add(native("receive")) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclInProgress);
    CHECK(calls == Calls{"start", "send", "receive", "end"});
  }
  SECTION("the real group does not open") {
    start_result = ncclSystemError;
    CHECK(Group::add(native("send")) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls == Calls{"start"});
  }
  CHECK(!Group::open());
}

TEST_CASE("eligible calls that go natively keep their place in program order") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(eligible(1000)) == ncclSuccess);
  CHECK(Group::add(native("send")) == ncclSuccess);
  CHECK(Group::add(eligible(10)) == ncclSuccess);
  CHECK(Group::add(eligible(2000)) == ncclSuccess);
  CHECK(Group::add(native("receive")) == ncclSuccess);
  CHECK(begun.empty());
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(begun == std::vector<std::size_t>{1000, 10, 2000});
  CHECK(calls == Calls{"compressed", "start", "all-gather 1000", "send", "all-gather 2000", "receive", "end"});
}

TEST_CASE("an eligible call that cannot be decided about fails the group before anything is issued") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(native("send")) == ncclSuccess);
  CHECK(Group::add(eligible(10)) == ncclSuccess);
  begin_result = ncclRemoteError;
  CHECK(Group::end(nccl, fakes) == ncclRemoteError);
  CHECK(calls.empty());
  CHECK(!Group::open());
}

// Ranks count what they have begun; one that only simulates, or whose group fails, must not count.
TEST_CASE("no call begins in a group that is simulated or has failed") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(eligible(10)) == ncclSuccess);
  SECTION("simulated") { CHECK(Group::simulate_end(nccl, fakes, nullptr) == ncclSuccess); }
  SECTION("failed") {
    Group::poison(ncclInvalidArgument);
    CHECK(Group::end(nccl, fakes) == ncclInvalidArgument);
  }
  CHECK(begun.empty());
}

TEST_CASE("a group that does not open leaves none behind") {
  const NcclTable nccl = fake_nccl();
  start_result = ncclSystemError;
  CHECK(Group::start(nccl, false) == ncclSystemError);
  CHECK(!Group::open());
}

TEST_CASE("an end without a start is the real NCCL's to answer") {
  const NcclTable nccl = fake_nccl();
  end_result = ncclInvalidUsage;
  CHECK(Group::end(nccl, fakes) == ncclInvalidUsage);
  CHECK(calls == Calls{"end"});
  CHECK(!Group::open());
}

TEST_CASE("a simulated end issues everything natively, and compressed calls too") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(native("send")) == ncclSuccess);
  CHECK(Group::add(eligible(30)) == ncclSuccess);
  CHECK(Group::simulate_end(nccl, fakes, nullptr) == ncclSuccess);
  CHECK(calls == Calls{"start", "send", "all-gather 30", "simulate"});
  CHECK(!Group::open());
}

TEST_CASE("completions run in order after the outermost end, see its result and may change it") {
  const NcclTable nccl = fake_nccl();
  const bool record = GENERATE(false, true);
  CAPTURE(record);
  std::vector<ncclResult_t> seen;
  const auto complete = [&](ncclResult_t replacement) {
    return [&, replacement](ncclResult_t result) {
      CHECK(result == ncclSuccess);
      CHECK(!Group::open());
      seen.push_back(replacement);
      return replacement;
    };
  };
  CHECK(Group::start(nccl, record) == ncclSuccess);
  CHECK(Group::start(nccl, record) == ncclSuccess);
  Group::at_end(complete(ncclSuccess));
  Group::at_end(complete(ncclRemoteError));
  Group::at_end(complete(ncclSystemError));
  CHECK(Group::end(nccl, fakes) == ncclSuccess);
  CHECK(seen.empty());
  CHECK(Group::end(nccl, fakes) == ncclRemoteError);  // the first in order
  CHECK(seen == std::vector<ncclResult_t>{ncclSuccess, ncclRemoteError, ncclSystemError});
}
