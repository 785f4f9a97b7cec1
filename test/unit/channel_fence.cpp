// Fences over the connections between processes: ranks switch together, also within one process, early messages are
// not lost, and whoever leaves or dies is noticed behind what he has said.
#include <thread>

#include "switcher/fences.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/channel_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace std::chrono_literals;
using namespace zipccl::switcher;

constexpr FenceClass some_class{1, 0};
const FenceSetting compressed{true, 16, 1 << 20};

std::vector<std::uint32_t> first_ranks(std::uint32_t count) {
  std::vector<std::uint32_t> ranks(count);
  for (std::uint32_t rank = 0; rank < count; ++rank) ranks[rank] = rank;
  return ranks;
}

// Makes calls until they have the setting, or `limit` of them. Returns the number of the first such call, or -1.
std::int64_t call_until(FenceGate& gate, const FenceSetting& wanted, std::uint64_t limit) {
  for (std::uint64_t i = 0; i < limit; ++i) {
    FenceSetting setting;
    std::uint64_t call = 0;
    if (gate.enter(&setting, &call) != Status::ok) return -2;
    if (setting == wanted) return static_cast<std::int64_t>(call);
    std::this_thread::sleep_for(200us);
  }
  return -1;
}

// Ranks with fences, in so many stand-ins for processes.
struct FencedRanks {
  FencedRanks(std::size_t process_count, std::uint32_t rank_count)
      : processes(process_count), joined(join_all(processes.all(), rank_count)) {
    for (std::uint32_t rank = 0; rank < rank_count; ++rank) {
      REQUIRE(joined[rank].agreed);
      fences.push_back(std::make_unique<Fences>(*processes.all()[rank % process_count], *joined[rank].channel, rank));
      REQUIRE(fences.back()->start() == Status::ok);
    }
  }
  FenceGate& gate(std::uint32_t rank) {
    return fences[rank]->gate(some_class, first_ranks(static_cast<std::uint32_t>(joined.size())), {});
  }
  void leave(std::uint32_t rank) {
    fences[rank].reset();
    joined[rank].channel.reset();
  }

  Processes processes;
  std::vector<Joined> joined;
  std::vector<std::unique_ptr<Fences>> fences;
};

}  // namespace

TEST_CASE("messages keep their order, and the loss of their sender comes last") {
  for (const std::size_t process_count : {1, 2}) {
    Processes processes(process_count);
    std::vector<Joined> joined = join_all(processes.all(), 2);
    constexpr std::uint64_t count = 500;
    for (std::uint64_t i = 0; i < count; ++i) {
      REQUIRE(joined[0].channel->send_fence(1, {3, i}, {FenceMessageType::wish, 0, i, compressed}) == Status::ok);
    }
    joined[0].channel.reset();
    FenceEvent event;
    for (std::uint64_t i = 0; i <= count; ++i) {
      REQUIRE(eventually([&] { return joined[1].channel->next_fence_event(&event); }));
      REQUIRE(event.sender == 0);
      REQUIRE(event.lost == (i == count));
      if (i < count) {
        REQUIRE(event.fence_class == FenceClass{3, i});
        REQUIRE(event.message == FenceMessage{FenceMessageType::wish, 0, i, compressed});
      }
    }
    CHECK_FALSE(joined[1].channel->next_fence_event(&event));
    CHECK(joined[1].channel->send_fence(0, some_class, {}) == Status::connection_lost);
    CHECK(joined[1].channel->send_fence(1, some_class, {}) == Status::invalid_argument);
  }
}

TEST_CASE("ranks of one and of several processes switch at the same call") {
  for (const std::size_t process_count : {1, 3, 8}) {
    FencedRanks ranks(process_count, 8);
    std::vector<std::int64_t> calls(8);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 8; ++rank) {
      threads.emplace_back([&, rank] {
        ranks.gate(rank).wish(compressed);
        calls[rank] = call_until(ranks.gate(rank), compressed, 20'000);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(calls[0] > 0);
    CHECK(calls == std::vector(8, calls[0]));
  }
}

TEST_CASE("what is said of a class before a rank knows it is not lost") {
  FencedRanks ranks(2, 2);
  ranks.gate(1).wish(compressed);
  std::this_thread::sleep_for(50ms);
  ranks.gate(0).wish(compressed);
  std::int64_t first = 0;
  std::thread other([&] { first = call_until(ranks.gate(1), compressed, 20'000); });
  CHECK(call_until(ranks.gate(0), compressed, 20'000) > 0);
  other.join();
  CHECK(first > 0);
}

TEST_CASE("classes have fences of their own") {
  FencedRanks ranks(3, 3);
  const FenceClass pair{2, 7};
  FenceGate& one = ranks.fences[1]->gate(pair, {1, 2}, {});
  FenceGate& other = ranks.fences[2]->gate(pair, {1, 2}, {});
  one.wish(compressed);
  other.wish(compressed);
  std::int64_t first = 0;
  std::thread thread([&] { first = call_until(one, compressed, 20'000); });
  CHECK(call_until(other, compressed, 20'000) > 0);
  thread.join();
  CHECK(first > 0);
  CHECK(call_until(ranks.gate(0), compressed, 50) == -1);
}

TEST_CASE("a rank that leaves takes no decision with it") {
  for (int round = 0; round < 20; ++round) {
    FencedRanks ranks(3, 3);
    std::vector<std::thread> threads;
    std::vector<std::int64_t> calls(3);
    // Every rank makes as many calls; those that are done leave at once, the coordinator among them.
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        ranks.gate(rank).wish(compressed);
        calls[rank] = call_until(ranks.gate(rank), {true, 99, 1}, 12);  // never so
        ranks.leave(rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(calls == std::vector<std::int64_t>(3, -1));
  }
}

TEST_CASE("a fence that waits for a rank which is gone ends") {
  FencedRanks ranks(2, 2);
  FenceGate& gate = ranks.gate(1);
  gate.wish(compressed);
  ranks.leave(0);
  REQUIRE(eventually([&] { return gate.state().frozen; }));
  CHECK(call_until(gate, compressed, 100) == -1);
}

TEST_CASE("fences end with an abort, those of later classes too") {
  FencedRanks ranks(2, 2);
  FenceGate& gate = ranks.gate(0);
  ranks.fences[0]->abort();
  FenceSetting setting;
  std::uint64_t call = 0;
  CHECK(gate.enter(&setting, &call) == Status::aborted);
  CHECK(ranks.fences[0]->gate({9, 9}, {0, 1}, {}).enter(&setting, &call) == Status::aborted);
}

}  // namespace zipccl::test
