// The stand-in NCCL: how point-to-point operations wait for each other, alone and in groups.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "test/standin/forked_ranks.hpp"
#include "test/unit/catch.hpp"

namespace standin::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t large = 3000001;  // more than a connection buffers

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void send(const Bytes& data, int peer, ncclComm_t comm, cudaStream_t stream) {
  EXPECT_SUCCESS(ncclSend(data.data(), data.size(), ncclUint8, peer, comm, stream));
}

void receive(Bytes* data, int peer, ncclComm_t comm, cudaStream_t stream) {
  EXPECT_SUCCESS(ncclRecv(data->data(), data->size(), ncclUint8, peer, comm, stream));
}

bool finished(cudaStream_t stream) {
  void* event = nullptr;
  int done = 0;
  EXPECT(zipccl_host_runtime.event_create(&event) == 0);
  EXPECT(zipccl_host_runtime.event_record(event, stream) == 0);
  sleep_ms(50);
  EXPECT(zipccl_host_runtime.event_query(event, &done) == 0);
  EXPECT(zipccl_host_runtime.event_destroy(event) == 0);
  return done != 0;
}

Environment rendezvous(bool on) { return {{"STANDIN_RENDEZVOUS", on ? "1" : "0"}}; }

}  // namespace

TEST_CASE("a send waits for its receive: large ones always, all of them if asked") {
  const bool strict = GENERATE(false, true);
  const std::size_t bytes = strict ? GENERATE(0, 1, 5000) : large;
  CAPTURE(strict, bytes);
  REQUIRE(all_zero(run_communicators(2, rendezvous(strict), [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    const ScopedStream control;
    ncclComm_t other = nullptr;
    EXPECT_SUCCESS(ncclCommSplit(comm, 0, rank, &other, nullptr));
    Bytes data = rank == 0 ? pattern(bytes, 0) : Bytes(bytes);
    Bytes token(1);
    if (rank == 0) {
      send(data, 1, comm, stream);
      EXPECT(!finished(stream));
      send(token, 1, other, control.get());
    } else {
      receive(&token, 0, other, control.get());
      control.synchronize();
      receive(&data, 0, comm, stream);
    }
    synchronize(stream);
    EXPECT(data == pattern(bytes, 0));
    control.synchronize();
    EXPECT_SUCCESS(ncclCommDestroy(other));
  })));
}

TEST_CASE("three ranks in a circle, of which one groups its two messages") {
  const bool strict = GENERATE(false, true);
  CAPTURE(strict);
  REQUIRE(all_zero(run_communicators(3, rendezvous(strict), [](ncclComm_t comm, int rank, cudaStream_t stream) {
    const int next = (rank + 1) % 3;
    const int previous = (rank + 2) % 3;
    Bytes in(large);
    const Bytes out = pattern(large, rank);
    if (rank == 0) EXPECT_SUCCESS(ncclGroupStart());
    send(out, next, comm, stream);
    receive(&in, previous, comm, stream);
    if (rank == 0) EXPECT_SUCCESS(ncclGroupEnd());
    synchronize(stream);
    EXPECT(in == pattern(large, previous));
  })));
}

TEST_CASE("the two sides of a pair may group differently, as long as the order of each direction agrees") {
  const bool strict = GENERATE(false, true);
  CAPTURE(strict);
  REQUIRE(all_zero(run_communicators(2, rendezvous(strict), [](ncclComm_t comm, int rank, cudaStream_t stream) {
    const std::vector<std::size_t> sizes = {large, 0, 7, 0, large, 1, 100000};
    std::vector<Bytes> out;
    std::vector<Bytes> in;
    for (std::size_t index = 0; index < sizes.size(); ++index) {
      out.push_back(pattern(sizes[index], rank, static_cast<int>(index)));
      in.emplace_back(sizes[index]);
    }
    // Rank 0: everything in one group, sends last. Rank 1: pairs of groups, receives first in each.
    if (rank == 0) {
      EXPECT_SUCCESS(ncclGroupStart());
      for (Bytes& data : in) receive(&data, 1, comm, stream);
      for (const Bytes& data : out) send(data, 1, comm, stream);
      EXPECT_SUCCESS(ncclGroupEnd());
    } else {
      for (std::size_t index = 0; index < sizes.size(); ++index) {
        if (index % 3 == 0) EXPECT_SUCCESS(ncclGroupStart());
        send(out[index], 0, comm, stream);
        receive(&in[index], 0, comm, stream);
        if (index % 3 == 2 || index + 1 == sizes.size()) EXPECT_SUCCESS(ncclGroupEnd());
      }
    }
    synchronize(stream);
    for (std::size_t index = 0; index < sizes.size(); ++index) {
      EXPECT(in[index] == pattern(sizes[index], 1 - rank, static_cast<int>(index)));
    }
  })));
}

