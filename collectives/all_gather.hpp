// Compressed ncclAllGather: encode the own shard once, all-gather the static bytes, decode the others' shards.
#pragma once

#include <cstdint>
#include <span>

#include "collectives/communicator.hpp"
#include "collectives/outcome.hpp"

namespace zipccl::collectives {

struct AllGatherCall {
  Communicator* communicator = nullptr;
  const void* send = nullptr;  // count values; may be receive + rank * count (in place)
  void* receive = nullptr;     // rank_count x count values
  std::uint64_t count = 0;     // values of one rank
  cudaStream_t stream = nullptr;
  std::uint64_t capture = 0;  // Device::capture of the stream; not 0 in mode static only
};

// How a call with these arguments goes. A pure function of what all ranks share (rule R2); the caller has already
// dealt with what it alone knows (registered buffers, capture), which NCCL demands to be alike on all ranks.
Route route_all_gather(const Communicator& communicator, std::uint64_t count, ncclDataType_t dtype);

// Runs calls whose route is `compressed`; several are one user's group. Each phase is one real NCCL group, chunk by
// chunk. On return everything is enqueued, or captured; in exchange mode exact all overflow is dealt with, too. An NCCL
// error is returned as it is with *status nccl_error; a device error is ncclUnhandledCudaError, an abort
// ncclInvalidUsage, a corrupt message ncclInternalError. The output is then undefined and the communicators' `failure`
// is set. Statistics are updated.
ncclResult_t all_gather(std::span<const AllGatherCall> calls, Status* status);

}  // namespace zipccl::collectives
