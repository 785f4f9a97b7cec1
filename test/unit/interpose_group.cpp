// What a group issues, when and in which order.
#include "test/unit/catch.hpp"
#include "test/unit/group_fakes.hpp"

using namespace zipccl::test;

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
    CHECK(calls == Calls{"compressed", "before 3", "after 1 dropped", "keep 5", "ran ahead 1"});
  }
  SECTION("memory runs out in the preparation: the batch hears of it") {
    lacks_memory = "before";
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls == Calls{"compressed", "before 3", "after 2 dropped", "keep 5", "ran ahead 1"});
  }
  SECTION("memory runs out inside the real group: it is closed, and the batch hears of it") {
    lacks_memory = "issue";
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls == Calls{"compressed", "before 3", "start", "end", "after 2 dropped", "keep 5", "ran ahead 1"});
  }
  SECTION("the real group fails") {
    end_result = ncclSystemError;
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls[calls.size() - 3] == "after 2");
  }
  SECTION("a call in the real group fails") {
    CHECK(Group::add(native("broadcast", ncclInvalidArgument)) == ncclSuccess);
    CHECK(Group::add(transfer(4, true)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclInvalidArgument);
    CHECK(calls == Calls{"compressed", "before 4", "start", "transfer 1", "reduce", "transfer 2", "send 5000",
                         "transfer 3", "broadcast", "end", "after 4 dropped", "keep 6", "ran ahead 1"});
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
          Calls{"apart 1+2", "before 1", "start", "reduce", "transfer 1", "broadcast", "end", "after 0", "joined 0"});
  }
  SECTION("the other's is eligible, but goes natively") {
    CHECK(Group::add(transfer(1, true, one)) == ncclSuccess);
    CHECK(Group::add(transfer(5000, true, other)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSuccess);
    CHECK(calls == Calls{"apart 1+1", "before 1", "start", "transfer 1", "send 5000", "end", "after 0", "joined 0"});
  }
  SECTION("of one communicator on several streams, native ones, too") {
    CHECK(Group::add(on_stream(eligible(10, one), 1)) == ncclSuccess);
    CHECK(Group::add(on_stream(native("reduce", ncclSuccess, one), 2)) == ncclSuccess);
    CHECK(Group::add(on_stream(transfer(5000, true, one), 1)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSuccess);
    CHECK(calls == Calls{"apart 1+2", "compressed", "start", "reduce", "send 5000", "end", "joined 0"});
  }
  SECTION("of one communicator on several streams, none compressed: natively") {
    CHECK(Group::add(on_stream(eligible(5000, one), 1)) == ncclSuccess);
    CHECK(Group::add(on_stream(native("reduce", ncclSuccess, one), 2)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSuccess);
    CHECK(calls == Calls{"start", "all-gather 5000", "reduce", "end"});
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

// Ranks count what they have begun; one that only simulates, or whose group fails, must not count.
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
