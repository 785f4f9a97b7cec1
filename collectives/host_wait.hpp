// What the exchange modes share in which the host waits (`exact`, `sizes-first`): waiting that ends with an abort or an
// error of NCCL, and reading what decodes found.
#pragma once

#include "collectives/gather_chunks.hpp"

namespace zipccl::collectives {

class WaitingLane : public GatherChunks {
 public:
  using GatherChunks::GatherChunks;

 protected:
  // Orders the current chunk behind the communicator's previous one, copies the own shard if it is the first of an
  // out-of-place call, and clears the chunk's summaries.
  Status begin_chunk();
  Outcome nccl_state() const;  // what ncclCommGetAsyncError says
  // The host waits for the event; the time counts in the bucket.
  Outcome wait_for(codec::Event event, Bucket& bucket) const;
  Outcome check_summaries(const Chunk& chunk) const;  // once the chunk's decode is done
};

}  // namespace zipccl::collectives
