// Exchange mode `static`, the default: a call enqueues encode, NCCL on static bytes, decode and patch, and returns. In
// the ordinary case patch ends at once; what a pool could not hold it gets from the overflow port. Nothing here waits,
// allocates or asks the device anything.
#pragma once

#include <span>

#include "collectives/gather_chunks.hpp"

namespace zipccl::collectives {

class StaticLane : public GatherChunks {
 public:
  using GatherChunks::GatherChunks;

  Outcome encode_next();
  Outcome decode_next();
};

// Runs a batch of compressed calls over one or several communicators. A fault that kernels of an earlier call have
// found is returned by the next.
Outcome static_all_gather(std::span<const AllGatherCall> calls);

}  // namespace zipccl::collectives
