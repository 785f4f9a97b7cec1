#include "test/unit/gather_ranks.hpp"

#include <algorithm>
#include <thread>

#include "test/unit/catch.hpp"

namespace zipccl::test {

using collectives::AllGatherCall;
using collectives::Communicator;
using collectives::Exchange;
using collectives::Staging;

GatherRanks::GatherRanks(int count, Exchange exchange, std::uint32_t pool_fraction, std::uint64_t staging_bytes)
    : world(count) {
  for (int rank = 0; rank < count; ++rank) {
    GatherRank& state = *states.emplace_back(std::make_unique<GatherRank>());
    state.rank = {&state.device, &world, rank, 0};
    Communicator& communicator = state.communicator;
    communicator.nccl = &loopback_table();
    communicator.handle = state.rank.handle();
    communicator.device = &state.device;
    communicator.rank = rank;
    communicator.rank_count = count;
    communicator.agreement = {exchange, pool_fraction, 0, staging_bytes, true, exchange == Exchange::fixed};
    communicator.statistics = &state.statistics;
    REQUIRE(Staging::create(state.device, staging_bytes, count, exchange == Exchange::fixed, &communicator.staging) ==
            Status::ok);
    REQUIRE(collectives::CallChain::create(state.device, &communicator.chain) == Status::ok);
    REQUIRE(collectives::OverflowPort::create(state.device, &communicator.port) == Status::ok);
  }
}

void GatherRanks::gather_shards(const std::vector<std::vector<std::uint16_t>>& shards) {
  const std::uint64_t count = shards.front().size();
  expected.clear();
  for (const auto& shard : shards) {
    expected.insert(expected.end(), shard.begin(), shard.end());
  }
  run([this, count](GatherRank& state) {
    state.output.assign(expected.size(), 0xDEAD);
    const auto own = static_cast<std::uint64_t>(state.rank.rank) * count;
    std::copy_n(expected.data() + own, count, state.output.data() + own);
    const AllGatherCall call = {&state.communicator, state.output.data() + own, state.output.data(), count, nullptr};
    state.result = collectives::all_gather({&call, 1}, &state.status);
  });
}

void GatherRanks::gather_group(const std::vector<GatherShape>& shapes, Data kind, std::uint64_t seed) {
  expected.clear();
  std::vector<std::uint64_t> starts;
  for (const GatherShape& shape : shapes) {
    starts.push_back(expected.size());
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      const auto shard = make_data(kind, shape.count, ++seed);
      expected.insert(expected.end(), shard.begin(), shard.end());
    }
  }
  run([&](GatherRank& state) {
    state.output.assign(expected.size(), 0xDEAD);
    std::vector<std::uint16_t> sent = expected;
    std::vector<AllGatherCall> calls;
    for (std::size_t index = 0; index < shapes.size(); ++index) {
      const auto own = starts[index] + static_cast<std::uint64_t>(state.rank.rank) * shapes[index].count;
      const std::uint16_t* send = sent.data() + own;
      if (shapes[index].in_place) {
        std::copy_n(send, shapes[index].count, state.output.data() + own);
        send = state.output.data() + own;
      }
      calls.push_back(
          {&state.communicator, send, state.output.data() + starts[index], shapes[index].count, shapes[index].stream});
    }
    state.result = collectives::all_gather(calls, &state.status);
  });
}

void GatherRanks::run(const std::function<void(GatherRank&)>& body) {
  std::vector<std::thread> threads;
  for (auto& made : states) {
    threads.emplace_back([&body, &state = *made] { body(state); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void GatherRanks::require_equal() const {
  for (const auto& state : states) {
    REQUIRE(state->result == ncclSuccess);
    REQUIRE(state->status == Status::ok);
    REQUIRE((state->output == expected));
  }
}

}  // namespace zipccl::test
