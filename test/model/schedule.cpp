#include "test/model/schedule.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

namespace zipccl::test {
namespace {

constexpr std::size_t none = ~std::size_t{0};

// Who exchanges what: messages by communicator, sender and receiver, all-gathers by communicator.
using Channel = std::array<int, 3>;

// Both sides of a channel, in order of issue. All-gathers have one list for every member.
struct Ends {
  std::vector<std::size_t> senders;    // nodes
  std::vector<std::size_t> receivers;  // nodes
  std::vector<std::size_t> ids;        // of transfers, by whichever side came first
  std::vector<std::size_t> bytes;
};

// The all-gathers of one communicator on one rank: for each, the number of the first one in its launch.
using Grouping = std::vector<std::size_t>;

}  // namespace

class ScheduleBuilder {
 public:
  ScheduleBuilder(const World& world, const ScheduleOptions& options, const std::vector<int>& communicator_order,
                  Schedule* schedule)
      : world_(world), options_(options), communicator_order_(communicator_order), schedule_(*schedule) {}

  void build(const Program& program) {
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      rank_ = static_cast<int>(rank);
      stream_last_.assign(static_cast<std::size_t>(world_.streams), {});
      communicator_last_.assign(world_.communicators.size(), none);
      host_last_.clear();
      for (int replay = 0; replay < std::max(1, program.replays); ++replay) {
        if (program.replays > 0) fork();
        for (const Launch& launch : program.ranks[rank]) add(launch);
        if (program.replays > 0) join();
      }
    }
    connect();
  }

 private:
  void add(const Launch& launch) {
    if (launch.step == Launch::Step::wait) {
      auto& own = stream_last_[static_cast<std::size_t>(launch.stream)];
      const auto& other = stream_last_[static_cast<std::size_t>(launch.other)];
      own.insert(other.begin(), other.end());
      return;
    }
    if (launch.step == Launch::Step::synchronize) {
      const auto& last = stream_last_[static_cast<std::size_t>(launch.stream)];
      host_last_.insert(last.begin(), last.end());
      return;
    }
    std::vector<int> communicators = communicator_order_;
    std::vector<std::size_t> made;
    for (const int communicator : communicators) {
      std::vector<const Action*> actions;
      for (const Action& action : launch.actions) {
        if (action.communicator == communicator && (!action.collective() || action.count > 0)) {
          actions.push_back(&action);
        }
      }
      if (!actions.empty()) add(actions, communicator, &made);
    }
    if (options_.host_waits) host_last_.insert(made.begin(), made.end());
  }

  // One communicator's part of a launch.
  void add(const std::vector<const Action*>& actions, int communicator, std::vector<std::size_t>* made) {
    std::set<std::size_t> streams;
    for (const Action* action : actions) streams.insert(static_cast<std::size_t>(action->stream));
    std::set<std::size_t> before = host_last_;
    for (const std::size_t stream : streams) before.insert(stream_last_[stream].begin(), stream_last_[stream].end());
    std::size_t& last = communicator_last_[static_cast<std::size_t>(communicator)];
    if (last != none) before.insert(last);
    const auto start = [&] {
      schedule_.nodes_.emplace_back().before.assign(before.begin(), before.end());
      last = schedule_.nodes_.size() - 1;
      before = {last};
      made->push_back(last);
    };
    Grouping& grouping = groupings_[{communicator, rank_}];
    const std::size_t first = grouping.size();
    for (const Action* action : actions) {
      if (action->kind != Kind::all_gather) continue;
      start();
      grouping.push_back(first);
      add_all_gather(*action, last);
    }
    bool started = false;
    for (const Action* action : actions) {
      if (action->kind == Kind::all_gather) continue;
      if (!started) start();
      started = true;
      add_messages(*action, last);
    }
    for (const std::size_t stream : streams) stream_last_[stream] = {last};
  }

  std::size_t arena(const Action& action) const {
    return static_cast<std::size_t>(rank_) * static_cast<std::size_t>(world_.streams) +
           static_cast<std::size_t>(action.stream);
  }

  const std::vector<int>& members(const Action& action) const {
    return world_.communicators[static_cast<std::size_t>(action.communicator)];
  }

  // One side's next entry in a channel; gives the transfer's number.
  std::size_t enter(const Channel& channel, bool sender, std::size_t node, std::size_t bytes) {
    Ends& ends = ends_[channel];
    auto& side = sender ? ends.senders : ends.receivers;
    const std::size_t index = side.size();
    side.push_back(node);
    if (index == ends.ids.size()) {
      ends.ids.push_back(schedule_.transfers_++);
      ends.bytes.push_back(bytes);
    } else if (ends.bytes[index] != bytes) {
      schedule_.matched_ = false;
    }
    return ends.ids[index];
  }

  // As messages from every member to every member, among all-gathers only.
  void add_all_gather(const Action& action, std::size_t node) {
    const std::size_t bytes = action.part_bytes();
    const int own = world_.member(action.communicator, rank_);
    const int size = static_cast<int>(members(action).size());
    const int channel = action.communicator + static_cast<int>(world_.communicators.size());
    for (int peer = 0; peer < size; ++peer) {
      const std::size_t place = action.receive_offset + static_cast<std::size_t>(peer) * bytes;
      send({channel, own, peer}, node, {0, arena(action), action.send_offset, bytes});
      receive({channel, peer, own}, node, {0, arena(action), place, bytes});
    }
  }

