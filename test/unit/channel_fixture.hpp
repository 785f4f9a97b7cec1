// What the channel's suites share: ranks with a rendezvous each, as threads or as processes, and records that say what
// they are.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "test/unit/session_fixture.hpp"

namespace zipccl::test {

// One rank after the whole course: hello, verdict, connect.
struct Joined {
  std::unique_ptr<switcher::Channel> channel;
  switcher::ParentPointer parent;
  Status status = Status::aborted;  // of the first step that failed
  bool agreed = false;
  std::string why;
};

// `real_init` returns when all ranks have called it.
Joined join(switcher::Rendezvous& rendezvous, const UniqueId& id, std::uint32_t rank, std::uint32_t rank_count,
            const std::function<void()>& real_init);

// All ranks join at once, one thread each; rank r uses processes[r % processes.size()], the first of which is the root.
std::vector<Joined> join_all(const std::vector<switcher::Rendezvous*>& processes, std::uint32_t rank_count);

// Stand-ins for processes: each has its own identity, listener and helper thread.
struct Processes {
  explicit Processes(std::size_t count, const switcher::Limits& limits = {});
  std::vector<switcher::Rendezvous*> all() const;
  std::vector<std::unique_ptr<switcher::Rendezvous>> owned;
};

// Forks a process for every rank, before which the caller must have no helper thread. `body` gets its channel and
// returns an exit status; an exception is 99. Returns the exit statuses, or 1000 + signal.
struct ForkedRank {
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 0;
  switcher::Rendezvous* rendezvous = nullptr;
  switcher::Channel* channel = nullptr;
  UniqueId id{};
  std::function<void()> barrier;           // of all ranks
  std::atomic<std::uint64_t>* counters{};  // 16 that all ranks share
};
std::vector<int> fork_ranks(std::uint32_t rank_count, const std::function<int(const ForkedRank&)>& body);

// Contents that depend on key and receiver.
switcher::Bytes make_record(const switcher::RecordKey& key, std::uint32_t receiver, std::size_t bytes);

// Waits for a record; null if it is lost or 60 s pass.
switcher::Bytes await_record(switcher::Channel& channel, const switcher::RecordKey& key);

bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = std::chrono::milliseconds(20'000));

std::size_t open_descriptor_count();

}  // namespace zipccl::test
