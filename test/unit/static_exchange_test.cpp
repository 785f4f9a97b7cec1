// Exchange mode static on a loopback NCCL: calls that overflow and calls that do not, a CPU thread that ships records,
// lost peers, aborts, faults that kernels find.
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "codec/host_exchange.hpp"
#include "collectives/all_gather.hpp"
#include "test/support/data.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/loopback.hpp"

using namespace zipccl;
using namespace zipccl::collectives;
using test::Data;
using test::LoopbackDevice;
using test::LoopbackRank;
using test::LoopbackWorld;

namespace {

constexpr std::uint64_t staging_bytes = 2 << 20;

// All ranks' records in one place; a rank can be made to lose its peers.
class LoopbackRecords {
 public:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint32_t>;  // receiver, sender, ...

  void put(const Key& key, RecordTransport::Record record) {
    const std::lock_guard lock(mutex_);
    records_[key] = std::move(record);
  }
  RecordTransport::Record get(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(key);
    return found == records_.end() ? nullptr : found->second;
  }
  void erase(const Key& key) {
    const std::lock_guard lock(mutex_);
    records_.erase(key);
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return records_.size();
  }

 private:
  std::mutex mutex_;
  std::map<Key, RecordTransport::Record> records_;
};

class LoopbackTransport final : public RecordTransport {
 public:
  LoopbackTransport(LoopbackRecords& records, std::uint32_t own, std::uint32_t ranks)
      : records_(records), own_(own), ranks_(ranks) {}

  Status send_to_all(const RecordId& id, Record record) override {
    flushed_too_early = flushed_too_early || port->flushed();
    if (broken) {
      return Status::out_of_memory;
    }
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (rank != own_ && !mute) {
        records_.put({rank, id.sender, id.sequence, id.chunk}, record);
      }
    }
    return Status::ok;
  }
  Found find(const RecordId& id, Record* record) override {
    *record = records_.get({own_, id.sender, id.sequence, id.chunk});
    return *record != nullptr ? Found::arrived : lost ? Found::lost : Found::awaited;
  }
  void drop(const RecordId& id) override { records_.erase({own_, id.sender, id.sequence, id.chunk}); }
  bool flushed() const override { return true; }
  void wake() override { ++wakes; }

  std::atomic<bool> mute = false;
  std::atomic<bool> broken = false;
  std::atomic<bool> lost = false;
  std::atomic<int> wakes = 0;
  std::atomic<bool> flushed_too_early = false;  // while a record was on its way into this transport
  const OverflowPort* port = nullptr;

 private:
  LoopbackRecords& records_;
  std::uint32_t own_;
  std::uint32_t ranks_;
};

struct RankState {
  LoopbackRank rank;
  LoopbackDevice device;
  Statistics statistics;
  Communicator communicator;
  std::unique_ptr<LoopbackTransport> transport;
  std::vector<std::uint16_t> output;
  ncclResult_t result = ncclSuccess;
  Status status = Status::ok;

  OverflowPort& port() { return *communicator.staging->overflow(); }
};

class StaticRanks {
 public:
  explicit StaticRanks(int count, std::uint32_t pool_fraction) : world(count) {
    for (int rank = 0; rank < count; ++rank) {
      RankState& state = *states.emplace_back(std::make_unique<RankState>());
      state.rank = {&world, rank, 0};
      Communicator& communicator = state.communicator;
      communicator.nccl = &test::loopback_table();
      communicator.handle = state.rank.handle();
      communicator.device = &state.device;
      communicator.rank = rank;
      communicator.rank_count = count;
      communicator.agreement = {Exchange::fixed, pool_fraction, 0, staging_bytes, true};
      communicator.statistics = &state.statistics;
      REQUIRE(Staging::create(state.device, staging_bytes, count, true, &communicator.staging) == Status::ok);
      state.transport = std::make_unique<LoopbackTransport>(records, static_cast<std::uint32_t>(rank),
                                                            static_cast<std::uint32_t>(count));
      state.transport->port = &state.port();
      state.port().open(static_cast<std::uint32_t>(rank), state.transport.get());
    }
    helper = std::thread([this] {
      while (!stop) {
        for (auto& state : states) {
          if (state->rank.rank != paused) {
            state->port().poll();
          }
        }
        std::this_thread::yield();
      }
    });
  }
  ~StaticRanks() {
    stop = true;
    helper.join();
  }
  StaticRanks(const StaticRanks&) = delete;
  StaticRanks& operator=(const StaticRanks&) = delete;

