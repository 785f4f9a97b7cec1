// Fences of up to 256 ranks under random delays, wishes, keepers, leavers and crashes: no two ranks ever give one call
// different settings, and every rank comes to an end. First with simulated time, then with threads.
#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "switcher/fence_gate.hpp"
#include "test/unit/catch.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;

FenceSetting pool(std::uint32_t fraction) { return {true, fraction, std::uint64_t{1} << 20}; }

struct Plan {
  std::uint32_t ranks = 2;
  std::uint64_t calls = 200;
  std::uint64_t run_ahead = 8;  // calls that a rank's host may be ahead of the slowest one's
  unsigned delay = 100;         // of messages, at most; a call takes 1 to 20
  bool wishes_change = false;   // else all wish pool(16), each at a call of its own among the first ten
  unsigned slow_ranks = 0;      // which take up to 50 times as long
  unsigned crashes = 0;
  unsigned keepers = 0;
  FenceSetting initial;
};

struct Outcome {
  std::map<std::uint64_t, FenceSetting> settings;  // by call
  std::uint64_t unfinished = 0;                    // of the ranks that are alive
  std::uint64_t lost = 0;
  bool agreed = true;
  FenceSetting last;
};

class Simulation {
 public:
  Simulation(const Plan& plan, std::uint32_t seed) : plan_(plan), random_(seed) {
    std::vector<std::uint32_t> participants(plan.ranks);
    for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) participants[rank] = rank;
    for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
      ranks_.push_back({Fence(participants, rank, plan.initial)});
      ranks_.back().wishes_at = below(10) + 1;
      schedule(rank, below(50));
    }
    for (unsigned i = 0; i < plan.slow_ranks; ++i) ranks_[below(plan.ranks)].slowness = 50;
    for (unsigned i = 0; i < plan.keepers; ++i) ranks_[below(plan.ranks)].keeps_at = below(plan.calls);
    for (unsigned i = 0; i < plan.crashes; ++i) {
      events_.push({below(2000) + 1, next_event_++, Event::Kind::crash, below(plan.ranks), 0, {}});
    }
    if (plan.initial.compressed) {
      for (Rank& rank : ranks_) rank.wishes_at = 0;
    }
  }

  Outcome run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      Rank& rank = ranks_[event.rank];
      if (rank.gone) continue;
      switch (event.kind) {
        case Event::Kind::call:
          make_call(event.rank);
          break;
        case Event::Kind::message:
          REQUIRE(rank.fence.receive(event.peer, event.message));
          resume(event.rank);
          break;
        case Event::Kind::loss:
          rank.fence.lose(event.peer);
          resume(event.rank);
          break;
        case Event::Kind::crash:
          leave(event.rank, true);
          break;
      }
      send(event.rank);
    }
    for (const Rank& rank : ranks_) outcome_.unfinished += rank.gone ? 0 : 1;
    return outcome_;
  }

 private:
  struct Event {
    enum class Kind { call, message, loss, crash };
    std::uint64_t time;
    std::uint64_t number;
    Kind kind;
    std::uint32_t rank;
    std::uint32_t peer;
    FenceMessage message;
    bool operator<(const Event& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);  // the earliest is on top
    }
  };
  struct Rank {
    Fence fence;
    unsigned slowness = 1;
    std::uint64_t wishes_at = 0;
    std::uint64_t keeps_at = ~std::uint64_t{0};
    bool waiting = false;  // at a fence
    bool held = false;     // too far ahead
    bool gone = false;
    std::map<std::uint32_t, std::uint64_t> last_delivery{};  // by receiver: messages keep their order
  };

  std::uint32_t below(std::uint64_t limit) { return static_cast<std::uint32_t>(random_() % limit); }

  void schedule(std::uint32_t rank, std::uint64_t delay) {
    events_.push({now_ + delay, next_event_++, Event::Kind::call, rank, 0, {}});
  }

  void post(std::uint32_t sender, std::uint32_t receiver, Event::Kind kind, const FenceMessage& message) {
    std::uint64_t& last = ranks_[sender].last_delivery[receiver];
    last = std::max(last, now_ + below(plan_.delay));
    events_.push({last, next_event_++, kind, receiver, sender, message});
  }

  void send(std::uint32_t rank) {
    auto& outgoing = ranks_[rank].fence.outgoing();
    for (; !outgoing.empty(); outgoing.pop_front()) {
      post(rank, outgoing.front().receiver, Event::Kind::message, outgoing.front().message);
    }
  }

  // A crash loses a random end of what was sent, too: here, all that is still to be sent.
  void leave(std::uint32_t rank, bool crash) {
    if (crash) {
      ranks_[rank].fence.outgoing().clear();
    } else {
      send(rank);
    }
    ranks_[rank].gone = true;
    crashed_ = crashed_ || crash;
    for (std::uint32_t other = 0; other < plan_.ranks; ++other) {
      if (other != rank) post(rank, other, Event::Kind::loss, {});
    }
    release_held();
  }

  void resume(std::uint32_t rank) {
    if (ranks_[rank].waiting) {
      ranks_[rank].waiting = false;
      schedule(rank, 0);
    }
  }

  std::uint64_t slowest() const {
    std::uint64_t least = plan_.calls;
    for (const Rank& rank : ranks_) least = rank.gone ? least : std::min(least, rank.fence.calls());
    return least;
  }

  void release_held() {
    const std::uint64_t least = slowest();
    for (std::uint32_t rank = 0; rank < plan_.ranks; ++rank) {
      if (ranks_[rank].held && ranks_[rank].fence.calls() < least + plan_.run_ahead) {
        ranks_[rank].held = false;
        schedule(rank, 0);
      }
    }
  }

  void wish(Rank& rank) {
    if (!plan_.wishes_change) {
      if (rank.fence.calls() >= rank.wishes_at) rank.fence.wish(pool(16));
      return;
    }
    if (rank.fence.calls() < rank.wishes_at) return;
    rank.wishes_at = rank.fence.calls() + 5 + below(60);
    const std::uint32_t choice = below(8);
    rank.fence.wish(choice == 0 ? FenceSetting{} : pool(16u << (choice / 2)));
  }

  void make_call(std::uint32_t index) {
    Rank& rank = ranks_[index];
    if (rank.fence.calls() == plan_.calls) return leave(index, false);
    if (rank.fence.calls() >= slowest() + plan_.run_ahead) {
      rank.held = true;
      return;
    }
    wish(rank);
    if (rank.fence.calls() >= rank.keeps_at) rank.fence.keep();
    const std::uint64_t call = rank.fence.calls();
    FenceSetting setting;
    switch (rank.fence.enter(&setting)) {
      case Fence::Entry::begun: {
        const auto [known, added] = outcome_.settings.try_emplace(call, setting);
        outcome_.agreed = outcome_.agreed && known->second == setting;
        outcome_.last = setting;
        schedule(index, (1 + below(20)) * rank.slowness);
        release_held();
        break;
      }
      case Fence::Entry::undecided:
        rank.waiting = true;
        break;
      case Fence::Entry::lost:
        ++outcome_.lost;
        REQUIRE(crashed_);
        leave(index, true);
        break;
    }
  }

  const Plan plan_;
  std::mt19937 random_;
  std::vector<Rank> ranks_;
  std::priority_queue<Event> events_;
  std::uint64_t now_ = 0;
  std::uint64_t next_event_ = 0;
  bool crashed_ = false;
  Outcome outcome_;
};