  void add_messages(const Action& action, std::size_t node) {
    const std::size_t bytes = action.part_bytes();
    const int own = world_.member(action.communicator, rank_);
    const auto send_part = [&](int peer, std::size_t part) {
      send({action.communicator, own, peer}, node, {0, arena(action), action.send_offset + part * bytes, bytes});
    };
    const auto receive_part = [&](int peer, std::size_t part) {
      receive({action.communicator, peer, own}, node, {0, arena(action), action.receive_offset + part * bytes, bytes});
    };
    if (action.kind == Kind::send) send_part(action.peer, 0);
    if (action.kind == Kind::receive) receive_part(action.peer, 0);
    if (action.kind != Kind::all_to_all) return;
    for (std::size_t peer = 0; peer < members(action).size(); ++peer) {
      send_part(static_cast<int>(peer), peer);
      receive_part(static_cast<int>(peer), peer);
    }
  }

  void send(const Channel& channel, std::size_t node, Transfer transfer) {
    transfer.id = enter(channel, true, node, transfer.bytes);
    schedule_.nodes_[node].out.push_back(transfer);
  }

  void receive(const Channel& channel, std::size_t node, Transfer transfer) {
    transfer.id = enter(channel, false, node, transfer.bytes);
    schedule_.nodes_[node].in.push_back(transfer);
  }

  void connect() {
    for (const auto& [channel, ends] : ends_) {
      if (ends.senders.size() != ends.receivers.size()) {
        schedule_.matched_ = false;
        return;
      }
      for (std::size_t index = 0; index < ends.senders.size(); ++index) {
        const std::size_t from = ends.senders[index];
        const std::size_t to = ends.receivers[index];
        if (from == to) continue;
        schedule_.nodes_[from].peers.push_back(to);
        schedule_.nodes_[to].peers.push_back(from);
      }
    }
    for (const auto& [key, grouping] : groupings_) {
      const int leader = world_.communicators[static_cast<std::size_t>(key.first)][0];
      if (grouping != groupings_[{key.first, leader}]) schedule_.matched_ = false;
    }
    for (Node& node : schedule_.nodes_) {
      std::sort(node.peers.begin(), node.peers.end());
      node.peers.erase(std::unique(node.peers.begin(), node.peers.end()), node.peers.end());
    }
  }

  // A graph's other streams begin behind stream 0 and end before it.
  void fork() {
    for (auto& last : stream_last_) last = stream_last_[0];
  }
  void join() {
    for (const auto& last : stream_last_) stream_last_[0].insert(last.begin(), last.end());
  }

  const World& world_;
  const ScheduleOptions& options_;
  const std::vector<int>& communicator_order_;
  Schedule& schedule_;
  int rank_ = 0;
  std::vector<std::set<std::size_t>> stream_last_;
  std::vector<std::size_t> communicator_last_;
  std::set<std::size_t> host_last_;
  std::map<Channel, Ends> ends_;
  std::map<std::pair<int, int>, Grouping> groupings_;  // by communicator and rank
};

Schedule::Schedule(const World& world, const Program& program, const ScheduleOptions& options,
                   const std::vector<int>& communicator_order) {
  ScheduleBuilder(world, options, communicator_order, this).build(program);
}

std::vector<std::size_t> Schedule::order() const {
  // A node starts after those before it have ended, which is after all of their peers have started.
  std::vector<std::vector<std::size_t>> followers(nodes_.size());
  std::vector<std::size_t> missing(nodes_.size(), 0);
  const auto require = [&](std::size_t earlier, std::size_t later) {
    followers[earlier].push_back(later);
    ++missing[later];
  };
  for (std::size_t later = 0; later < nodes_.size(); ++later) {
    for (const std::size_t before : nodes_[later].before) {
      require(before, later);
      for (const std::size_t peer : nodes_[before].peers) require(peer, later);
    }
  }
  std::vector<std::size_t> started;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (missing[node] == 0) started.push_back(node);
  }
  for (std::size_t index = 0; index < started.size(); ++index) {
    for (const std::size_t follower : followers[started[index]]) {
      if (--missing[follower] == 0) started.push_back(follower);
    }
  }
  if (started.size() < nodes_.size()) started.clear();
  return started;
}

bool is_legal(const World& world, const Program& program, const ScheduleOptions& options) {
  std::vector<int> order(world.communicators.size());
  std::iota(order.begin(), order.end(), 0);
  const auto mixes = [](const Launch& launch) {
    return std::any_of(launch.actions.begin(), launch.actions.end(), [&](const Action& action) {
      return action.communicator != launch.actions.front().communicator;
    });
  };
  const bool any_order = std::any_of(program.ranks.begin(), program.ranks.end(), [&](const auto& launches) {
    return std::any_of(launches.begin(), launches.end(), mixes);
  });
  do {
    const Schedule schedule(world, program, options, order);
    if (!schedule.matched() || (schedule.order().empty() && !schedule.nodes().empty())) return false;
  } while (any_order && std::next_permutation(order.begin(), order.end()));
  return true;
}

}  // namespace zipccl::test
