// The stand-in NCCL: injected faults, the link model, the version.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "test/standin/forked_ranks.hpp"
#include "test/unit/catch.hpp"

namespace standin::test {
namespace {

using Seconds = std::chrono::duration<double>;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return Seconds(std::chrono::steady_clock::now() - begin).count();
}

Environment fault(const std::string& text) { return {{"STANDIN_FAULT", text}}; }

ncclResult_t gather(ncclComm_t comm, int rank, cudaStream_t stream) {
  static const int own = rank;  // both are in use after the call
  static int all[8];
  return ncclAllGather(&own, all, 1, ncclInt32, comm, stream);
}

}  // namespace

TEST_CASE("an injected error is returned by the chosen call of the chosen rank") {
  const Environment environment =
      fault("rank=1,call=ncclAllGather,nth=3,action=error:2;rank=0,call=ncclGroupStart,action=error:3");
  const auto endings = run_communicators(2, environment, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    for (int call = 1; call <= 4; ++call) {
      const bool injected = rank == 1 && call == 3;
      EXPECT_RESULT(gather(comm, rank, stream), injected ? ncclSystemError : ncclSuccess);
      if (injected) EXPECT_SUCCESS(gather(comm, rank, stream));  // so that rank 0 gets its third all-gather
    }
    synchronize(stream);
    EXPECT_RESULT(ncclGroupStart(), rank == 0 ? ncclInternalError : ncclSuccess);
    if (rank == 1) EXPECT_SUCCESS(ncclGroupEnd());
  });
  REQUIRE(all_zero(endings));
}

TEST_CASE("an injected error inside a group fails the group") {
  const Environment environment = fault("call=ncclAllGather,nth=2,action=error:3");
  const auto endings = run_communicators(1, environment, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(gather(comm, rank, stream));
    EXPECT_RESULT(gather(comm, rank, stream), ncclInternalError);
    EXPECT_RESULT(ncclGroupEnd(), ncclInternalError);
  });
  REQUIRE(all_zero(endings));
}

TEST_CASE("injected asynchronous errors, exits, kills and delays happen") {
  const Environment environment = fault(
      "rank=2,call=ncclAllGather,action=delay:2000;"
      "rank=1,call=ncclAllGather,nth=2,action=async:3;"
      "rank=3,call=ncclAllGather,nth=2,action=exit;"
      "rank=4,call=ncclAllGather,nth=2,action=kill");
  const Word failed;  // rank 1 has, before ranks 3 and 4 go
  const auto endings = run_communicators(5, environment, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_SUCCESS(gather(comm, rank, stream));
    EXPECT((seconds_since(begin) > 1.9) == (rank == 2));
    synchronize(stream);
    if (rank >= 3) failed.take();
    const ncclResult_t second = gather(comm, rank, stream);
    if (rank == 1) {
      for (int other = 3; other < 5; ++other) failed.give();
    }
    EXPECT(second == ncclSuccess || second == ncclRemoteError);  // some ranks are gone by now
    EXPECT(wait_for_async_error(comm) == (rank == 1 ? ncclInternalError : ncclRemoteError));
    if (rank == 1) EXPECT_RESULT(gather(comm, rank, stream), ncclInternalError);
  });
  REQUIRE(endings == std::vector<int>{0, 0, 0, 1, 128 + SIGKILL});
}

