// Exchange mode `static`, the default: a call enqueues encode, NCCL on static bytes and decode, and returns. The decode
// (codec::ReceiveJob) gets what a pool could not hold from the overflow port. Nothing here waits, allocates or asks the
// device anything.
//
// Several chunks overlap if the agreement allows it, with the caller's stream (S) and one beside it (B):
//
//   S  encode 0 | nccl 0   | nccl 1              | nccl 2              | nccl 3   | decode 3
//   B           | encode 1 | encode 2 + decode 0 | encode 3 + decode 1 | decode 2
//
// The first encode and the last decode, which nothing can hide, stay on S, without a hop between streams. Encode i+2
// and decode i are one launch, though both use the same half of the staging: the one writes inside this rank's slot,
// the other reads the others' (and this rank's header where its encode has left a copy). S waits for each encode before
// its exchange and for all of B before the last decode: whatever happens, B is rejoined when the call returns (rule
// R4). A call that is captured into a graph stays on its stream.
//
// An exchange and the codec's work beside it become ready at the same moment, and NCCL's blocks, of which each needs
// nearly all registers of a multiprocessor, would then find none until a whole encode or decode had drained: nothing
// would overlap. So B stands back first, for long enough that NCCL's kernel has started. (Measured, all-gathers of
// 1 GiB at 25 GB/s: 1.335 without overlap, 1.369 with, 1.380 with 3 us of a head start, 1.388 with 8 to 30. Streams of
// a higher priority for NCCL gain little: 1.366.) Copy engines need no multiprocessor, so B does not stand back for
// them.
//
// Sequences are counted on the device, so that every replay has its own. The calls of a group on one communicator count
// as one, whose chunks are numbered through: encodes of a later call may run before decodes of an earlier one.
#pragma once

#include <optional>
#include <span>

#include "collectives/gather_chunks.hpp"

namespace zipccl::collectives {

class StaticLane : public GatherChunks {
 public:
  using GatherChunks::GatherChunks;

  Outcome encode_next();
  Outcome decode_next();
  void abandon();

 private:
  // From this size on an own shard's copy is worth four event calls: it then takes longer than those.
  static constexpr std::uint64_t side_copy_bytes = 8 << 20;

  static constexpr std::uint32_t head_start_ns = 10'000;

  template <typename Job>
  Job numbered(Job job) const {
    job.sequence = 0;
    job.sequence_counter = communicator().port->sequence_counter();
    job.chunk = static_cast<std::uint32_t>(chunks_ - 1);
    return job;
  }

  bool overlaps() const;  // all of the lane's chunks, on one stream, each of which needs but half of the staging
  codec::EncodeJob encode_job() const;    // of the current chunk, once
  codec::ReceiveJob receive_job() const;  // the same
  Status encode_on_caller();
  Status encode_beside();
  bool takes_place_of(const codec::ReceiveJob& due);
  Status enqueue_copy();
  Status decode_on_caller();
  Status give_head_start();  // to the next exchange, by the side stream
  Status rejoin();           // the caller's stream waits for the side stream

  std::uint64_t chunks_ = 0;  // begun so far
  bool overlapping_ = false;
  codec::Stream side_ = nullptr;
  bool side_used_ = false;  // since the last rejoin
  // Decodes beside later exchanges: of the last chunk, and of the one before it, which the next encode takes along.
  std::optional<codec::ReceiveJob> waiting_;
  std::optional<codec::ReceiveJob> due_;
  codec::Stream stream_ = nullptr;  // of the current chunk's caller
  bool starts_run_ = false;         // the chunk before was on another stream, or there was none
};

// Runs a batch of compressed calls over one or several communicators. A fault that kernels of an earlier call have
// found is returned by the next.
Outcome static_all_gather(std::span<const AllGatherCall> calls);

}  // namespace zipccl::collectives