Outcome simulate(const Plan& plan, std::uint32_t seed) {
  INFO("seed " << seed << ", ranks " << plan.ranks);
  Outcome outcome = Simulation(plan, seed).run();
  REQUIRE(outcome.agreed);
  REQUIRE(outcome.unfinished == 0);
  return outcome;
}

constexpr std::uint32_t sizes[] = {2, 3, 8, 40, 256};

std::uint32_t seeds_for(std::uint32_t ranks) { return 2 + 600 / ranks; }

}  // namespace

TEST_CASE("ranks that wish alike are promoted within a few calls") {
  Plan plan;
  for (const std::uint32_t ranks : sizes) {
    plan.ranks = ranks;
    for (std::uint32_t seed = 0; seed < seeds_for(ranks); ++seed) {
      const Outcome outcome = simulate(plan, seed);
      CHECK(outcome.lost == 0);
      CHECK(outcome.last == pool(16));
      // The last wishes at call 10. A message takes as long as ten calls, so the first two attempts may come too late.
      CHECK(outcome.settings.at(150) == pool(16));
      CHECK(outcome.settings.at(0) == FenceSetting{});
    }
  }
}

TEST_CASE("slow links and late ranks only delay a promotion") {
  Plan plan;
  plan.delay = 2000;
  plan.slow_ranks = 2;
  plan.run_ahead = 500;
  plan.calls = 1500;
  for (const std::uint32_t ranks : sizes) {
    plan.ranks = ranks;
    for (std::uint32_t seed = 0; seed < 2 + seeds_for(ranks) / 10; ++seed) {
      const Outcome outcome = simulate(plan, seed);
      CHECK(outcome.lost == 0);
      CHECK(outcome.last == pool(16));
    }
  }
}

