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
#include "test/unit/gather_ranks.hpp"

using namespace zipccl;
using namespace zipccl::collectives;
using test::Data;
using test::LoopbackDevice;
using test::LoopbackRank;
using test::LoopbackWorld;

namespace {

constexpr std::uint64_t staging_bytes = test::gather_staging_bytes;

cudaStream_t stream_of(std::uintptr_t number) { return reinterpret_cast<cudaStream_t>(number); }

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

class StaticRanks : public test::GatherRanks {
 public:
  StaticRanks(int count, std::uint32_t pool_fraction, std::uint64_t room = staging_bytes)
      : GatherRanks(count, Exchange::fixed, pool_fraction, room) {
    for (auto& state : states) {
      const auto own = static_cast<std::uint32_t>(state->rank.rank);
      auto& transport =
          transports.emplace_back(std::make_unique<LoopbackTransport>(records, own, static_cast<std::uint32_t>(count)));
      transport->port = &port(own);
      port(own).open(own, transport.get());
    }
    helper = std::thread([this] {
      while (!stop) {
        for (std::size_t rank = 0; rank < states.size(); ++rank) {
          if (static_cast<int>(rank) != paused) {
            port(rank).poll();
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

  OverflowPort& port(std::size_t rank) { return *states[rank]->communicator.staging->overflow(); }

  // All ranks gather `count` values of `kind` each, in place; with `only`, the other ranks' values are zeros.
  void gather(std::uint64_t count, Data kind, std::uint64_t seed, int only = -1) {
    std::vector<std::vector<std::uint16_t>> shards;
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      const bool of_kind = only < 0 || static_cast<int>(rank) == only;
      shards.push_back(test::make_data(of_kind ? kind : Data::zeros, count, seed * 100 + rank));
    }
    gather_shards(shards);
  }

  // Nothing ran beside what it had to wait for, and the caller's stream now waits for everything.
  void require_ordered(cudaStream_t stream) const {
    for (const auto& state : states) {
      CAPTURE(state->rank.rank);
      REQUIRE(state->device.order.faults() == std::vector<std::string>{});
      REQUIRE(state->device.order.rejoined(stream));
    }
  }

  LoopbackRecords records;
  std::vector<std::unique_ptr<LoopbackTransport>> transports;
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
  for (std::size_t rank = 0; rank < ranks.states.size(); ++rank) {
    REQUIRE(ranks.port(rank).sent_bytes() == 0);
    REQUIRE(ranks.port(rank).counters().overflow_messages == 0);
    REQUIRE(ranks.port(rank).counters().values == 200000);
    REQUIRE(ranks.port(rank).counters().escapes > 2000);
    REQUIRE(ranks.port(rank).flushed());
  }
  ranks.gather(100000, Data::random, 2);
  ranks.require_equal();
  for (std::size_t rank = 0; rank < ranks.states.size(); ++rank) {
    REQUIRE(ranks.port(rank).sent_bytes() > 90000);
    REQUIRE(ranks.port(rank).counters().overflow_messages == 2);
    REQUIRE(ranks.port(rank).flushed());
    REQUIRE(ranks.transports[rank]->wakes == 2);
  }
}

TEST_CASE("a port is not flushed before what its kernels have posted has left, also after a release") {
  const bool released = GENERATE(false, true);
  StaticRanks ranks(2, 0);
  OverflowPort& port = ranks.port(0);
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
  CHECK_FALSE(ranks.transports[0]->flushed_too_early);
}

TEST_CASE("a lost peer is an error only while its record is awaited") {
  StaticRanks ranks(2, 0);
  ranks.transports[1]->lost = true;
  ranks.gather(50000, Data::zeros, 1);  // nothing is awaited
  ranks.require_equal();
  ranks.transports[0]->mute = true;
  ranks.gather(50000, Data::random, 2);
  REQUIRE(ranks.port(0).status() == Status::ok);
  REQUIRE(ranks.port(1).status() == Status::connection_lost);
  const AllGatherCall call = {&ranks.states[1]->communicator, ranks.states[1]->output.data(),
                              ranks.states[1]->output.data(), 1000, nullptr};
  Status status = Status::ok;
  REQUIRE(all_gather({&call, 1}, &status) == ncclRemoteError);
  REQUIRE(status == Status::connection_lost);
}

TEST_CASE("a record that cannot be sent is the sender's fault too, and stays") {
  StaticRanks ranks(2, 0);
  ranks.transports[0]->broken = true;
  ranks.transports[1]->lost = true;
  ranks.gather(50000, Data::random, 1);
  REQUIRE(ranks.port(0).status() == Status::out_of_memory);
  REQUIRE(ranks.port(1).status() == Status::connection_lost);
}

TEST_CASE("an abort releases a patch that waits") {
  StaticRanks ranks(2, 0);
  ranks.transports[0]->mute = true;
  std::thread aborter([&] {
    while (ranks.transports[1]->wakes == 0) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.port(1).release();
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
  REQUIRE(ranks.port(1).status() == Status::bad_count);
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

TEST_CASE("chunks of a call overlap on side streams, in order") {
  for (const int count : {2, 3, 5}) {
    StaticRanks ranks(count, 16);
    const std::uint64_t chunk = Staging::chunk_values(staging_bytes, count, 16);
    for (const std::uint64_t chunks : {2, 3, 4, 9}) {
      for (const bool in_place : {true, false}) {
        CAPTURE(count, chunks, in_place);
        const cudaStream_t stream = stream_of(1 + chunks % 2);
        ranks.world.gathers = 0;
        ranks.gather_group({{chunks * chunk - 5, in_place, stream}}, in_place ? Data::mixture : Data::random, chunks);
        ranks.require_equal();
        ranks.require_ordered(stream);
        REQUIRE(ranks.world.gathers == static_cast<int>(chunks));
        REQUIRE(ranks.states[0]->device.order.streams() >= 3);
      }
    }
  }
}

TEST_CASE("a call of one chunk, or under rule R5's condition, stays on its stream") {
  StaticRanks ranks(2, 16);
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, 16);
  std::uint64_t values = chunk;
  SECTION("one chunk") {}
  SECTION("rule R5") {
    for (const auto& state : ranks.states) {
      state->communicator.agreement.overlap = false;
    }
    values = 3 * chunk;
  }
  ranks.gather_group({{values, false, stream_of(1)}}, Data::normal, 1);
  ranks.require_equal();
  ranks.require_ordered(stream_of(1));
  REQUIRE(ranks.states[0]->device.order.streams() == 1);
}

TEST_CASE("the calls of a group overlap if they share a stream") {
  StaticRanks ranks(2, 16);
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, 16);
  const bool shared = GENERATE(true, false);
  const cudaStream_t other = stream_of(shared ? 1 : 2);
  for (const bool in_place : {true, false}) {
    for (const std::uint64_t last : {chunk / 2, 2 * chunk + 1}) {
      CAPTURE(shared, in_place, last);
      ranks.gather_group({{1000, in_place, stream_of(1)},
                          {3 * chunk, !in_place, other},
                          {1, in_place, other},
                          {last, in_place, stream_of(1)}},
                         Data::random, last);
      ranks.require_equal();
      ranks.require_ordered(stream_of(1));
      REQUIRE(ranks.states[0]->device.order.streams() == (shared ? 3 : 2));
    }
  }
}

TEST_CASE("a large shard is copied beside the exchange of its one chunk") {
  constexpr std::uint64_t room = 64 << 20;
  StaticRanks ranks(2, 16, room);
  ranks.gather_group({{4 << 20, false, stream_of(1)}}, Data::normal, 1);
  ranks.require_equal();
  ranks.require_ordered(stream_of(1));
  REQUIRE(ranks.world.gathers == 1);
  REQUIRE(ranks.states[0]->device.order.streams() == 2);
}

// The next call on another stream must find the half free, and the caller's buffers are his again.
TEST_CASE("whatever fails, and when, the caller's stream waits for all that was enqueued") {
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, 16);
  const bool in_nccl = GENERATE(false, true);
  bool failed = true;
  for (int step = 1; failed; ++step) {
    CAPTURE(in_nccl, step);
    StaticRanks ranks(2, 16);
    ranks.gather_group({{1000, true, stream_of(2)}}, Data::normal, 1);
    for (const auto& state : ranks.states) {
      state->device.operations = 0;
      state->device.fail_at = in_nccl ? 0 : step;
      state->rank.calls = 0;
    }
    if (in_nccl) {
      ranks.world.fault_rank = LoopbackWorld::every_rank;
      ranks.world.fault_call = step;
      ranks.world.fault_result = ncclSystemError;
    }
    ranks.gather_group({{3 * chunk + 1, false, stream_of(1)}, {500, true, stream_of(1)}}, Data::mixture, 2);
    failed = ranks.states[0]->result != ncclSuccess;
    ranks.require_ordered(stream_of(1));
    if (failed) {
      for (const auto& state : ranks.states) {
        REQUIRE(state->result == (in_nccl ? ncclSystemError : ncclUnhandledCudaError));
      }
    } else {
      ranks.require_equal();
      REQUIRE(step > (in_nccl ? 4 : 30));
    }
  }
}
