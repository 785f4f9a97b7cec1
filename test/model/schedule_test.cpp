// What the model takes for legal. Stands on its own so that the model-based test cannot quietly test nothing.
#include "test/model/schedule.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "test/model/generate.hpp"
#include "test/model/reference.hpp"
#include "test/unit/catch.hpp"

namespace zipccl::test {
namespace {

Action operation(Kind kind, int peer, int communicator = 0, int stream = 0, std::size_t count = 1) {
  Action action;
  action.kind = kind;
  action.communicator = communicator;
  action.peer = peer;
  action.count = count;
  action.stream = stream;
  return action;
}

Action send(int peer, int communicator = 0, int stream = 0) {
  return operation(Kind::send, peer, communicator, stream);
}
Action receive(int peer, int communicator = 0, int stream = 0) {
  return operation(Kind::receive, peer, communicator, stream);
}
Action gather(int communicator = 0, int stream = 0) { return operation(Kind::all_gather, 0, communicator, stream); }

Launch launch(std::vector<Action> actions) {
  Launch made;
  made.grouped = actions.size() > 1;
  made.actions = std::move(actions);
  return made;
}

Launch local(Launch::Step step, int stream, int other = 0) {
  Launch made;
  made.step = step;
  made.stream = stream;
  made.other = other;
  return made;
}

World world_of(int ranks) {
  World world;
  world.ranks = ranks;
  world.streams = 3;
  world.arena_bytes = 4096;
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  world.communicators = {all, all};
  return world;
}

bool legal(std::vector<std::vector<Launch>> ranks, bool host_waits = false) {
  const World world = world_of(static_cast<int>(ranks.size()));
  Program program;
  program.ranks = std::move(ranks);
  return is_legal(world, program, {host_waits});
}

}  // namespace

TEST_CASE("sends block until their receives start") {
  CHECK(legal({{launch({send(1)}), launch({receive(1)})}, {launch({receive(0)}), launch({send(0)})}}));
  CHECK_FALSE(legal({{launch({send(1)}), launch({receive(1)})}, {launch({send(0)}), launch({receive(0)})}}));
  CHECK(legal({{launch({send(1), receive(1)})}, {launch({send(0), receive(0)})}}));
  CHECK(legal({{launch({send(1), receive(1)})}, {launch({receive(0)}), launch({send(0)})}}));
  // On two streams, but one communicator: it keeps the order of issue. On two communicators they are free.
  CHECK_FALSE(
      legal({{launch({send(1)}), launch({receive(1, 0, 1)})}, {launch({send(0)}), launch({receive(0, 0, 1)})}}));
  CHECK(legal({{launch({send(1)}), launch({receive(1, 1, 1)})}, {launch({send(0, 1)}), launch({receive(0, 0, 1)})}}));
}

TEST_CASE("the circle is legal because one rank groups") {
  const auto alone = [](int next, int previous) {
    return std::vector<Launch>{launch({send(next)}), launch({receive(previous)})};
  };
  CHECK_FALSE(legal({alone(1, 2), alone(2, 0), alone(0, 1)}));
  CHECK(legal({{launch({send(1), receive(2)})}, alone(2, 0), alone(0, 1)}));
}

TEST_CASE("both sides must agree") {
  CHECK_FALSE(legal({{launch({send(1)})}, {}}));
  CHECK_FALSE(legal({{launch({send(1)})}, {launch({operation(Kind::receive, 0, 0, 0, 2)})}}));
  CHECK_FALSE(legal({{launch({gather()})}, {launch({gather(1)})}}));
  CHECK_FALSE(legal({{launch({gather(), gather()})}, {launch({gather()}), launch({gather()})}}));
  CHECK(legal({{launch({gather(), gather()})}, {launch({gather(0, 1), gather(0, 2)})}}));
  CHECK(legal({{launch({operation(Kind::all_gather, 0, 0, 0, 0)})}, {}}));  // nothing of nothing
}

TEST_CASE("a group's all-gathers come before its messages, its communicators in an unknown order") {
  CHECK(legal({{launch({send(1), gather()})}, {launch({gather()}), launch({receive(0)})}}));
  CHECK_FALSE(legal({{launch({send(1), gather()})}, {launch({receive(0)}), launch({gather()})}}));
  for (const bool swapped : {false, true}) {
    const int first = swapped ? 1 : 0;
    const std::vector<Launch> other = {launch({receive(0, first)}), launch({receive(0, 1 - first)})};
    CHECK_FALSE(legal({{launch({send(1, 0), send(1, 1)})}, other}));
    CHECK(legal({{launch({send(1, 0), send(1, 1, 1)})}, other}));
  }
}

TEST_CASE("waits between streams and of the host count") {
  const std::vector<Launch> other = {launch({receive(0, 1, 1)}), launch({send(0)})};
  const std::vector<Launch> free = {launch({receive(1)}), launch({send(1, 1, 1)})};
  CHECK(legal({free, other}));
  CHECK(legal({free, {other[0], local(Launch::Step::wait, 2, 1), other[1]}}));
  CHECK(legal({free, {other[0], local(Launch::Step::wait, 0, 1), other[1]}}));
  CHECK_FALSE(legal(
      {{free[0], local(Launch::Step::wait, 1, 0), free[1]}, {other[0], local(Launch::Step::wait, 0, 1), other[1]}}));
  CHECK_FALSE(legal({{free[0], local(Launch::Step::synchronize, 0), free[1]},
                     {other[0], local(Launch::Step::synchronize, 1), other[1]}}));
  CHECK_FALSE(legal({free, other}, true));
}

TEST_CASE("the reference moves what the calls say") {
  const World world = world_of(2);
  Program program;
  program.ranks = {{launch({gather(0, 1), send(1)}), launch({receive(1)})},
                   {launch({gather(0, 2), receive(0)}), launch({send(0)})}};
  REQUIRE(place(world, 5, &program));
  REQUIRE(is_legal(world, program, {}));
  WorldMemory memory;
  fill(world, 7, &memory);
  WorldMemory before = memory;
  execute(world, program, &memory);
  const auto value = [](const std::vector<std::byte>& arena, std::size_t offset) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, arena.data() + offset, sizeof(bits));
    return bits;
  };
  const auto& first = program.ranks[0];
  const auto& second = program.ranks[1];
  CHECK(value(memory[3], second[0].actions[1].receive_offset) == value(before[0], first[0].actions[1].send_offset));
  CHECK(value(memory[1], first[0].actions[0].receive_offset + 2) == value(before[5], second[0].actions[0].send_offset));
  CHECK(value(memory[5], second[0].actions[0].receive_offset) == value(before[1], first[0].actions[0].send_offset));
  CHECK(memory[2] == before[2]);
}