TEST_CASE("settings that cannot be understood fail the first creation") {
  const std::string text = GENERATE(as<std::string>(), "nonsense", "rank=1", "rank=x,call=ncclAllGather,action=kill",
                                    "call=ncclAllGather,action=explode", "call=ncclNothing,action=kill",
                                    "call=ncclAllGather,action=error", "call=ncclAllGather,action=error:99",
                                    "call=ncclAllGather,action=delay:soon", "call=ncclAllGather,nth=0,action=kill",
                                    "call=ncclAllGather,action=kill:9", "call=ncclAllGather,action=kill,,");
  CAPTURE(text);
  const Environment environment = fault(text);
  REQUIRE(run_ranks(1, environment, [](int, const ncclUniqueId&) {}) == std::vector<int>{1});
  const auto endings = run_ranks(1, [&](int, const ncclUniqueId& id) {
    setenv("STANDIN_RATE_MBPS", "fast", 1);
    ncclComm_t comm = nullptr;
    EXPECT_RESULT(ncclCommInitRank(&comm, 1, id, 0), ncclSystemError);
    EXPECT(std::strstr(ncclGetLastError(nullptr), "STANDIN_RATE_MBPS=fast") != nullptr);
  });
  REQUIRE(all_zero(endings));
}

TEST_CASE("a link rate gives an all-gather its bus bandwidth") {
  const int rank_count = GENERATE(2, 4);
  CAPTURE(rank_count);
  const Environment environment = {{"STANDIN_RATE_MBPS", "50"}};
  const auto endings = run_communicators(rank_count, environment, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    constexpr double rate = 50e6;
    constexpr std::size_t bytes = 4 << 20;
    std::vector<std::uint8_t> data(bytes * static_cast<std::size_t>(rank_count));
    EXPECT_SUCCESS(gather(comm, rank, stream));
    synchronize(stream);
    const std::uint8_t* own = data.data() + static_cast<std::size_t>(rank) * bytes;
    const double expected = static_cast<double>(bytes) * (rank_count - 1) / rate;
    const auto in_time = [&] {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_SUCCESS(ncclAllGather(own, data.data(), bytes, ncclUint8, comm, stream));
      const double returned = seconds_since(begin);
      synchronize(stream);
      const double measured = seconds_since(begin);
      EXPECT(measured > 0.75 * expected);
      return measured < 1.25 * expected && returned < measured / 2;  // the call does not wait
    };
    EXPECT(succeeds_on_all_ranks(in_time, comm, stream));
  });
  REQUIRE(all_zero(endings));
}

TEST_CASE("two communicators of a rank share its link") {
  const Environment environment = {{"STANDIN_RATE_MBPS", "50"}};
  const auto endings = run_communicators(2, environment, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    ncclComm_t second = nullptr;
    EXPECT_SUCCESS(ncclCommSplit(comm, 0, rank, &second, nullptr));
    {
      const ScopedStream other;
      constexpr std::size_t bytes = 4 << 20;
      std::vector<std::uint8_t> one(2 * bytes);
      std::vector<std::uint8_t> two(2 * bytes);
      const std::vector<std::uint8_t> own(bytes);
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_SUCCESS(ncclAllGather(own.data(), one.data(), bytes, ncclUint8, comm, stream));
      EXPECT_SUCCESS(ncclAllGather(own.data(), two.data(), bytes, ncclUint8, second, other.get()));
      synchronize(stream);
      other.synchronize();
      EXPECT(seconds_since(begin) > 0.75 * 2 * bytes / 50e6);
    }
    EXPECT_SUCCESS(ncclCommDestroy(second));
  });
  REQUIRE(all_zero(endings));
}

TEST_CASE("a latency is added to every operation") {
  const Environment environment = {{"STANDIN_LATENCY_US", "5000"}};
  const auto endings = run_communicators(2, environment, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < 10; ++call) EXPECT_SUCCESS(gather(comm, rank, stream));
    synchronize(stream);
    EXPECT(seconds_since(begin) > 0.05);
  });
  REQUIRE(all_zero(endings));
}

TEST_CASE("the version can be set") {
  const auto version = [](int, const ncclUniqueId&) {
    int code = 0;
    EXPECT_SUCCESS(ncclGetVersion(&code));
    EXPECT(code == (std::getenv("STANDIN_VERSION") == nullptr ? 22809 : 22304));
  };
  REQUIRE(all_zero(run_ranks(1, version)));
  REQUIRE(all_zero(run_ranks(1, {{"STANDIN_VERSION", "22304"}}, version)));
}

}  // namespace standin::test
