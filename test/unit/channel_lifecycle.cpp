// What connections cost and how they end: descriptors, shared connections, forked children.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "test/unit/catch.hpp"
#include "test/unit/channel_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace std::chrono_literals;
using namespace zipccl::switcher;

bool connected(Joined& one, Joined& other) {
  if (!one.agreed || !other.agreed) return false;
  return one.channel->send(1, {0, 1, 0}, make_record({0, 1, 0}, 1, 100)) == Status::ok &&
         await_record(*other.channel, {0, 1, 0}) != nullptr;
}

TEST_CASE("communicators that are created at once share one connection") {
  const Processes processes(2);
  const std::size_t alone = open_descriptor_count();
  std::vector<std::vector<Joined>> communicators(4);
  std::vector<std::thread> threads;
  for (auto& joined : communicators) {
    threads.emplace_back([&] { joined = join_all(processes.all(), 2); });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& joined : communicators) CHECK(connected(joined[0], joined[1]));
  // Two listeners and epoll sets of three for each process; both ends of the connection. The root's end of every
  // session closes a moment after the ranks'.
  constexpr std::size_t expected = 2 * (2 + 3) + 2;
  CHECK(eventually([&] { return open_descriptor_count() <= alone + expected; }));
  INFO(open_descriptor_count() - alone << " descriptors");
  CHECK(open_descriptor_count() <= alone + expected);
}

TEST_CASE("communicators come and go without descriptors growing") {
  const Processes processes(3);
  { auto warm = join_all(processes.all(), 3); }
  std::size_t before = 0;
  for (int round = 0; round < 100; ++round) {
    auto joined = join_all(processes.all(), 3);
    REQUIRE(connected(joined[0], joined[1]));
    if (round == 0) {
      std::this_thread::sleep_for(200ms);
      before = open_descriptor_count();
    }
  }
  CHECK(eventually([&] { return open_descriptor_count() <= before; }));
}

TEST_CASE("processes come and go without descriptors growing") {
  const auto root = Rendezvous::create("lo");
  std::size_t before = 0;
  for (int round = 0; round < 30; ++round) {
    {
      const auto visitor = Rendezvous::create("lo");
      auto joined = join_all({root.get(), visitor.get()}, 2);
      REQUIRE(connected(joined[0], joined[1]));
      joined.clear();
    }
    if (round == 0) {
      std::this_thread::sleep_for(200ms);
      before = open_descriptor_count();
    }
  }
  CHECK(eventually([&] { return open_descriptor_count() <= before; }));
}

std::vector<int> open_descriptors() {
  std::vector<int> open;
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) open.push_back(descriptor);
  }
  return open;
}

TEST_CASE("a forked child closes its copies of the sockets and nothing else") {
  auto processes = std::make_unique<Processes>(2);
  auto joined = join_all(processes->all(), 2);
  REQUIRE(connected(joined[0], joined[1]));
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    processes->owned[0]->close_in_child();
    int sockets = 0;
    for (const int descriptor : open_descriptors()) {
      int type = 0;
      socklen_t size = sizeof(type);
      sockets += getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
    }
    if (fcntl(ends[0], F_GETFD) < 0 || fcntl(ends[1], F_GETFD) < 0) _exit(50);
    if (sockets > 0) _exit(sockets);
    // New descriptors take the old numbers, and what is destroyed here leaves them alone.
    for (int i = 0; i < 40; ++i) {
      if (dup(ends[0]) < 0) _exit(52);
    }
    const std::size_t before = open_descriptor_count();
    joined.clear();
    processes.reset();
    _exit(open_descriptor_count() == before ? 0 : 51);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  close(ends[0]);
  close(ends[1]);
  REQUIRE(joined[1].channel->send(0, {1, 5, 0}, make_record({}, 0, 100)) == Status::ok);
  CHECK(await_record(*joined[0].channel, {1, 5, 0}) != nullptr);
}

TEST_CASE("a process's death is seen although its child lives on") {
  const auto statuses = fork_ranks(2, [](const ForkedRank& self) {
    if (self.rank == 1) {
      const pid_t child = fork();
      if (child == 0) {
        self.rendezvous->close_in_child();
        self.counters[0] = static_cast<std::uint64_t>(getpid());
        pause();
      }
      if (!eventually([&] { return self.counters[0] != 0; })) return 1;
      raise(SIGKILL);
    }
    switcher::Bytes record;
    const bool lost = eventually([&] { return self.channel->find({1, 1, 0}, &record) == Arrival::lost; }, 10s);
    const auto child = static_cast<pid_t>(self.counters[0].load());
    const bool child_lives = child > 0 && kill(child, SIGKILL) == 0;
    return lost && child_lives ? 0 : 2;
  });
  CHECK(statuses == std::vector<int>{0, 1000 + SIGKILL});
}

TEST_CASE("a process may end as soon as its channel is flushed") {
  const auto statuses = fork_ranks(2, [](const ForkedRank& self) {
    const RecordKey key{0, 1, 0};
    constexpr std::size_t bytes = std::size_t{30} << 20;
    if (self.rank == 0) {
      if (self.channel->send(1, key, make_record(key, 1, bytes)) != Status::ok) return 1;
      if (!eventually([&] { return self.channel->flushed(); })) return 2;
      _exit(0);  // at once: what was flushed arrives all the same
    }
    const auto record = await_record(*self.channel, key);
    return record != nullptr && *record == *make_record(key, 1, bytes) ? 0 : 3;
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

// Holds the helper thread up until told otherwise.
class Obstacle final : public Poller {
 public:
  bool poll() override {
    reached = true;
    while (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  }
  std::atomic<bool> reached = false;
  std::atomic<bool> gone = false;
};

TEST_CASE("what a process flushed before its end is not lost to those that still send to it") {
  const auto statuses = fork_ranks(2, [](const ForkedRank& self) {
    constexpr std::size_t bytes = 12'000;  // all of them fit into the kernel
    constexpr std::uint64_t count = 4;
    if (self.rank == 0) {
      self.barrier();  // rank 1 reads nothing from here on
      for (std::uint64_t i = 0; i < count; ++i) {
        if (self.channel->send(1, {0, i, 0}, make_record({0, i, 0}, 1, bytes)) != Status::ok) return 1;
      }
      if (!eventually([&] { return self.channel->flushed(); })) return 2;
      self.counters[0] = 1;
      _exit(0);
    }
    Obstacle obstacle;
    if (self.rendezvous->add(&obstacle) != Status::ok) return 8;
    if (!eventually([&] { return obstacle.reached.load(); })) return 3;
    self.barrier();
    if (!eventually([&] { return self.counters[0].load() == 1; })) return 4;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until it has ended
    for (std::uint64_t i = 0; i < 100; ++i) {
      static_cast<void>(self.channel->send(0, {1, i, 0}, make_record({1, i, 0}, 0, 100)));
    }
    obstacle.gone = true;
    self.rendezvous->remove(&obstacle);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto record = await_record(*self.channel, {0, i, 0});
      if (record == nullptr || *record != *make_record({0, i, 0}, 1, bytes)) return 5;
    }
    if (!eventually([&] { return self.channel->flushed(); })) return 6;
    switcher::Bytes none;
    return eventually([&] { return self.channel->find({0, count, 0}, &none) == Arrival::lost; }) ? 0 : 7;
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

}  // namespace
}  // namespace zipccl::test
