// What collectives know of one communicator: a finished decision, made by interpose and switcher. One object per
// communicator and rank; used by one thread at a time, as NCCL demands of communicators, except for `aborted`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "codec/device.hpp"
#include "collectives/call_chain.hpp"
#include "collectives/chunk_plan.hpp"
#include "collectives/nccl_table.hpp"
#include "collectives/outcome.hpp"
#include "collectives/overflow_port.hpp"
#include "collectives/own_streams.hpp"
#include "collectives/staging.hpp"
#include "collectives/statistics.hpp"
#include "collectives/transfer_staging.hpp"

namespace zipccl::collectives {

enum class Exchange : std::uint8_t {
  fixed,        // "static": encode, NCCL on static bytes, decode; overflow apart from NCCL; the host never waits
  sizes_first,  // sizes, for which the host waits, then everything in one exchange
  exact         // static part, then what exceeded it, when the host has seen whether anything did
};

inline constexpr std::uint64_t never = ~std::uint64_t{0};  // in Communicator::link_min_bytes

// Agreed settings (equal on all ranks: rule R2).
struct Agreement {
  Exchange exchange = Exchange::exact;
  std::uint32_t pool_fraction = 0;  // codec::Layout
  std::uint64_t min_bytes = 0;      // smallest output (all ranks' bytes) that is compressed
  std::uint64_t staging_bytes = 0;  // fixed room of this communicator
  bool all_gather = false;          // compress ncclAllGather
  // Mode static: a call's chunks overlap on streams beside the caller's. Not if a rank is under rule R5's condition.
  bool overlap = false;
  bool all_to_all = false;                           // compress ncclAlltoAll
  bool point_to_point = false;                       // compress ncclSend and ncclRecv
  std::uint64_t call_ns = ChunkPlan::usual_call_ns;  // what one more NCCL call costs
  bool copy_engines = false;  // all-gathers' staging is a window, so that NCCL moves it without kernels

  bool any() const { return all_gather || all_to_all || point_to_point; }
};

struct Communicator {
  const NcclTable* nccl = nullptr;
  ncclComm_t handle = nullptr;
  codec::Device* device = nullptr;
  int rank = 0;
  int rank_count = 1;
  Agreement agreement;
  // All of these from the first class of calls that is compressed on; staging for all-gathers, transfers for
  // all-to-alls and point to point, the port for mode static and for transfers.
  std::unique_ptr<CallChain> chain;
  std::unique_ptr<OverflowPort> port;
  std::unique_ptr<Staging> staging;
  std::unique_ptr<TransferStaging> transfers;
  std::unique_ptr<OwnStreams> own_streams;  // from the first call that cannot be on its caller's on
  // By rank: the smallest message to and from it that is compressed, in bytes of values; the same at both ends.
  std::vector<std::uint64_t> link_min_bytes;
  Statistics* statistics = nullptr;
  // Calls compressed so far, the same on all ranks; replays of graphs are not counted. Reports read it.
  std::atomic<std::uint64_t> sequence = 0;
  std::uint64_t next_half = 0;         // chunks so far: they use the staging's halves in turn
  ncclResult_t failure = ncclSuccess;  // first error of a compressed call; sticky, every later one returns it
  std::atomic<std::uint64_t> transfer_staging_bytes = 0;  // of `transfers`, for reports
  std::atomic<bool> aborted = false;                      // set by ncclCommAbort and ncclCommRevoke from any thread
};

// NCCL's own word on the communicator: not ok if it has lost a peer or the device. What is enqueued behind that finds
// stale memory.
inline Outcome nccl_state(const Communicator& communicator) {
  ncclResult_t error = ncclSuccess;
  const ncclResult_t asked = communicator.nccl->ncclCommGetAsyncError(communicator.handle, &error);
  return Outcome::of(asked != ncclSuccess ? asked : error == ncclInProgress ? ncclSuccess : error);
}

// Of what was found in a message: nothing, or whose fault it is. NCCL's word comes first.
inline Outcome blame(const Communicator& communicator, Status found) {
  if (found == Status::ok) {
    return {};
  }
  const Outcome nccl = nccl_state(communicator);
  return nccl.ok() ? Outcome::of(found) : nccl;
}

// A stream of the communicator's own for calls on the caller's. Throws where there is no memory.
inline Status find_own_stream(Communicator& communicator, codec::Stream caller, codec::Stream* own) {
  if (communicator.own_streams == nullptr) {
    communicator.own_streams = std::make_unique<OwnStreams>(*communicator.device);
  }
  return communicator.own_streams->find(caller, own);
}

// What every collective asks of a call before its size; `compressed` if nothing speaks against it. `enabled` is the
// agreement's word on the collective.
inline Route route_collective(const Communicator& communicator, bool enabled, ncclDataType_t dtype) {
  if (!enabled) {
    return Route::disabled;
  }
  if (dtype != ncclBfloat16) {
    return Route::dtype;
  }
  return communicator.rank_count < 2 ? Route::single_rank : Route::compressed;
}

}  // namespace zipccl::collectives
