#include "test/model/generate.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "test/model/random.hpp"

namespace zipccl::test {
namespace {

constexpr unsigned attempts = 3;  // at other groups and orders of one rank

bool same_direction(const Action& one, const Action& other) {
  if (one.kind == Kind::all_to_all || other.kind == Kind::all_to_all) return true;
  return one.kind == other.kind && one.peer == other.peer;
}

// Whether a rank may issue two operations the other way round and still match its peers.
bool independent(const Action& one, const Action& other) {
  if (one.communicator != other.communicator) return true;
  const bool gathers = one.kind == Kind::all_gather;
  if (gathers != (other.kind == Kind::all_gather)) return true;
  return !gathers && !same_direction(one, other);
}

bool independent(const Launch& one, const Launch& other) {
  return std::all_of(one.actions.begin(), one.actions.end(), [&](const Action& first) {
    return std::all_of(other.actions.begin(), other.actions.end(),
                       [&](const Action& second) { return independent(first, second); });
  });
}

template <typename T>
void swap_some(std::vector<T>* list, std::size_t swaps, Random* random) {
  if (list->size() < 2) return;
  for (; swaps > 0; --swaps) {
    const std::size_t index = random->below(list->size() - 1);
    if (independent((*list)[index], (*list)[index + 1])) std::swap((*list)[index], (*list)[index + 1]);
  }
}

class Generator {
 public:
  Generator(const World& world, std::uint64_t seed, const GeneratorOptions& options)
      : world_(world), options_(options), random_(seed) {
    program_.name = "random";
    program_.seed = seed;
    program_.ranks.resize(static_cast<std::size_t>(world.ranks));
  }

