#include "test/unit/gather_ranks.hpp"

#include <algorithm>
#include <thread>

#include "test/unit/catch.hpp"

namespace zipccl::test {

using collectives::AllGatherCall;
using collectives::Communicator;
using collectives::Exchange;
using collectives::Staging;

GatherRanks::GatherRanks(int count, Exchange exchange, std::uint32_t pool_fraction) : world(count) {
  for (int rank = 0; rank < count; ++rank) {
    GatherRank& state = *states.emplace_back(std::make_unique<GatherRank>());
    state.rank = {&world, rank, 0};
    Communicator& communicator = state.communicator;
    communicator.nccl = &loopback_table();
    communicator.handle = state.rank.handle();
    communicator.device = &state.device;
    communicator.rank = rank;
    communicator.rank_count = count;
    communicator.agreement = {exchange, pool_fraction, 0, gather_staging_bytes, true};
    communicator.statistics = &state.statistics;
    REQUIRE(Staging::create(state.device, gather_staging_bytes, count, exchange == Exchange::fixed,
                            &communicator.staging) == Status::ok);
  }
}

void GatherRanks::gather_shards(const std::vector<std::vector<std::uint16_t>>& shards) {
  const std::uint64_t count = shards.front().size();
  expected.clear();
  for (const auto& shard : shards) {
    expected.insert(expected.end(), shard.begin(), shard.end());
  }
  std::vector<std::thread> threads;
  for (auto& made : states) {
    threads.emplace_back([this, count, &state = *made] {
      state.output.assign(expected.size(), 0xDEAD);
      const auto own = static_cast<std::uint64_t>(state.rank.rank) * count;
      std::copy_n(expected.data() + own, count, state.output.data() + own);
      const AllGatherCall call = {&state.communicator, state.output.data() + own, state.output.data(), count, nullptr};
      state.result = collectives::all_gather({&call, 1}, &state.status);
    });
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
