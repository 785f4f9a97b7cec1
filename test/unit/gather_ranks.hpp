// Ranks of one loopback communicator that all-gather together, each in a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/all_gather.hpp"
#include "test/support/data.hpp"
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

struct GatherShape {
  std::uint64_t count = 0;
  bool in_place = true;
  cudaStream_t stream = nullptr;
};

class GatherRanks {
 public:
  GatherRanks(int count, collectives::Exchange exchange, std::uint32_t pool_fraction,
              std::uint64_t staging_bytes = gather_staging_bytes);

  // In place, of one shard a rank, all of one size.
  void gather_shards(const std::vector<std::vector<std::uint16_t>>& shards);
  // One group of calls on one communicator.
  void gather_group(const std::vector<GatherShape>& shapes, Data kind, std::uint64_t seed);
  void require_equal() const;
  void run(const std::function<void(GatherRank&)>& body);  // a thread for each rank

  LoopbackWorld world;
  std::vector<std::unique_ptr<GatherRank>> states;
  std::vector<std::uint16_t> expected;
};

}  // namespace zipccl::test
