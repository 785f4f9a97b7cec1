// Ranks of one loopback communicator in exchange mode static, with a thread that looks after all ranks' overflow ports
// and carries their records.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "collectives/all_gather.hpp"
#include "test/support/data.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/gather_ranks.hpp"

namespace zipccl::test {

using collectives::OverflowPort;
using collectives::RecordId;
using collectives::RecordTransport;

inline cudaStream_t stream_of(std::uintptr_t number) { return reinterpret_cast<cudaStream_t>(number); }

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

  Status send(std::uint32_t receiver, const RecordId& id, Record record) override {
    flushed_too_early = flushed_too_early || port->flushed();
    if (receiver != all_receivers) {
      ++sent.at(receiver);
    }
    if (broken) {
      return Status::out_of_memory;
    }
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (rank != own_ && !mute && (receiver == all_receivers || receiver == rank)) {
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
  std::array<std::atomic<int>, 8> sent{};       // records to one rank alone, by rank
  std::atomic<bool> flushed_too_early = false;  // while a record was on its way into this transport
  const OverflowPort* port = nullptr;

 private:
  LoopbackRecords& records_;
  std::uint32_t own_;
  std::uint32_t ranks_;
};

class StaticRanks : public GatherRanks {
 public:
  StaticRanks(int count, std::uint32_t pool_fraction, std::uint64_t room = gather_staging_bytes)
      : GatherRanks(count, collectives::Exchange::fixed, pool_fraction, room) {
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
        ++rounds;
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

  // From its return on, the rank's port is not polled.
  void pause(int rank) {
    paused = rank;
    for (const std::uint64_t now = rounds; rounds < now + 2;) {  // one may have begun before
      std::this_thread::yield();
    }
  }

  OverflowPort& port(std::size_t rank) { return *states[rank]->communicator.port; }

  // All ranks gather `count` values of `kind` each, in place; with `only`, the other ranks' values are zeros.
  void gather(std::uint64_t count, Data kind, std::uint64_t seed, int only = -1) {
    std::vector<std::vector<std::uint16_t>> shards;
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      const bool of_kind = only < 0 || static_cast<int>(rank) == only;
      shards.push_back(make_data(of_kind ? kind : Data::zeros, count, seed * 100 + rank));
    }
    gather_shards(shards);
  }

  // The caller's own work on the last outputs, into whose memory the next calls go if they have as many values.
  void use_outputs(cudaStream_t stream) {
    for (const auto& state : states) {
      state->device.order.step(stream);
      state->device.order.writes(state->output.data(), state->output.size() * sizeof(std::uint16_t), stream);
    }
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
  std::atomic<std::uint64_t> rounds = 0;
  std::thread helper;
};

}  // namespace zipccl::test
