// The helper thread's pollers: nobody's work is overlooked, and none costs a core.
#include <sys/resource.h>

#include <functional>
#include <random>
#include <string>

#include "test/unit/catch.hpp"
#include "test/unit/channel_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace std::chrono_literals;
using namespace zipccl::switcher;
using Clock = std::chrono::steady_clock;

// Takes work whenever it is polled; wants to be polled again while `busy`.
class Worker final : public Poller {
 public:
  bool poll() override {
    ++polls;
    running = true;
    if (slow) std::this_thread::sleep_for(50ms);
    done = wanted.load();
    running = false;
    return busy;
  }

  std::atomic<std::uint64_t> wanted = 0;
  std::atomic<std::uint64_t> done = 0;
  std::atomic<std::uint64_t> polls = 0;
  std::atomic<bool> busy = false;
  std::atomic<bool> slow = false;
  std::atomic<bool> running = false;
};

std::chrono::microseconds processor_time() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

std::chrono::microseconds processor_time_during(std::chrono::milliseconds duration) {
  const auto before = processor_time();
  std::this_thread::sleep_for(duration);
  return processor_time() - before;
}

// Whether it is so in one of many stretches of time: in any single one the machine may be busy with something else.
bool in_some_window(const std::function<bool()>& so) {
  for (int window = 0; window < 60; ++window) {
    if (so()) return true;
  }
  return false;
}

TEST_CASE("no wake-up is lost") {
  const auto rendezvous = Rendezvous::create("lo");
  Worker worker;
  REQUIRE(rendezvous->add(&worker) == Status::ok);
  std::mt19937 random(5);
  SECTION("when the work comes at any moment around the thread's falling asleep") {
    for (std::uint64_t item = 1; item <= 20'000; ++item) {
      for (auto spin = random() % 4000; spin > 0; --spin) static_cast<void>(worker.done.load());
      worker.wanted = item;
      rendezvous->wake();
      const auto deadline = Clock::now() + 10s;
      while (worker.done != item && Clock::now() < deadline) std::this_thread::yield();
      REQUIRE(worker.done == item);
    }
  }
  SECTION("when the poller alternates between busy and idle") {
    for (std::uint64_t item = 1; item <= 2'000; ++item) {
      worker.busy = random() % 2 == 0;
      worker.wanted = item;
      rendezvous->wake();
      const auto deadline = Clock::now() + 10s;
      while (worker.done != item && Clock::now() < deadline) std::this_thread::yield();
      REQUIRE(worker.done == item);
      worker.busy = false;
    }
  }
  SECTION("when four threads wake at once") {
    std::vector<std::thread> threads;
    std::atomic<int> overlooked = 0;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < 5'000; ++round) {
          const std::uint64_t mine = ++worker.wanted;
          rendezvous->wake();
          const auto deadline = Clock::now() + 10s;
          while (worker.done < mine && Clock::now() < deadline) std::this_thread::yield();
          overlooked += worker.done < mine;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(overlooked == 0);
  }
  rendezvous->remove(&worker);
}

TEST_CASE("an idle poller costs nothing, a busy one little") {
  const auto rendezvous = Rendezvous::create("lo");
  Worker worker;
  REQUIRE(rendezvous->add(&worker) == Status::ok);
  REQUIRE(eventually([&] { return worker.polls > 0; }));
  std::uint64_t polls = 0;
  std::chrono::microseconds spent{};
  const auto measure = [&] {
    const std::uint64_t before = worker.polls;
    spent = processor_time_during(300ms);
    polls = worker.polls - before;
  };
  const bool idle = in_some_window([&] {
    measure();
    return polls == 0 && spent < 5ms;
  });
  INFO(polls << " polls in 300 ms took " << spent.count() << " us");
  CHECK(idle);

  worker.busy = true;
  rendezvous->wake();
  std::this_thread::sleep_for(50ms);
  const bool busy = in_some_window([&] {
    measure();
    return polls <= 1500 && polls >= 100 && spent < 100ms;
  });
  INFO(polls << " polls in 300 ms took " << spent.count() << " us");
  CHECK(busy);

  worker.busy = false;
  rendezvous->remove(&worker);
}

