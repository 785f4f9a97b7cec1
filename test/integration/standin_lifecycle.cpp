// The stand-in NCCL: how communicators are made, end and fail.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "test/standin/forked_ranks.hpp"
#include "test/unit/catch.hpp"

namespace standin::test {
namespace {

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// Checks that the communicator has these ranks, by their ranks in some other communicator.
void expect_members(ncclComm_t comm, int own, const std::vector<int>& members, cudaStream_t stream) {
  int count = 0;
  EXPECT_SUCCESS(ncclCommCount(comm, &count));
  EXPECT(count == static_cast<int>(members.size()));
  std::vector<int> gathered(members.size(), -1);
  EXPECT_SUCCESS(ncclAllGather(&own, gathered.data(), 1, ncclInt32, comm, stream));
  synchronize(stream);
  EXPECT(gathered == members);
}

}  // namespace

TEST_CASE("creation returns when all ranks have entered and ignores foreign bytes of the id") {
  const Word enters;
  REQUIRE(all_zero(run_ranks(3, [&](int rank, const ncclUniqueId& given) {
    ncclUniqueId id = given;
    if (rank == 0) {
      for (int byte = 36; byte < NCCL_UNIQUE_ID_BYTES; ++byte) {
        EXPECT(id.internal[byte] == 0);
      }
    }
    std::memset(id.internal + 64, rank, 64);
    const auto begin = std::chrono::steady_clock::now();
    if (rank == 0) enters.give();
    if (rank == 2) {
      enters.take();
      sleep_ms(200);
    }
    ncclComm_t comm = nullptr;
    EXPECT_SUCCESS(ncclCommInitRank(&comm, 3, id, rank));
    if (rank == 0) EXPECT(std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(100));
    int value = -1;
    EXPECT_SUCCESS(ncclCommUserRank(comm, &value));
    EXPECT(value == rank);
    EXPECT_SUCCESS(ncclCommCuDevice(comm, &value));
    EXPECT(value == 0);
    EXPECT_SUCCESS(ncclCommFinalize(comm));
    EXPECT_RESULT(ncclAllGather(&value, &value, 1, ncclInt32, comm, nullptr), ncclInvalidUsage);
    EXPECT_SUCCESS(ncclCommDestroy(comm));
    EXPECT_RESULT(ncclCommCount(comm, &value), ncclInvalidArgument);
  })));
}

TEST_CASE("wrong arguments are refused as NCCL refuses them") {
  REQUIRE(all_zero(run_communicators(1, [](ncclComm_t comm, int, cudaStream_t stream) {
    ncclUniqueId id;
    EXPECT_SUCCESS(ncclGetUniqueId(&id));
    ncclComm_t other = nullptr;
    EXPECT_RESULT(ncclCommInitRank(&other, 0, id, 0), ncclInvalidArgument);
    EXPECT_RESULT(ncclCommInitRank(&other, 2, id, 2), ncclInvalidArgument);
    EXPECT_RESULT(ncclCommInitRank(&other, 2, id, -1), ncclInvalidArgument);
    EXPECT_RESULT(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.magic = 1;
    EXPECT_RESULT(ncclCommInitRankConfig(&other, 1, id, 0, &config), ncclInvalidArgument);
    EXPECT_RESULT(ncclGetUniqueId(nullptr), ncclInvalidArgument);
    EXPECT_RESULT(ncclCommSplit(comm, -2, 0, &other, nullptr), ncclInvalidArgument);

    std::int32_t data[4] = {};
    const auto no_type = static_cast<ncclDataType_t>(ncclNumTypes);
    EXPECT_RESULT(ncclAllGather(data, data, 1, ncclInt32, nullptr, stream), ncclInvalidArgument);
    EXPECT_RESULT(ncclAllGather(nullptr, data, 1, ncclInt32, comm, stream), ncclInvalidArgument);
    EXPECT_RESULT(ncclAllGather(data, nullptr, 1, ncclInt32, comm, stream), ncclInvalidArgument);
    EXPECT_RESULT(ncclAllGather(data, data, 1, no_type, comm, stream), ncclInvalidArgument);
    EXPECT_RESULT(ncclBroadcast(data, data, 1, ncclInt32, 1, comm, stream), ncclInvalidArgument);
    EXPECT_RESULT(ncclSend(data, 1, ncclInt32, -1, comm, stream), ncclInvalidArgument);
    const auto no_stream = reinterpret_cast<cudaStream_t>(data);
    EXPECT_RESULT(ncclAllGather(data, data, 1, ncclInt32, comm, no_stream), ncclUnhandledCudaError);
    EXPECT_RESULT(ncclAllReduce(data, data, 1, ncclInt32, ncclMaxRedOp, comm, stream), ncclInvalidArgument);
    EXPECT(std::strstr(ncclGetLastError(nullptr), "reduction operator") != nullptr);
    EXPECT_RESULT(ncclCommRegister(comm, data, 0, nullptr), ncclInvalidArgument);
    EXPECT(ncclCommDestroy(nullptr) == ncclSuccess);
    for (int result = 0; result < ncclNumResults; ++result) {
      EXPECT(ncclGetErrorString(static_cast<ncclResult_t>(result)) != std::string("unknown result code"));
    }
  })));
}

TEST_CASE("registrations and windows are handed out and taken back") {
  REQUIRE(all_zero(run_communicators(1, [](ncclComm_t comm, int, cudaStream_t) {
    void* memory = nullptr;
    EXPECT_SUCCESS(ncclMemAlloc(&memory, 1000));
    EXPECT(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
    void* handle = nullptr;
    EXPECT_SUCCESS(ncclCommRegister(comm, memory, 1000, &handle));
    EXPECT_SUCCESS(ncclCommDeregister(comm, handle));
    EXPECT_RESULT(ncclCommDeregister(comm, handle), ncclInvalidArgument);
    ncclWindow_t window = nullptr;
    EXPECT_SUCCESS(ncclCommWindowRegister(comm, memory, 1000, &window, 0));
    EXPECT(window != nullptr);
    EXPECT_SUCCESS(ncclCommWindowDeregister(comm, window));
    EXPECT_SUCCESS(ncclMemFree(memory));
  })));
}

TEST_CASE("split makes children by color and key") {
  REQUIRE(all_zero(run_communicators(5, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    ncclComm_t child = nullptr;
    const int color = rank == 4 ? NCCL_SPLIT_NOCOLOR : rank % 2;
    EXPECT_SUCCESS(ncclCommSplit(comm, color, -rank, &child, nullptr));
    if (rank == 4) {
      EXPECT(child == nullptr);
    } else {
      expect_members(child, rank, rank % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{3, 1}, stream);
      EXPECT_SUCCESS(ncclCommDestroy(child));
    }
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(ncclCommSplit(comm, 7, rank, &child, nullptr));
    EXPECT(child == nullptr);  // until the group ends
    EXPECT_SUCCESS(ncclGroupEnd());
    expect_members(child, rank, {0, 1, 2, 3, 4}, stream);
    EXPECT_SUCCESS(ncclCommDestroy(child));
  })));
}

TEST_CASE("shrink leaves ranks out, also one that has died") {
  const auto endings = run_communicators(4, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    ncclComm_t child = nullptr;
    int excluded = 0;
    if (rank == excluded) {
      EXPECT_RESULT(ncclCommShrink(comm, &excluded, 1, &child, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
    } else {
      EXPECT_SUCCESS(ncclCommShrink(comm, &excluded, 1, &child, nullptr, NCCL_SHRINK_DEFAULT));
      expect_members(child, rank, {1, 2, 3}, stream);
      EXPECT_SUCCESS(ncclCommDestroy(child));
    }
    if (rank == 2) raise(SIGKILL);
    std::vector<int> gathered(4);
    EXPECT_SUCCESS(ncclAllGather(&rank, gathered.data(), 1, ncclInt32, comm, stream));
    excluded = 2;
    EXPECT_SUCCESS(ncclCommShrink(comm, &excluded, 1, &child, nullptr, NCCL_SHRINK_ABORT));
    expect_members(child, rank, {0, 1, 3}, stream);
    EXPECT_SUCCESS(ncclCommDestroy(child));
  });
  REQUIRE(endings == std::vector<int>{0, 0, 128 + SIGKILL, 0});
}

TEST_CASE("one process can hold all ranks") {
  REQUIRE(all_zero(run_ranks(1, [](int, const ncclUniqueId&) {
    constexpr int rank_count = 4;
    const int devices[rank_count] = {3, 1, 0, 2};
    ncclComm_t comms[rank_count] = {};
    EXPECT_SUCCESS(ncclCommInitAll(comms, rank_count, devices));
    const int twice[2] = {1, 1};
    ncclComm_t refused[2] = {};
    EXPECT_RESULT(ncclCommInitAll(refused, 2, twice), ncclInvalidUsage);
    std::vector<std::vector<int>> results(rank_count, std::vector<int>(rank_count, -1));
    EXPECT_SUCCESS(ncclGroupStart());
    for (int rank = 0; rank < rank_count; ++rank) {
      int device = -1;
      EXPECT_SUCCESS(ncclCommCuDevice(comms[rank], &device));
      EXPECT(device == devices[rank]);
      int* result = results[static_cast<std::size_t>(rank)].data();
      result[rank] = rank;
      EXPECT_SUCCESS(ncclAllGather(result + rank, result, 1, ncclInt32, comms[rank], nullptr));
    }
    EXPECT_SUCCESS(ncclGroupEnd());
    synchronize(nullptr);
    for (const auto& result : results) {
      EXPECT((result == std::vector<int>{0, 1, 2, 3}));
    }
    for (ncclComm_t comm : comms) {
      EXPECT_SUCCESS(ncclCommDestroy(comm));
    }
  })));
}

TEST_CASE("several ranks and communicators are made in one group") {
  REQUIRE(all_zero(run_ranks(2, [](int process, const ncclUniqueId& id) {
    ncclComm_t comms[2] = {};
    EXPECT_SUCCESS(ncclGroupStart());
    for (int local = 0; local < 2; ++local) {
      EXPECT_SUCCESS(ncclCommInitRank(&comms[local], 4, id, 2 * process + local));
      EXPECT(comms[local] != nullptr);
    }
    EXPECT_SUCCESS(ncclGroupEnd());
    {
      const ScopedStream streams[2];
      std::vector<int> results[2] = {std::vector<int>(4), std::vector<int>(4)};
      const int ranks[2] = {2 * process, 2 * process + 1};
      for (const int local : {1, 0}) {  // outside a group each call returns at once
        EXPECT_SUCCESS(
            ncclAllGather(&ranks[local], results[local].data(), 1, ncclInt32, comms[local], streams[local].get()));
      }
      for (int local = 0; local < 2; ++local) {
        int device = -1;
        EXPECT_SUCCESS(ncclCommCuDevice(comms[local], &device));
        EXPECT(device == local);
        streams[local].synchronize();
        EXPECT((results[local] == std::vector<int>{0, 1, 2, 3}));
      }
    }
    for (ncclComm_t comm : comms) {
      EXPECT_SUCCESS(ncclCommDestroy(comm));
    }
  })));
}

TEST_CASE("a communicator cannot be used before its group has ended") {
  REQUIRE(all_zero(run_ranks(1, [](int, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    int count = 0;
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(ncclCommInitRank(&comm, 1, id, 0));
    EXPECT_RESULT(ncclCommCount(comm, &count), ncclInvalidArgument);
    EXPECT_SUCCESS(ncclGroupEnd());
    EXPECT_SUCCESS(ncclCommCount(comm, &count));
    EXPECT_SUCCESS(ncclCommDestroy(comm));
  })));
}

TEST_CASE("a nonblocking communicator is created in the background") {
  const Word asked;
  REQUIRE(all_zero(run_ranks(2, [&](int rank, const ncclUniqueId& id) {
    if (rank == 1) asked.take();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    EXPECT_RESULT(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
    ncclResult_t state = ncclInProgress;
    if (rank == 0) {  // while the other has not entered
      EXPECT_SUCCESS(ncclCommGetAsyncError(comm, &state));
      EXPECT(state == ncclInProgress);
      asked.give();
    }
    while (state == ncclInProgress) EXPECT_SUCCESS(ncclCommGetAsyncError(comm, &state));
    EXPECT(state == ncclSuccess);
    EXPECT_SUCCESS(ncclCommDestroy(comm));
  })));
}

TEST_CASE("abort ends a creation that waits for a rank") {
  REQUIRE(all_zero(run_ranks(1, [](int, const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    EXPECT_RESULT(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
    sleep_ms(20);
    EXPECT_SUCCESS(ncclCommAbort(comm));
  })));
}

TEST_CASE("creation fails on all ranks when their numbers of ranks disagree") {
  const Word enters;
  const auto endings = run_ranks(3, [&](int rank, const ncclUniqueId& id) {
    if (rank != 2) {
      enters.give();
    } else {
      enters.take(2);
      sleep_ms(500);  // after the others have entered
    }
    ncclComm_t comm = nullptr;
    EXPECT_RESULT(ncclCommInitRank(&comm, rank == 2 ? 4 : 3, id, rank), ncclInvalidUsage);
    EXPECT(comm == nullptr);
  });
  REQUIRE(all_zero(endings));
}

TEST_CASE("creation fails when a rank that has entered dies before all have") {
  const auto endings = run_ranks(2, [](int rank, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    if (rank == 0) {  // rank 2 never enters
      EXPECT_RESULT(ncclCommInitRank(&comm, 3, id, rank), ncclRemoteError);
      return;
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT_RESULT(ncclCommInitRankConfig(&comm, 3, id, rank, &config), ncclInProgress);
    sleep_ms(500);  // after it has entered in the background
    raise(SIGKILL);
  });
  REQUIRE(endings == std::vector<int>{0, 128 + SIGKILL});
}

TEST_CASE("a rank that enters twice is refused") {
  REQUIRE(all_zero(run_ranks(1, [](int, const ncclUniqueId& id) {
    ncclComm_t comms[2] = {};
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(ncclCommInitRank(&comms[0], 2, id, 1));
    EXPECT_SUCCESS(ncclCommInitRank(&comms[1], 2, id, 1));
    std::thread rank_zero([&] {
      sleep_ms(500);  // while the others meet
      ncclComm_t comm = nullptr;
      if (ncclCommInitRank(&comm, 2, id, 0) == ncclSuccess) ncclCommAbort(comm);
    });
    EXPECT_RESULT(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT(comms[0] == nullptr);
    EXPECT(comms[1] == nullptr);
    rank_zero.join();
  })));
}

TEST_CASE("abort from another thread releases operations in flight") {
  const Word called;
  const auto endings = run_ranks(2, [&](int rank, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    EXPECT_SUCCESS(ncclCommInitRank(&comm, 2, id, rank));
    const ScopedStream stream;
    int data = 0;  // both ranks receive what neither sends
    EXPECT_SUCCESS(ncclRecv(&data, 1, ncclInt32, 1 - rank, comm, stream.get()));
    if (rank == 0) {
      EXPECT_SUCCESS(ncclRecv(&data, 1, ncclInt32, 1, comm, stream.get()));
      std::thread watchdog([&] {
        called.take();
        sleep_ms(50);
        EXPECT_SUCCESS(ncclCommAbort(comm));
      });
      stream.synchronize();
      watchdog.join();
    } else {
      called.give();
      stream.synchronize();
      EXPECT(wait_for_async_error(comm) == ncclRemoteError);
      EXPECT_SUCCESS(ncclCommAbort(comm));
    }
  });
  REQUIRE(all_zero(endings));
}

TEST_CASE("revoke releases operations and leaves the handle valid") {
  REQUIRE(all_zero(run_communicators(2, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    int data = 0;
    if (rank == 0) EXPECT_SUCCESS(ncclRecv(&data, 1, ncclInt32, 1, comm, stream));
    EXPECT_SUCCESS(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    synchronize(stream);
    EXPECT_RESULT(ncclAllGather(&data, &data, 1, ncclInt32, comm, stream), ncclInvalidUsage);
  })));
}

TEST_CASE("a peer that dies fails operations in flight and later ones, without a hang") {
  const int rank_count = GENERATE(2, 4);
  CAPTURE(rank_count);
  const Word called;
  auto endings = run_communicators(rank_count, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    std::vector<int> data(static_cast<std::size_t>(rank_count));
    for (int call = 0; call < 3; ++call) {
      if (rank == 1 && call == 2) {
        synchronize(stream);
        called.take(rank_count - 1);
        sleep_ms(50);
        raise(SIGKILL);
      }
      EXPECT_SUCCESS(ncclAllGather(&rank, data.data(), 1, ncclInt32, comm, stream));
    }
    called.give();
    synchronize(stream);
    EXPECT(wait_for_async_error(comm) == ncclRemoteError);
    EXPECT_RESULT(ncclAllGather(&rank, data.data(), 1, ncclInt32, comm, stream), ncclRemoteError);
  });
  REQUIRE(endings[1] == 128 + SIGKILL);
  endings[1] = 0;
  REQUIRE(all_zero(endings));
}

TEST_CASE("communicators give back their descriptors and threads") {
  REQUIRE(all_zero(run_communicators(2, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    expect_members(comm, rank, {0, 1}, stream);
    const std::size_t descriptors = count_entries("fd");
    const std::size_t threads = count_entries("task");
    for (int round = 0; round < 200; ++round) {
      ncclComm_t child = nullptr;
      EXPECT_SUCCESS(ncclCommSplit(comm, 0, rank, &child, nullptr));
      const ScopedStream own_stream;
      int data[2] = {};
      EXPECT_SUCCESS(ncclAllGather(&rank, data, 1, ncclInt32, child, own_stream.get()));
      if (round % 2 == 0) {
        EXPECT_SUCCESS(ncclCommDestroy(child));
      } else {
        own_stream.synchronize();
        EXPECT_SUCCESS(ncclCommAbort(child));
      }
    }
    EXPECT(count_entries("fd") == descriptors);
    EXPECT(entries_become("task", threads));
  })));
}

}  // namespace standin::test