TEST_CASE("wishes that change all the time never part the ranks") {
  Plan plan;
  plan.wishes_change = true;
  plan.calls = 400;
  for (const FenceSetting& initial : {FenceSetting{}, pool(16)}) {
    plan.initial = initial;
    for (const std::uint32_t ranks : sizes) {
      plan.ranks = ranks;
      for (std::uint32_t seed = 0; seed < seeds_for(ranks); ++seed) {
        plan.delay = 1 + seed % 7 * 200;
        plan.run_ahead = 1 + seed % 5 * 30;
        const Outcome outcome = simulate(plan, seed);
        CHECK(outcome.lost == 0);
      }
    }
  }
}

TEST_CASE("keepers hold a class as it is") {
  Plan plan;
  plan.wishes_change = true;
  plan.keepers = 2;
  for (const std::uint32_t ranks : sizes) {
    plan.ranks = ranks;
    for (std::uint32_t seed = 0; seed < seeds_for(ranks); ++seed) CHECK(simulate(plan, seed).lost == 0);
  }
}

TEST_CASE("a rank that crashes at any moment parts nobody and holds nobody up") {
  Plan plan;
  plan.wishes_change = true;
  plan.calls = 300;
  std::uint64_t lost = 0;
  for (const std::uint32_t ranks : sizes) {
    plan.ranks = ranks;
    for (std::uint32_t seed = 0; seed < 4 * seeds_for(ranks); ++seed) {
      plan.crashes = 1 + seed % 3;
      plan.keepers = seed % 4 == 0 ? 1 : 0;
      lost += simulate(plan, seed).lost;
    }
  }
  CHECK(lost > 0);  // the case is met: a fence whose coordinator died
}

namespace {

// Ranks as threads, whose messages a few other threads deliver, as the processes' helper threads do.
class ThreadedRanks {
 public:
  explicit ThreadedRanks(std::uint32_t count) {
    std::vector<std::uint32_t> participants(count);
    for (std::uint32_t rank = 0; rank < count; ++rank) participants[rank] = rank;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      members_.push_back(std::make_unique<Member>(this, rank));
      members_.back()->gate = std::make_unique<FenceGate>(participants, rank, FenceSetting{}, members_.back().get());
    }
    for (std::uint32_t helper = 0; helper < helper_count; ++helper) {
      helpers_.emplace_back([this, helper] { deliver(helper); });
    }
  }
  ~ThreadedRanks() {
    stop_ = true;
    for (std::thread& helper : helpers_) helper.join();
  }

  FenceGate& gate(std::uint32_t rank) { return *members_[rank]->gate; }
  void leave(std::uint32_t rank) {
    for (std::uint32_t other = 0; other < members_.size(); ++other) {
      if (other != rank) members_[other]->add({rank, std::nullopt});
    }
  }

 private:
  static constexpr std::uint32_t helper_count = 3;

  struct Item {
    std::uint32_t sender;
    std::optional<FenceMessage> message;  // none: the sender has left
  };
  struct Member final : FenceTransport {
    Member(ThreadedRanks* all, std::uint32_t rank) : all_(all), rank_(rank) {}
    Status send(std::uint32_t receiver, const FenceMessage& message) override {
      all_->members_[receiver]->add({rank_, message});
      return Status::ok;
    }
    void add(const Item& item) {
      const std::lock_guard lock(mutex);
      inbox.push_back(item);
    }
    ThreadedRanks* const all_;
    const std::uint32_t rank_;
    std::unique_ptr<FenceGate> gate;
    std::mutex mutex;
    std::deque<Item> inbox;
  };