TEST_CASE("a wake-up restores the brisk pace") {
  const auto rendezvous = Rendezvous::create("lo");
  Worker worker;
  worker.busy = true;
  REQUIRE(rendezvous->add(&worker) == Status::ok);
  std::this_thread::sleep_for(100ms);
  const auto polls_during = [&](bool waking) {
    const std::uint64_t before = worker.polls;
    for (int i = 0; i < 20; ++i) {
      if (waking) rendezvous->wake();
      std::this_thread::sleep_for(10ms);
    }
    return worker.polls - before;
  };
  std::string seen;
  const bool restored = in_some_window([&] {
    const std::uint64_t calm = polls_during(false);
    const std::uint64_t brisk = polls_during(true);
    seen = std::to_string(calm) + " calm polls, " + std::to_string(brisk) + " brisk ones";
    return brisk > calm + calm / 2;
  });
  INFO(seen);
  CHECK(restored);
  rendezvous->remove(&worker);
}

TEST_CASE("a removed poller is not running and never runs again") {
  const auto rendezvous = Rendezvous::create("lo");
  Worker other;
  other.busy = true;
  REQUIRE(rendezvous->add(&other) == Status::ok);
  for (int round = 0; round < 20; ++round) {
    Worker worker;
    worker.slow = round % 2 == 0;
    worker.busy = true;
    REQUIRE(rendezvous->add(&worker) == Status::ok);
    REQUIRE(eventually([&] { return worker.running || !worker.slow; }));
    rendezvous->remove(&worker);
    CHECK_FALSE(worker.running);
    const std::uint64_t polls = worker.polls;
    std::this_thread::sleep_for(1ms);
    CHECK(worker.polls == polls);
  }
  const std::uint64_t polls = other.polls;
  CHECK(eventually([&] { return other.polls > polls; }));
  rendezvous->remove(&other);
}

// Removes itself, and adds another, while it is polled.
class Successor final : public Poller {
 public:
  Successor(Rendezvous* rendezvous, Poller* next) : rendezvous_(rendezvous), next_(next) {}
  bool poll() override {
    rendezvous_->remove(this);
    if (rendezvous_->add(next_) == Status::ok) ++polls;
    return false;
  }
  std::atomic<int> polls = 0;

 private:
  Rendezvous* rendezvous_;
  Poller* next_;
};

TEST_CASE("pollers may come and go from within one") {
  const auto rendezvous = Rendezvous::create("lo");
  Worker first;
  Worker last;
  Worker added;
  Successor successor(rendezvous.get(), &added);
  for (Poller* poller : {static_cast<Poller*>(&first), static_cast<Poller*>(&successor), static_cast<Poller*>(&last)}) {
    REQUIRE(rendezvous->add(poller) == Status::ok);
  }
  CHECK(eventually([&] { return added.polls > 0 && last.polls > 0; }));
  rendezvous->wake();
  CHECK(eventually([&] { return added.polls > 1; }));
  CHECK(successor.polls == 1);
  for (Worker* worker : {&first, &last, &added}) rendezvous->remove(worker);
}

TEST_CASE("a record wakes the pollers, and so does a lost peer") {
  const Processes processes(2);
  auto joined = join_all(processes.all(), 2);
  REQUIRE(joined[0].agreed);
  Worker worker;
  REQUIRE(processes.owned[1]->add(&worker) == Status::ok);
  REQUIRE(eventually([&] { return worker.polls > 0; }));
  std::this_thread::sleep_for(50ms);
  std::uint64_t polls = worker.polls;
  REQUIRE(joined[0].channel->send(1, {0, 1, 0}, make_record({}, 1, 10)) == Status::ok);
  CHECK(eventually([&] { return worker.polls > polls; }));
  std::this_thread::sleep_for(50ms);
  polls = worker.polls;
  joined[0].channel.reset();
  CHECK(eventually([&] { return worker.polls > polls; }));
  processes.owned[1]->remove(&worker);
}

}  // namespace
}  // namespace zipccl::test
