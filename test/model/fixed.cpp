// Programs that have to be right whatever the seed.
#include <utility>

#include "test/model/generate.hpp"

namespace zipccl::test {
namespace {

constexpr int world_communicator = 0;
constexpr std::size_t large = 60000;  // values

Action message(Kind kind, int peer, std::size_t count, ncclDataType_t type = ncclBfloat16, int stream = 0) {
  Action action;
  action.kind = kind;
  action.communicator = world_communicator;
  action.peer = peer;
  action.type = type;
  action.count = count;
  action.stream = stream;
  return action;
}

Action send(int peer, std::size_t count, ncclDataType_t type = ncclBfloat16, int stream = 0) {
  return message(Kind::send, peer, count, type, stream);
}

Action receive(int peer, std::size_t count, ncclDataType_t type = ncclBfloat16, int stream = 0) {
  return message(Kind::receive, peer, count, type, stream);
}

Action collective(Kind kind, std::size_t count, int communicator = world_communicator, int stream = 0) {
  Action action = message(kind, 0, count, ncclBfloat16, stream);
  action.communicator = communicator;
  return action;
}

Launch alone(const Action& action) {
  Launch launch;
  launch.actions = {action};
  launch.opens = {0};
  launch.closes = {0};
  return launch;
}

Launch group(std::vector<Action> actions) {
  Launch launch;
  launch.grouped = true;
  launch.opens.assign(actions.size(), 0);
  launch.closes.assign(actions.size(), 0);
  launch.actions = std::move(actions);
  return launch;
}

Program empty(const World& world, const char* name) {
  Program program;
  program.name = name;
  program.ranks.resize(static_cast<std::size_t>(world.ranks));
  return program;
}

// A: group{send B, receive C}. B: send C, receive A. C: send A, receive B. Each send waits for a receive that comes
// behind another send, but for A's.
Program circle(const World& world) {
  Program program = empty(world, "a circle, one rank grouped");
  program.ranks[0] = {group({send(1, large), receive(2, large)})};
  program.ranks[1] = {alone(send(2, large)), alone(receive(0, large))};
  program.ranks[2] = {alone(send(0, large)), alone(receive(1, large))};
  return program;
}

Program unequal_groups(const World& world) {
  Program program = empty(world, "one group on one side, several on the other");
  const std::size_t counts[] = {large, 0, 3, 5000, 5001, 0, large};
  std::vector<Action> all;
  for (const std::size_t count : counts) all.push_back(receive(1, count));
  for (const std::size_t count : counts) all.push_back(send(1, count));
  program.ranks[0] = {group(all)};
  for (const std::size_t count : counts) {
    program.ranks[1].push_back(group({send(0, count), receive(0, count)}));
  }
  return program;
}

Program bundled_one_way(const World& world) {
  Program program = empty(world, "a group of sends to a rank that receives one by one, other types between");
  program.ranks[0] = {
      group({send(1, large), send(1, 777, ncclFloat32), send(1, 4000), send(1, 9, ncclUint8), send(1, large + 1)})};
  program.ranks[1] = {alone(receive(0, large)), alone(receive(0, 777, ncclFloat32)), alone(receive(0, 4000)),
                      alone(receive(0, 9, ncclUint8)), alone(receive(0, large + 1))};
  return program;
}

Program collective_within(const World& world) {
  Program program = empty(world, "an all-gather grouped with messages on one side only");
  for (auto& launches : program.ranks) launches = {alone(collective(Kind::all_gather, 20000))};
  program.ranks[0] = {group({send(1, 30000), collective(Kind::all_gather, 20000), receive(1, 5000)})};
  program.ranks[1].push_back(group({receive(0, 30000), send(0, 5000)}));
  return program;
}

// Expert parallelism: everybody sends another amount to everybody, itself included, beside an all-gather on another
// communicator and stream.
Program dispatch(const World& world, int replays) {
  Program program = empty(world, replays > 0 ? "dispatch in a graph" : "dispatch");
  program.replays = replays;
  const auto amount = [](int from, int to) {
    return (from + 2 * to) % 4 == 0 ? std::size_t{0} : static_cast<std::size_t>(3000 + 1111 * from + 377 * to);
  };
  for (int rank = 0; rank < world.ranks; ++rank) {
    std::vector<Action> exchange;
    for (int peer = 0; peer < world.ranks; ++peer) {
      exchange.push_back(send(peer, amount(rank, peer)));
      exchange.push_back(receive(peer, amount(peer, rank)));
    }
    program.ranks[static_cast<std::size_t>(rank)] = {alone(collective(Kind::all_gather, 10000, 1, 1)), group(exchange),
                                                     alone(collective(Kind::all_to_all, 5000)),
                                                     alone(collective(Kind::all_gather, 12345, 1, 1)), group(exchange)};
  }
  return program;
}

// Groups of two communicators, x and y, which ranks 0 and 1 make unlike each other: whichever of the two NCCL starts
// first in a group, neither waits for what the other waits for, and each's next operation for nothing but its own.
// Whoever makes it wait for more in every group alike closes a circle.
class Unlike {
 public:
  Unlike(const World& world, int x, int y) : world_(world), x_(x), y_(y) {}

