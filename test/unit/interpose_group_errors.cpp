// Groups that fail, at any step, and those that are only simulated.
#include <algorithm>
#include <string>

#include "test/unit/catch.hpp"
#include "test/unit/failing_memory.hpp"
#include "test/unit/group_fakes.hpp"

using namespace zipccl::test;

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
  SECTION("a native call fails, and compressed all-gathers have run") {
    CHECK(Group::add(eligible(1)) == ncclSuccess);
    CHECK(Group::add(native("send", ncclInvalidArgument)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclInvalidArgument);
    CHECK(calls == Calls{"compressed", "start", "send", "end", "keep 1", "ran ahead 1"});
  }
  SECTION("a native call fails: the rest is left out and the real group closed") {
    end_result = ncclSystemError;
    CHECK(Group::add(native("send", ncclInvalidArgument)) == ncclSuccess);
    CHECK(Group::add(native("receive")) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclInvalidArgument);
    CHECK(calls == Calls{"start", "send", "end"});
  }
  SECTION("the real group's end fails: NCCL may have dropped it") {
    end_result = ncclInvalidUsage;
    CHECK(Group::add(eligible(5000)) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclInvalidUsage);
    CHECK(calls == Calls{"start", "all-gather 5000", "end", "keep 1"});
  }
  SECTION("the real group's end fails, and compressed all-gathers have run") {
    end_result = ncclInvalidUsage;
    CHECK(Group::add(eligible(1)) == ncclSuccess);
    CHECK(Group::add(native("send")) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclInvalidUsage);
    CHECK(calls == Calls{"compressed", "start", "send", "end", "keep 1", "ran ahead 1"});
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

TEST_CASE("wherever memory runs out, the group ends, and calls that have begun are known to be dropped") {
  const NcclTable nccl = fake_nccl();
  CHECK(Group::start(nccl, true) == ncclSuccess);
  CHECK(Group::add(eligible(1, communicator(1))) == ncclSuccess);
  SECTION("a batch") {
    lacks_memory = "batch";
    CHECK(Group::add(transfer(2, true, communicator(1))) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls == Calls{"compressed", "keep 2", "ran ahead 1"});
  }
  SECTION("streams of their own") {
    lacks_memory = "apart";
    CHECK(Group::add(transfer(2, true, communicator(2))) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls == Calls{"keep 2"});
  }
  SECTION("a decision: the call may have begun") {
    lacks_memory = "begin";
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls == Calls{"keep 1"});
  }
  SECTION("an all-to-all's operations") {
    lacks_memory = "parts";
    auto owner = std::make_shared<CommState>();
    CHECK(Group::add(EligibleAllToAll{nullptr, nullptr, 3, ncclBfloat16, nullptr, owner}) == ncclSuccess);
    CHECK(Group::end(nccl, fakes) == ncclSystemError);
    CHECK(calls == Calls{"keep 2"});
  }
  CHECK(!Group::open());
}

// The fakes write down what they are asked in memory that they have.
TEST_CASE("whichever allocation of a group's end fails, once or with all that follow, nothing is forgotten") {
  const bool for_good = GENERATE(false, true);
  const bool several = GENERATE(false, true);
  bool failed = true;
  for (int step = 0; failed; ++step) {
    CAPTURE(for_good, several, step);
    const NcclTable nccl = fake_nccl();
    calls.reserve(100);
    begun.reserve(100);
    all_gather_sizes.reserve(100);
    ncclResult_t completed = ncclInProgress;
    REQUIRE(Group::start(nccl, true) == ncclSuccess);
    REQUIRE(Group::add(eligible(1, communicator(1))) == ncclSuccess);
    REQUIRE(Group::add(transfer(2, true, communicator(several ? 2 : 1))) == ncclSuccess);
    REQUIRE(Group::add(transfer(3, false, communicator(1))) == ncclSuccess);
    REQUIRE(Group::add(native("reduce")) == ncclSuccess);
    Group::at_end([&](ncclResult_t result) { return completed = result; });
    FailingMemory::fail_at(step, for_good);
    ncclResult_t result = ncclSuccess;
    try {
      result = Group::end(nccl, fakes);
    } catch (...) {
      result = ncclInProgress;
    }
    FailingMemory::heal();
    REQUIRE(result != ncclInProgress);
    REQUIRE(completed == result);
    REQUIRE(!Group::open());
    failed = result != ncclSuccess;
    const auto has = [](const std::string& text) {
      return std::any_of(calls.begin(), calls.end(), [&](const std::string& call) { return call.starts_with(text); });
    };
    REQUIRE(has("keep") == (failed && !begun.empty()));
    REQUIRE(has("ran ahead") == (failed && has("compressed")));
    REQUIRE(has("apart") == has("joined"));
    REQUIRE(has("before") == has("after"));
    REQUIRE((failed || step > 3));
  }
}

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