TEST_CASE("messages that fill a transfer to the last byte arrive") {
  REQUIRE(all_zero(run_communicators(2, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    for (std::size_t bytes = (1 << 20) - 32; bytes <= (1 << 20) + 8; ++bytes) {
      Bytes data = rank == 0 ? pattern(bytes, 0) : Bytes(bytes);
      if (rank == 0) send(data, 1, comm, stream);
      if (rank == 1) receive(&data, 0, comm, stream);
      synchronize(stream);
      EXPECT(data == pattern(bytes, 0));
    }
  })));
}

TEST_CASE("a group's collectives come before its messages") {
  REQUIRE(all_zero(run_communicators(2, rendezvous(true), [](ncclComm_t comm, int rank, cudaStream_t stream) {
    Bytes message = rank == 0 ? pattern(100, 0) : Bytes(100);
    const Bytes own = pattern(1000, rank);
    Bytes all(2000);
    if (rank == 0) {
      EXPECT_SUCCESS(ncclGroupStart());
      send(message, 1, comm, stream);
      EXPECT_SUCCESS(ncclAllGather(own.data(), all.data(), own.size(), ncclUint8, comm, stream));
      EXPECT_SUCCESS(ncclGroupEnd());
    } else {
      EXPECT_SUCCESS(ncclAllGather(own.data(), all.data(), own.size(), ncclUint8, comm, stream));
      receive(&message, 0, comm, stream);
    }
    synchronize(stream);
    EXPECT(message == pattern(100, 0));
    EXPECT(std::equal(own.begin(), own.end(), all.begin() + rank * 1000));
  })));
}

TEST_CASE("communicators of a group run in one order on a shared stream, beside each other on two") {
  const bool shared = GENERATE(false, true);
  CAPTURE(shared);
  REQUIRE(all_zero(run_communicators(2, rendezvous(true), [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    const ScopedStream side;
    ncclComm_t comms[2] = {comm, nullptr};
    EXPECT_SUCCESS(ncclCommSplit(comm, 0, rank, &comms[1], nullptr));
    cudaStream_t streams[2] = {stream, shared ? stream : side.get()};
    Bytes out[2] = {pattern(large, rank, 0), pattern(large, rank, 1)};
    Bytes in[2] = {Bytes(large), Bytes(large)};
    for (int round = 0; round < 3; ++round) {
      EXPECT_SUCCESS(ncclGroupStart());
      for (int turn = 0; turn < 2; ++turn) {
        const int index = rank == 0 ? turn : 1 - turn;  // the ranks name them in opposite orders
        send(out[index], 1 - rank, comms[index], streams[index]);
        receive(&in[index], 1 - rank, comms[index], streams[index]);
      }
      EXPECT_SUCCESS(ncclGroupEnd());
    }
    synchronize(stream);
    side.synchronize();
    for (int index = 0; index < 2; ++index) EXPECT(in[index] == pattern(large, 1 - rank, index));
    if (!shared) {
      // On two streams neither waits for the other: rank 1 serves them one by one, in either order.
      for (int first = 0; first < 2; ++first) {
        if (rank == 0) {
          EXPECT_SUCCESS(ncclGroupStart());
          for (int index = 0; index < 2; ++index) send(out[index], 1, comms[index], streams[index]);
          EXPECT_SUCCESS(ncclGroupEnd());
        } else {
          receive(&in[first], 0, comms[first], stream);
          receive(&in[1 - first], 0, comms[1 - first], stream);
        }
        synchronize(stream);
        side.synchronize();
      }
    }
    EXPECT_SUCCESS(ncclCommDestroy(comms[1]));
  })));
}