  // All ranks gather `count` values of `kind` each, in place; with `only`, the other ranks' values are zeros.
  void gather(std::uint64_t count, Data kind, std::uint64_t seed, int only = -1) {
    expected.clear();
    for (std::uint64_t rank = 0; rank < states.size(); ++rank) {
      const bool of_kind = only < 0 || rank == static_cast<std::uint64_t>(only);
      const auto shard = test::make_data(of_kind ? kind : Data::zeros, count, seed * 100 + rank);
      expected.insert(expected.end(), shard.begin(), shard.end());
    }
    std::vector<std::thread> threads;
    for (auto& made : states) {
      threads.emplace_back([this, count, &state = *made] {
        state.output.assign(expected.size(), 0xDEAD);
        std::uint16_t* own = state.output.data() + static_cast<std::uint64_t>(state.rank.rank) * count;
        std::copy_n(expected.data() + (own - state.output.data()), count, own);
        const AllGatherCall call = {&state.communicator, own, state.output.data(), count, nullptr};
        state.result = all_gather({&call, 1}, &state.status);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  void require_equal() const {
    for (const auto& state : states) {
      REQUIRE(state->result == ncclSuccess);
      REQUIRE((state->output == expected));
    }
  }

  LoopbackWorld world;
  LoopbackRecords records;
  std::vector<std::unique_ptr<RankState>> states;
  std::vector<std::uint16_t> expected;
  std::atomic<bool> stop = false;
  std::atomic<int> paused = -1;  // the rank whose port is not polled
  std::thread helper;
};

}  // namespace

TEST_CASE("static all-gather is exact for every rank count, size, pool and kind of data") {
  for (const int count : {2, 3, 5}) {
    for (const std::uint32_t pool : {0u, 16u, 640u}) {
      StaticRanks ranks(count, pool);
      for (const std::uint64_t values : {1, 1025, 50000, 300001}) {
        for (int kind = 0; kind < test::data_kinds; ++kind) {
          CAPTURE(count, pool, values, kind);
          ranks.gather(values, static_cast<Data>(kind), values);
          ranks.require_equal();
        }
      }
      REQUIRE(ranks.records.size() == 0);  // every record was taken
    }
  }
}

TEST_CASE("nothing leaves by the channel unless a pool is too small") {
  StaticRanks ranks(2, 16);
  ranks.gather(100000, Data::normal, 1);
  ranks.require_equal();
  for (auto& state : ranks.states) {
    REQUIRE(state->port().sent_bytes() == 0);
    REQUIRE(state->port().counters().overflow_messages == 0);
    REQUIRE(state->port().counters().values == 200000);
    REQUIRE(state->port().counters().escapes > 2000);
    REQUIRE(state->port().flushed());
  }
  ranks.gather(100000, Data::random, 2);
  ranks.require_equal();
  for (auto& state : ranks.states) {
    REQUIRE(state->port().sent_bytes() > 90000);
    REQUIRE(state->port().counters().overflow_messages == 2);
    REQUIRE(state->port().flushed());
    REQUIRE(state->transport->wakes == 2);
  }
}

TEST_CASE("a port is not flushed before what its kernels have posted has left, also after a release") {
  const bool released = GENERATE(false, true);
  StaticRanks ranks(2, 0);
  OverflowPort& port = ranks.states[0]->port();
  ranks.paused = 0;
  std::thread gatherer([&] { ranks.gather(50000, Data::random, 1, 0); });
  while (codec::load_acquire(port.counters().finished) == 0) {
    std::this_thread::yield();
  }
  CHECK_FALSE(port.flushed());
  if (released) {
    port.release();
  }
  ranks.paused = -1;
  gatherer.join();
  ranks.require_equal();
  CHECK(port.flushed());
  CHECK_FALSE(ranks.states[0]->transport->flushed_too_early);
}

TEST_CASE("a lost peer is an error only while its record is awaited") {
  StaticRanks ranks(2, 0);
  ranks.states[1]->transport->lost = true;
  ranks.gather(50000, Data::zeros, 1);  // nothing is awaited
  ranks.require_equal();
  ranks.states[0]->transport->mute = true;
  ranks.gather(50000, Data::random, 2);
  REQUIRE(ranks.states[0]->port().status() == Status::ok);
  REQUIRE(ranks.states[1]->port().status() == Status::connection_lost);
  const AllGatherCall call = {&ranks.states[1]->communicator, ranks.states[1]->output.data(),
                              ranks.states[1]->output.data(), 1000, nullptr};
  Status status = Status::ok;
  REQUIRE(all_gather({&call, 1}, &status) == ncclRemoteError);
  REQUIRE(status == Status::connection_lost);
}

TEST_CASE("a record that cannot be sent is the sender's fault too, and stays") {
  StaticRanks ranks(2, 0);
  ranks.states[0]->transport->broken = true;
  ranks.states[1]->transport->lost = true;
  ranks.gather(50000, Data::random, 1);
  REQUIRE(ranks.states[0]->port().status() == Status::out_of_memory);
  REQUIRE(ranks.states[1]->port().status() == Status::connection_lost);
}

TEST_CASE("an abort releases a patch that waits") {
  StaticRanks ranks(2, 0);
  ranks.states[0]->transport->mute = true;
  std::thread aborter([&] {
    while (ranks.states[1]->transport->wakes == 0) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.states[1]->port().release();
  });
  ranks.gather(50000, Data::random, 1);
  aborter.join();
  REQUIRE(ranks.states[1]->result == ncclSuccess);  // NCCL's convention: the abort is the caller's to report
}

TEST_CASE("what kernels find wrong is kept, and the next call returns it") {
  StaticRanks ranks(2, 16);
  ranks.world.fault_rank = 1;
  ranks.world.fault_call = 1;
  ranks.world.fault_byte = 8;  // of the header: the count
  ranks.gather(5000, Data::normal, 1);
  REQUIRE(ranks.states[1]->port().status() == Status::bad_count);
  const AllGatherCall call = {&ranks.states[1]->communicator, ranks.states[1]->output.data(),
                              ranks.states[1]->output.data(), 1000, nullptr};
  Status status = Status::ok;
  REQUIRE(all_gather({&call, 1}, &status) == ncclInternalError);
  REQUIRE(status == Status::bad_count);
}

TEST_CASE("mapped memory that is refused refuses the staging") {
  LoopbackDevice device;
  device.memory_limit = staging_bytes;
  std::unique_ptr<Staging> staging;
  device.memory_limit = staging_bytes + 1;
  REQUIRE(Staging::create(device, staging_bytes, 2, true, &staging) == Status::ok);
  staging.reset();
  device.memory_limit = staging_bytes - 1;
  REQUIRE(Staging::create(device, staging_bytes, 2, true, &staging) == Status::out_of_memory);
  REQUIRE(device.allocations == 0);
}