  // Rank 0: {x, y}, x. Rank 1: x, {x, y}.
  Program messages(ncclDataType_t type, int replays) const {
    Program program = begin("messages grouped with another communicator's all-to-all, unlike on the ranks", replays);
    Action all = collective(Kind::all_to_all, 3000, y_, 1);
    all.type = type;
    for (auto& launches : program.ranks) launches = {alone(all)};
    program.ranks[0] = {group({to(1, 1), all}), alone(to(1, 2))};
    program.ranks[1] = {alone(from(0, 0)), group({from(0, 1), all})};
    return program;
  }

  // Rank 0: x's message, {x's all-gather, y}. Rank 1: {x's message, y}, x's all-gather.
  Program all_gather(Kind kind, ncclDataType_t type, int replays) const {
    Program program = begin("an all-gather or a message grouped with another communicator's collective", replays);
    const auto other = [&](int stream) {
      Action all = collective(kind, 3000, y_, stream);
      all.type = type;
      return all;
    };
    const auto gather = [&](int stream) { return collective(Kind::all_gather, 9000, x_, stream); };
    for (auto& launches : program.ranks) launches = {alone(other(0)), alone(gather(2))};
    program.ranks[0] = {alone(from(1, 0)), group({gather(2), other(2)})};
    program.ranks[1] = {group({to(0, 0), other(0)}), alone(gather(2))};
    return program;
  }

 private:
  Program begin(const char* name, int replays) const {
    Program program = empty(world_, name);
    program.replays = replays;
    return program;
  }
  Action message_with(Kind kind, int rank, int stream) const {
    Action action = message(kind, world_.member(x_, rank), 20000, ncclBfloat16, stream);
    action.communicator = x_;
    return action;
  }
  Action to(int rank, int stream) const { return message_with(Kind::send, rank, stream); }
  Action from(int rank, int stream) const { return message_with(Kind::receive, rank, stream); }

  const World& world_;
  int x_;
  int y_;
};

}  // namespace

std::vector<Program> fixed_programs(const World& world, const GeneratorOptions& options) {
  std::vector<Program> programs;
  const auto add = [&](Program program) {
    program.seed = 1000 + programs.size();
    if (place(world, program.seed, &program) && is_legal(world, program, options.schedule)) {
      programs.push_back(std::move(program));
    }
  };
  if (world.ranks >= 3) add(circle(world));
  add(unequal_groups(world));
  add(bundled_one_way(world));
  add(collective_within(world));
  add(dispatch(world, 0));
  if (options.graphs) add(dispatch(world, 3));
  // Where the host waits, too, such programs may block.
  for (int replays = 0; replays <= (options.graphs ? 2 : 0) && !options.schedule.host_waits; replays += 2) {
    for (const auto& [x, y] : {std::pair(0, 1), std::pair(1, 0)}) {
      const Unlike unlike(world, x, y);
      for (const ncclDataType_t type : {ncclBfloat16, ncclUint8}) {
        add(unlike.messages(type, replays));
        add(unlike.all_gather(Kind::all_to_all, type, replays));
        add(unlike.all_gather(Kind::all_gather, type, replays));
      }
    }
  }
  return programs;
}

}  // namespace zipccl::test