  void deliver(std::uint32_t helper) {
    while (!stop_) {
      for (std::uint32_t rank = helper; rank < members_.size(); rank += helper_count) {
        Member& member = *members_[rank];
        std::deque<Item> items;
        {
          const std::lock_guard lock(member.mutex);
          items.swap(member.inbox);
        }
        for (const Item& item : items) {
          item.message ? member.gate->receive(item.sender, *item.message) : member.gate->lose(item.sender);
        }
      }
      std::this_thread::yield();
    }
  }

  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::thread> helpers_;
  std::atomic<bool> stop_ = false;
};

struct ThreadedResult {
  std::vector<std::vector<FenceSetting>> settings;  // by rank and call
  std::vector<Status> ends;
};

// Every rank makes the calls; `before_call(rank, call)` may wish; false makes the rank leave.
template <typename BeforeCall>
ThreadedResult run_threads(std::uint32_t count, std::uint64_t calls, BeforeCall before_call) {
  ThreadedRanks ranks(count);
  ThreadedResult result{std::vector<std::vector<FenceSetting>>(count), std::vector<Status>(count, Status::ok)};
  std::vector<std::atomic<std::uint64_t>> arrivals(calls);
  std::atomic<int> left = 0;  // before their last call
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 random(rank);
      constexpr std::uint64_t run_ahead = 3;
      for (std::uint64_t call = 0; call < calls; ++call) {
        if (!before_call(ranks.gate(rank), rank, call)) {
          ++left;
          break;
        }
        if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        FenceSetting setting;
        std::uint64_t number = ~std::uint64_t{0};
        if ((result.ends[rank] = ranks.gate(rank).enter(&setting, &number)) != Status::ok) {
          ++left;
          break;
        }
        if (number != call) std::abort();
        result.settings[rank].push_back(setting);
        // As on a GPU, whose queue is finite: not far ahead of a collective that others have not begun.
        ++arrivals[call];
        while (call >= run_ahead && arrivals[call - run_ahead] < count && left == 0) {
          std::this_thread::yield();
        }
      }
      ranks.leave(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return result;
}

bool equal_where_both_have(const ThreadedResult& result) {
  for (const auto& one : result.settings) {
    for (const auto& other : result.settings) {
      const auto length = static_cast<std::ptrdiff_t>(std::min(one.size(), other.size()));
      if (!std::equal(one.begin(), one.begin() + length, other.begin())) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("256 threads switch together") {
  constexpr std::uint64_t calls = 400;
  const ThreadedResult result = run_threads(256, calls, [](FenceGate& gate, std::uint32_t rank, std::uint64_t call) {
    if (call == 2 + rank % 3) gate.wish(pool(16));
    if (rank == 77 && call == 60) gate.wish(pool(256));
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // messages take less than calls
    return true;
  });
  CHECK(equal_where_both_have(result));
  for (const auto& settings : result.settings) {
    REQUIRE(settings.size() == calls);
    CHECK(settings.front() == FenceSetting{});
    CHECK(settings.back() == pool(256));
  }
}

TEST_CASE("threads whose rank leaves in the middle of a switch end all the same") {
  for (const std::uint32_t leaver : {0u, 5u}) {
    for (std::uint64_t last = 0; last < 12; ++last) {
      const ThreadedResult result = run_threads(24, 40, [&](FenceGate& gate, std::uint32_t rank, std::uint64_t call) {
        if (call == 1) gate.wish(pool(16));
        return rank != leaver || call < last;
      });
      CHECK(equal_where_both_have(result));
      for (std::uint32_t rank = 0; rank < 24; ++rank) {
        const bool whole = result.settings[rank].size() == 40;
        CHECK((whole || rank == leaver || (leaver == 0 && result.ends[rank] == Status::connection_lost)));
      }
    }
  }
}

}  // namespace zipccl::test
