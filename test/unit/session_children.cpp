// Children of agreed communicators, over real sockets: every rank is a process to the others.
#include <algorithm>
#include <barrier>
#include <optional>
#include <semaphore>

#include "switcher/lineage.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/channel_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;

struct Child {
  Status hello = Status::aborted;
  Status verdict = Status::aborted;
  Verdict answer;
  std::optional<Place> place;
  std::unique_ptr<Channel> channel;
  ParentPointer parent;
  std::string why;
};

// Waits until a process's helper thread has done what it was given before.
class Caught final : public Poller {
 public:
  static void up(Rendezvous& rendezvous) {
    Caught caught;
    if (rendezvous.add(&caught) == Status::ok) {
      caught.polled_.acquire();
      rendezvous.remove(&caught);
    }
  }
  bool poll() override {
    polled_.release();
    return false;
  }

 private:
  std::counting_semaphore<> polled_{0};
};

// An agreed communicator of `count` ranks, and children of it.
struct Family {
  explicit Family(std::uint32_t count) : processes(count), ranks(join_all(processes.all(), count)) {
    for (const Joined& rank : ranks) REQUIRE(rank.parent != nullptr);
  }

  // What a rank does when its real call has returned.
  enum class Course { asks, withdraws, leaves, absent };
  struct Step {
    Invitation invitation;
    Hello hello;
    Course course = Course::asks;
  };
  // All ranks that have a step take it at once.
  std::vector<Child> create(const std::vector<std::optional<Step>>& steps) {
    std::vector<Child> children(steps.size());
    const auto taking_part = std::ranges::count_if(steps, [](const auto& step) { return step.has_value(); });
    std::barrier<> entered(taking_part);
    std::barrier<> left(taking_part);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < steps.size(); ++rank) {
      if (steps[rank]) threads.emplace_back([&, rank] { take(rank, *steps[rank], entered, left, &children[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
    return children;
  }
  void take(std::size_t rank, const Step& step, std::barrier<>& entered, std::barrier<>& left, Child* child) {
    std::unique_ptr<Session> session;
    if (step.course != Course::absent) {
      child->hello = processes.owned[rank]->hello(step.invitation, step.hello, &session, &child->why);
    }
    entered.arrive_and_wait();
    if (step.course == Course::withdraws) session->withdraw();
    if (step.course == Course::leaves) session.reset();
    if (step.course != Course::asks) Caught::up(*processes.owned[rank]);
    // Whoever left has been noticed when the others ask: the root takes events in order, this hello comes later.
    Invitation forged = step.invitation;
    forged.descent.number += 1000;
    std::unique_ptr<Session> none;
    std::string why;
    if (step.course != Course::asks) {
      static_cast<void>(processes.owned[rank]->hello(forged, step.hello, &none, &why));
    }
    left.arrive_and_wait();
    if (step.course != Course::asks || session == nullptr) return;
    child->verdict = session->verdict(&child->answer);
    if (child->verdict != Status::ok || !child->answer.compressed) return;
    child->place = session->place();
    bool agreed = false;
    if (session->connect(&child->channel, &agreed, &child->why) == Status::ok && agreed)
      child->parent = session->parent();
  }

  Step split(std::uint32_t rank, std::int32_t color, std::int32_t key = 0, std::uint64_t number = 0) const {
    Step step{split_of(*ranks[rank].parent, number), make_hello(rank, static_cast<std::uint32_t>(ranks.size()))};
    step.hello.choice = {color, key};
    return step;
  }

  Processes processes;
  std::vector<Joined> ranks;
};

bool reaches(Child& from, Child& to) {
  const RecordKey key{from.place->rank, 5, 0};
  return from.channel->send(to.place->rank, key, make_record(key, to.place->rank, 500)) == Status::ok &&
         await_record(*to.channel, key) != nullptr;
}

TEST_CASE("a split's children are agreed and connected, by color and key") {
  Family family(5);
  auto children = family.create(
      {family.split(0, 1), family.split(1, 0, 5), family.split(2, 1), family.split(3, 0, 4), family.split(4, -1)});
  for (const std::size_t rank : {0u, 1u, 2u, 3u}) {
    INFO(children[rank].why << children[rank].answer.reason);
    REQUIRE(children[rank].parent != nullptr);
  }
  CHECK(children[3].place->rank == 0);
  CHECK(children[1].place->rank == 1);
  CHECK(reaches(children[0], children[2]));
  CHECK(reaches(children[1], children[3]));
  // The parent's end is not the children's.
  family.ranks.clear();
  CHECK(reaches(children[2], children[0]));
}

TEST_CASE("two splits at once, on different threads, do not disturb each other") {
  Family family(3);
  std::vector<Child> first;
  std::vector<Child> second;
  std::thread thread([&] { first = family.create({family.split(0, 0), family.split(1, 0), family.split(2, 0)}); });
  second = family.create({family.split(0, 0, 3, 1), family.split(1, 0, 2, 1), family.split(2, 0, 1, 1)});
  thread.join();
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    REQUIRE(first[rank].parent != nullptr);
    REQUIRE(second[rank].parent != nullptr);
    CHECK(first[rank].place->rank == rank);
    CHECK(second[rank].place->rank == 2 - rank);
  }
}

TEST_CASE("a rank that falls out of a split makes its child native, and only that") {
  Family family(4);
  std::vector<std::optional<Family::Step>> steps = {family.split(0, 0), family.split(1, 0), family.split(2, 1),
                                                    family.split(3, 1)};
  std::string reason;
  SECTION("its real call failed") {
    steps[3]->course = Family::Course::withdraws;
    reason = "rank 3 of its parent withdrew, its NCCL init failed";
  }
  SECTION("its process died") {
    steps[3]->course = Family::Course::leaves;
    reason = "rank 3 of its parent lost its connection before the verdict";
  }
  auto children = family.create(steps);
  REQUIRE(children[0].parent != nullptr);
  CHECK(reaches(children[0], children[1]));
  CHECK(children[2].verdict == Status::ok);
  CHECK(children[2].answer.reason == reason);
}

TEST_CASE("a rank that cannot say hello to a split makes all children native") {
  Family family(3);
  std::vector<std::optional<Family::Step>> steps = {family.split(0, 0), family.split(1, 0), family.split(2, 1)};
  SECTION("it is silent") { steps[2]->course = Family::Course::absent; }
  SECTION("it has another secret") { steps[2]->invitation.stamp[45] ^= 1; }
  SECTION("it has counted differently") { steps[2] = family.split(2, 1, 0, 1); }
  const auto children = family.create(steps);
  for (const std::size_t rank : {0u, 1u}) {
    CHECK(children[rank].verdict == Status::ok);
    CHECK(children[rank].answer.reason == "rank 2 of its parent said no hello to the split");
  }
  CHECK(children[2].parent == nullptr);
}

TEST_CASE("what remains of a communicator shrinks without its root, and has children") {
  Family family(4);
  const std::vector<int> excluded = {0, 2};
  family.ranks[0].channel.reset();
  family.ranks[2].channel.reset();
  family.processes.owned[0].reset();  // the process that made the id is gone
  std::vector<std::optional<Family::Step>> steps(4);
  for (const std::uint32_t rank : {1u, 3u}) {
    steps[rank] = Family::Step{shrink_of(*family.ranks[rank].parent, excluded, 0), make_hello(rank / 2, 2)};
  }
  auto children = family.create(steps);
  REQUIRE(children[1].parent != nullptr);
  REQUIRE(children[3].parent != nullptr);
  CHECK(reaches(children[1], children[3]));
  for (const std::uint32_t rank : {1u, 3u}) {
    steps[rank] = Family::Step{split_of(*children[rank].parent, 0), make_hello(rank / 2, 2)};
    steps[rank]->hello.choice = {4, 0};
  }
  auto grandchildren = family.create(steps);
  REQUIRE(grandchildren[1].parent != nullptr);
  children.clear();
  CHECK(reaches(grandchildren[3], grandchildren[1]));

  // A split needs the root of its parent.
  Family::Step late = family.split(1, 0);
  std::unique_ptr<Session> session;
  std::string why;
  CHECK(family.processes.owned[1]->hello(late.invitation, late.hello, &session, &why) == Status::connection_lost);
}

TEST_CASE("a root is awaited until the ranks of a child have their result") {
  Family family(3);
  Rendezvous& root = *family.processes.owned[0];
  CHECK_FALSE(root.awaited());
  std::vector<std::unique_ptr<Session>> sessions(3);
  std::string why;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const Family::Step step = family.split(rank, rank == 0 ? -1 : 0);
    REQUIRE(family.processes.owned[rank]->hello(step.invitation, step.hello, &sessions[rank], &why) == Status::ok);
  }
  sessions[0].reset();
  CHECK(root.awaited());
  Verdict verdict;
  REQUIRE(sessions[2]->verdict(&verdict) == Status::ok);
  CHECK(verdict.compressed);
  CHECK(eventually([&] { return !root.awaited(); }));
  std::unique_ptr<Channel> channel;
  bool agreed = false;
  REQUIRE(sessions[2]->connect(&channel, &agreed, &why) == Status::ok);
  CHECK(agreed);
  channel.reset();
  sessions.clear();
}

}  // namespace
}  // namespace zipccl::test