TEST_CASE("generated programs are legal, of every kind, and what they write is used once") {
  GeneratorOptions options;
  options.schedule.host_waits = GENERATE(false, true);
  int groups = 0;
  int over_communicators = 0;
  int graphs = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    const World world = make_world(2 + static_cast<int>(seed % 5), seed);
    const Program program = make_program(world, seed, options);
    REQUIRE(is_legal(world, program, options.schedule));
    graphs += program.replays > 0;
    for (const auto& launches : program.ranks) {
      for (const Launch& one : launches) {
        groups += one.actions.size() > 2;
        over_communicators += std::any_of(one.actions.begin(), one.actions.end(), [&](const Action& action) {
          return action.communicator != one.actions[0].communicator;
        });
        for (const Action& writer : one.actions) {
          for (const Action& user : one.actions) {
            if (!writer.receives() || &writer == &user || writer.stream != user.stream) continue;
            const auto apart = [&](std::size_t begin, std::size_t bytes) {
              return begin + bytes <= writer.receive_offset ||
                     writer.receive_offset + writer.receive_bytes(world) <= begin || bytes == 0 ||
                     writer.receive_bytes(world) == 0;
            };
            REQUIRE(apart(user.send_offset, user.send_bytes(world)));
            REQUIRE(apart(user.receive_offset, user.receive_bytes(world)));
            REQUIRE(writer.receive_offset + writer.receive_bytes(world) <= world.arena_bytes);
          }
        }
      }
    }
  }
  CHECK(groups > 50);
  CHECK(graphs > 10);
  CHECK((over_communicators > 20) != options.schedule.host_waits);
}

TEST_CASE("all fixed programs take part") {
  const World world = make_world(4, 3);
  CHECK(fixed_programs(world, {}).size() == 6 + 2 * 2 * 2 * 3);
  GeneratorOptions strict;
  strict.schedule.host_waits = true;
  CHECK(fixed_programs(world, strict).size() >= 5);
}

}  // namespace zipccl::test