  Program make() {
    // One after the other is always legal.
    const std::size_t steps = random_.between(2, 24);
    for (std::size_t step = 0; step < steps; ++step) add_step();
    if (options_.graphs && random_.chance(20)) {
      program_.replays = static_cast<int>(random_.between(1, 3));
      for (auto& launches : program_.ranks) {
        std::erase_if(launches, [](const Launch& launch) { return launch.step == Launch::Step::synchronize; });
      }
    }
    std::vector<std::size_t> ranks(program_.ranks.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = rank;
    random_.shuffle(&ranks);
    for (const std::size_t rank : ranks) regroup(&program_.ranks[rank]);
    for (auto& launches : program_.ranks) {
      for (Launch& launch : launches) nest(&launch);
    }
    return std::move(program_);
  }

 private:
  void add_step() {
    const std::size_t lot = random_.below(100);
    if (lot < 8) {
      add_local(Launch::Step::wait);
    } else if (lot < 12) {
      add_local(Launch::Step::synchronize);
    } else if (lot < 62) {
      add_messages();
    } else if (lot < 78) {
      add_collective(Kind::all_gather);
    } else if (lot < 86) {
      add_all_gathers();
    } else {
      add_collective(Kind::all_to_all);
    }
  }

  void add_local(Launch::Step step) {
    Launch launch;
    launch.step = step;
    launch.stream = any_stream();
    launch.other = any_stream();
    if (step == Launch::Step::wait && launch.stream == launch.other) return;
    program_.ranks[random_.below(program_.ranks.size())].push_back(std::move(launch));
  }

  int any_stream() { return random_.number(static_cast<std::size_t>(world_.streams)); }
  int any_communicator() { return random_.number(world_.communicators.size()); }
  const std::vector<int>& members(int communicator) const {
    return world_.communicators[static_cast<std::size_t>(communicator)];
  }

  ncclDataType_t any_type() {
    static constexpr ncclDataType_t others[] = {ncclFloat16, ncclFloat32, ncclUint8, ncclInt64};
    return random_.chance(70) ? ncclBfloat16 : others[random_.below(std::size(others))];
  }

  // Values of a part that has at most `bytes` bytes.
  std::size_t any_count(ncclDataType_t type, std::size_t bytes) {
    const std::size_t lot = random_.below(100);
    std::size_t count = 0;
    if (lot >= 8 && lot < 28) count = random_.between(1, 40);
    if (lot >= 28 && lot < 70) count = random_.between(900, 6000);
    if (lot >= 70 && lot < 92) count = random_.between(6000, 40000);
    if (lot >= 92) count = bytes / type_bytes(type);
    return std::min(count, bytes / type_bytes(type));
  }

  void push(int rank, std::vector<Action> actions) {
    Launch launch;
    launch.grouped = actions.size() > 1;
    launch.actions = std::move(actions);
    program_.ranks[static_cast<std::size_t>(rank)].push_back(std::move(launch));
  }

  // One message, or several between the same two ranks.
  void add_messages() {
    const int communicator = any_communicator();
    const std::vector<int>& group = members(communicator);
    const auto from = random_.number(group.size());
    const auto to = random_.number(group.size());
    const std::size_t messages = random_.chance(25) ? random_.between(2, 5) : 1;
    for (std::size_t message = 0; message < messages; ++message) {
      Action send;
      send.communicator = communicator;
      send.type = any_type();
      send.count = any_count(send.type, world_.arena_bytes / 4);
      Action receive = send;
      receive.kind = Kind::receive;
      send.peer = to;
      receive.peer = from;
      send.stream = any_stream();
      receive.stream = any_stream();
      if (from == to) {
        push(group[static_cast<std::size_t>(from)], {send, receive});
      } else {
        push(group[static_cast<std::size_t>(from)], {send});
        push(group[static_cast<std::size_t>(to)], {receive});
      }
    }
  }

  void add_collective(Kind kind) {
    Action action;
    action.kind = kind;
    action.communicator = any_communicator();
    const std::vector<int>& group = members(action.communicator);
    action.type = any_type();
    const std::size_t parts = kind == Kind::all_gather ? group.size() + 2 : 2 * group.size() + 2;
    action.count = any_count(action.type, world_.arena_bytes / parts);
    for (const int rank : group) push(rank, {placed(action)});
  }

  // All-gathers that are grouped are so on all ranks, in the same order.
  void add_all_gathers() {
    std::vector<Action> actions(random_.between(2, 4));
    const int communicator = any_communicator();
    const std::vector<int>& group = members(communicator);
    for (Action& action : actions) {
      action.kind = Kind::all_gather;
      action.communicator = communicator;
      action.type = any_type();
      action.count = any_count(action.type, world_.arena_bytes / (actions.size() * (group.size() + 3)));
    }
    for (const int rank : group) {
      std::vector<Action> own;
      for (const Action& action : actions) own.push_back(placed(action));
      push(rank, own);
    }
  }

  Action placed(Action action) {
    action.stream = any_stream();
    action.in_place = action.kind == Kind::all_gather && random_.chance(40);
    return action;
  }

  // Gives one rank another order and groups, if the program stays legal.
  void regroup(std::vector<Launch>* launches) {
    const std::vector<Launch> former = *launches;
    for (unsigned attempt = 0; attempt < attempts; ++attempt) {
      const unsigned strength = 80 >> attempt;  // percent
      *launches = former;
      swap_some(launches, random_.below(launches->size() + 1) * strength / 50, &random_);
      merge(launches, random_.below(strength + 1));
      if (*launches == former) return;
      if (is_legal(world_, program_, options_.schedule)) return;
    }
    *launches = former;
  }

  void merge(std::vector<Launch>* launches, std::size_t percent) {
    std::vector<Launch> merged;
    for (Launch& launch : *launches) {
      const bool joins = !merged.empty() && launch.step == Launch::Step::call &&
                         merged.back().step == Launch::Step::call && random_.below(100) < percent;
      if (joins && may_group(merged.back(), launch) && fits(merged.back(), launch)) {
        auto& actions = merged.back().actions;
        actions.insert(actions.end(), launch.actions.begin(), launch.actions.end());
        merged.back().grouped = true;
      } else {
        merged.push_back(std::move(launch));
      }
    }
    for (Launch& launch : merged) {
      if (launch.grouped) swap_some(&launch.actions, random_.below(2 * launch.actions.size()), &random_);
    }
    *launches = std::move(merged);
  }

  // Where the host waits, it may wait for one communicator's part of a group before it launches another's.
  bool may_group(const Launch& one, const Launch& other) const {
    return !options_.schedule.host_waits || one.actions[0].communicator == other.actions[0].communicator;
  }

  bool fits(const Launch& one, const Launch& other) const;

  void nest(Launch* launch) {
    if (launch->step != Launch::Step::call) return;
    if (random_.chance(20)) launch->grouped = true;
    const std::size_t actions = launch->actions.size();
    launch->opens.assign(actions, 0);
    launch->closes.assign(actions, 0);
    for (std::size_t groups = random_.below(3); groups > 0; --groups) {
      const std::size_t first = random_.below(actions);
      ++launch->opens[first];
      ++launch->closes[random_.between(first, actions - 1)];
    }
  }

  const World& world_;
  const GeneratorOptions& options_;
  Random random_;
  Program program_;
};

// A piece of a launch's memory in one arena.
struct Region {
  std::size_t* offset;
  std::size_t bytes;
  std::size_t alignment;
  bool written;
};

std::vector<Region> regions_of(const World& world, Launch* launch, int stream) {
  std::vector<Region> regions;
  for (Action& action : launch->actions) {
    if (action.stream != stream) continue;
    const std::size_t alignment = std::max<std::size_t>(2, type_bytes(action.type));
    if (action.receives()) {
      regions.push_back({&action.receive_offset, action.receive_bytes(world), alignment, true});
    }
    if (action.sends() && !action.in_place) {
      regions.push_back({&action.send_offset, action.send_bytes(world), alignment, false});
    }
  }
  return regions;
}

std::size_t needed(const std::vector<Region>& regions) {
  std::size_t bytes = 0;
  for (const Region& region : regions) bytes += region.bytes + region.alignment;
  return bytes;
}

bool place(const World& world, Random* random, Launch* launch, int rank) {
  for (int stream = 0; stream < world.streams; ++stream) {
    std::vector<Region> regions = regions_of(world, launch, stream);
    if (needed(regions) > world.arena_bytes) return false;
    std::size_t spare = world.arena_bytes - needed(regions);
    random->shuffle(&regions);
    std::size_t at = 0;
    const Region* read = nullptr;
    for (Region& region : regions) {
      // What is sent may be sent several times.
      if (!region.written && read != nullptr && region.bytes <= read->bytes && region.alignment == read->alignment &&
          random->chance(40)) {
        *region.offset = *read->offset;
        continue;
      }
      const std::size_t gap = random->below(spare + 1) / (random->chance(50) ? 1 : 16);
      spare -= gap;
      const std::size_t begin = (at + gap + region.alignment - 1) / region.alignment * region.alignment;
      *region.offset = begin;
      at += gap + region.bytes + region.alignment;
      if (!region.written) read = &region;
    }
  }
  for (Action& action : launch->actions) {
    if (!action.in_place) continue;
    const auto own = static_cast<std::size_t>(world.member(action.communicator, rank));
    action.send_offset = action.receive_offset + own * action.part_bytes();
  }
  return true;
}

bool Generator::fits(const Launch& one, const Launch& other) const {
  Launch both = one;
  both.actions.insert(both.actions.end(), other.actions.begin(), other.actions.end());
  for (int stream = 0; stream < world_.streams; ++stream) {
    if (needed(regions_of(world_, &both, stream)) > world_.arena_bytes) return false;
  }
  return true;
}

}  // namespace

World make_world(int ranks, std::uint64_t seed) {
  Random random(seed ^ 0x30D31u);
  World world;
  world.ranks = ranks;
  world.streams = 3;
  world.arena_bytes = std::size_t{1} << 21;
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  world.communicators.push_back(all);
  for (const std::size_t least : {all.size(), std::size_t{2}, std::size_t{1}}) {
    random.shuffle(&all);
    world.communicators.emplace_back(all.begin(),
                                     all.begin() + static_cast<std::ptrdiff_t>(random.between(least, all.size())));
  }
  return world;
}

Program make_program(const World& world, std::uint64_t seed, const GeneratorOptions& options) {
  Program program = Generator(world, seed, options).make();
  place(world, seed, &program);  // fits, or would not have been merged
  return program;
}

bool place(const World& world, std::uint64_t seed, Program* program) {
  Random random(seed ^ 0x9AACEu);
  int rank = 0;
  for (auto& launches : program->ranks) {
    for (Launch& launch : launches) {
      if (!place(world, &random, &launch, rank)) return false;
    }
    ++rank;
  }
  return true;
}

}  // namespace zipccl::test