TEST_CASE("operations of a communicator run in the order of issue, also across streams") {
  REQUIRE(all_zero(run_communicators(2, rendezvous(true), [](ncclComm_t comm, int rank, cudaStream_t stream) {
    const ScopedStream held;
    static std::atomic<bool> open;
    open = false;
    Bytes first = rank == 0 ? Bytes{1} : Bytes(1);
    Bytes second = rank == 0 ? Bytes{2} : Bytes(1);
    const auto gate = [](void*) {
      while (!open) sleep_ms(1);
    };
    EXPECT(zipccl_host_runtime.stream_enqueue(held.get(), gate, nullptr) == 0);
    if (rank == 0) {
      send(first, 1, comm, held.get());
      send(second, 1, comm, stream);
    } else {
      receive(&first, 0, comm, held.get());
      receive(&second, 0, comm, stream);
    }
    EXPECT(!finished(stream));  // behind the operation that is held
    open = true;
    synchronize(stream);
    held.synchronize();
    EXPECT(first[0] == 1);
    EXPECT(second[0] == 2);
  })));
}

TEST_CASE("messages take the link's rate and latency") {
  const Environment environment = {{"STANDIN_RATE_MBPS", "50"}, {"STANDIN_LATENCY_US", "5000"}};
  REQUIRE(all_zero(run_communicators(2, environment, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    constexpr std::size_t bytes = 4 << 20;
    const Bytes out(bytes);
    Bytes in(bytes);
    const auto exchange = [&](std::size_t count, int peer) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_SUCCESS(ncclGroupStart());
      EXPECT_SUCCESS(ncclSend(out.data(), count, ncclUint8, peer, comm, stream));
      EXPECT_SUCCESS(ncclRecv(in.data(), count, ncclUint8, peer, comm, stream));
      EXPECT_SUCCESS(ncclGroupEnd());
      synchronize(stream);
      return seconds_since(begin);
    };
    const auto in_time = [&] {
      const double measured = exchange(bytes, 1 - rank);
      EXPECT(measured > 0.75 * bytes / 50e6);
      return measured < 1.25 * bytes / 50e6;
    };
    EXPECT(succeeds_on_all_ranks(in_time, comm, stream));
    const double empty = exchange(0, 1 - rank);
    EXPECT(empty > 0.005);
    // A message to the rank itself takes no link.
    double to_itself = 1e9;
    for (int attempt = 0; attempt < 50 && to_itself >= 0.75 * bytes / 50e6; ++attempt) {
      to_itself = exchange(bytes, rank);
    }
    EXPECT(to_itself < 0.75 * bytes / 50e6);
  })));
}

TEST_CASE("an injected error drops a group of messages, and the next ones match again") {
  const Environment environment = {{"STANDIN_FAULT", "call=ncclRecv,nth=2,action=error:3"}};
  REQUIRE(all_zero(run_communicators(2, environment, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    for (int round = 0; round < 3; ++round) {
      const Bytes out = pattern(1000, rank, round);
      Bytes in(1000);
      EXPECT_SUCCESS(ncclGroupStart());
      send(out, 1 - rank, comm, stream);
      const ncclResult_t expected = round == 1 ? ncclInternalError : ncclSuccess;
      EXPECT_RESULT(ncclRecv(in.data(), in.size(), ncclUint8, 1 - rank, comm, stream), expected);
      EXPECT_RESULT(ncclGroupEnd(), expected);
      synchronize(stream);
      EXPECT(in == (round == 1 ? Bytes(1000) : pattern(1000, 1 - rank, round)));
    }
  })));
}

TEST_CASE("messages of unlike sizes are an error, not a hang") {
  REQUIRE(all_zero(run_communicators(2, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    Bytes data(rank == 0 ? 100 : 50);
    if (rank == 0) send(data, 1, comm, stream);
    if (rank == 1) {
      receive(&data, 0, comm, stream);
      EXPECT(wait_for_async_error(comm) == ncclInternalError);
    }
    synchronize(stream);
  })));
}

TEST_CASE("an abort or a death releases a send that waits") {
  const bool dies = GENERATE(false, true);
  CAPTURE(dies);
  const Word called;
  auto endings = run_ranks(2, rendezvous(true), [&](int rank, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    EXPECT_SUCCESS(ncclCommInitRank(&comm, 2, id, rank));
    const ScopedStream stream;
    const Bytes data(1);
    if (rank == 0) {
      send(data, 1, comm, stream.get());  // never received
      called.give();
    }
    if (rank == 1) {
      called.take();
      sleep_ms(50);
      if (dies) raise(SIGKILL);
    } else if (dies) {
      EXPECT(wait_for_async_error(comm) == ncclRemoteError);
    } else {
      sleep_ms(50);
    }
    EXPECT_SUCCESS(ncclCommAbort(comm));
    stream.synchronize();
  });
  REQUIRE(endings[1] == (dies ? 128 + SIGKILL : 0));
  REQUIRE(endings[0] == 0);
}

}  // namespace standin::test
