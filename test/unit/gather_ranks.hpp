// Ranks of one loopback communicator that all-gather together, each in a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/all_gather.hpp"
#include "test/unit/loopback.hpp"

namespace zipccl::test {

inline constexpr std::uint64_t gather_staging_bytes = 2 << 20;

struct GatherRank {
  LoopbackRank rank;
  LoopbackDevice device;
  collectives::Statistics statistics;
  collectives::Communicator communicator;
  std::vector<std::uint16_t> output;
  ncclResult_t result = ncclSuccess;
  Status status = Status::ok;
};

class GatherRanks {
 public:
  GatherRanks(int count, collectives::Exchange exchange, std::uint32_t pool_fraction);

  // In place, of one shard a rank, all of one size.
  void gather_shards(const std::vector<std::vector<std::uint16_t>>& shards);
  void require_equal() const;

  LoopbackWorld world;
  std::vector<std::unique_ptr<GatherRank>> states;
  std::vector<std::uint16_t> expected;
};

}  // namespace zipccl::test
