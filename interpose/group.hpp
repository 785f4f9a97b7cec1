// Groups (ncclGroupStart to ncclGroupEnd). While the process has a communicator that compresses, a group's calls are
// recorded and issued at its end, when it is decided which are compressed: compressed all-gathers of all communicators
// first, then everything else, in program order, as exactly one real group, compressed sends and receives among the
// native calls. Splitting the user's group any other way deadlocks legal programs. So do communicators that wait for
// each other more than NCCL's do: if a group has calls of several, each one's compressed calls run apart, beside the
// callers' streams (apart.hpp). So they do if the group has several streams, which NCCL joins for each communicator:
// its calls wait for all that they name, and those for all its calls. Otherwise calls go straight on and only the depth
// is kept.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "collectives/all_gather.hpp"
#include "collectives/transfers.hpp"
#include "interpose/comm_table.hpp"

namespace zipccl::interpose {

using collectives::NcclTable;

struct NativeCall {
  // To the real NCCL, which `nccl` is, on the call's stream.
  std::function<ncclResult_t(const NcclTable& nccl, cudaStream_t stream)> issue;
  // Whose call it is, if it has work for a stream: NCCL leaves collectives of nothing out, and their streams alone.
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;  // that stream, which may become another before the call is issued
};

// The stream of a call that goes natively, to be changed.
struct NativeStream {
  ncclComm_t comm;
  cudaStream_t* stream;
};

// An all-gather that may go compressed, which is decided when it is issued.
struct EligibleAllGather {
  collectives::AllGatherCall call;
  ncclDataType_t dtype;
  CommPointer owner;  // keeps the communicator's state until the group is done

  ncclResult_t run_natively(const NcclTable& nccl) const;
};

// A send or receive, likewise.
struct EligibleTransfer {
  collectives::Transfer transfer;
  ncclDataType_t dtype;
  CommPointer owner;

  ncclResult_t run_natively(const NcclTable& nccl) const;
};

// An all-to-all, likewise: if compressed, a send and a receive for every peer.
struct EligibleAllToAll {
  const void* send;
  void* receive;
  std::size_t count;  // values for each peer
  ncclDataType_t dtype;
  cudaStream_t stream;
  CommPointer owner;

  ncclResult_t run_natively(const NcclTable& nccl) const;
};

using RecordedCall = std::variant<NativeCall, EligibleAllGather, EligibleTransfer, EligibleAllToAll>;

// Runs when the outermost group has ended with `result`; what it returns becomes the group's result.
using Completion = std::function<ncclResult_t(ncclResult_t result)>;

// What becomes of eligible calls (compressed_calls.hpp). Has no state.
class EligibleCalls {
 public:
  // A group's compressed sends and receives: before its real group, each in its place inside, and after it. The first
  // two may throw.
  class Batch {
   public:
    virtual ~Batch() = default;
    virtual ncclResult_t before() = 0;
    virtual ncclResult_t issue(std::size_t index) = 0;
    // In any case; returns the final result. `dropped`: a step or a call before the real group's end has failed, so
    // that NCCL has done nothing of it.
    virtual ncclResult_t after(ncclResult_t group_result, bool dropped) = 0;
  };

  // A group's compressed calls, off the callers' streams, and with them their communicators' native ones.
  class Apart {
   public:
    virtual ~Apart() = default;
    // The calls' streams are others from here on, behind what the callers' streams have now.
    virtual ncclResult_t begin() = 0;
    // In any case, after all of the group is enqueued: the callers' streams go on behind the calls. Returns the final
    // result.
    virtual ncclResult_t end(ncclResult_t group_result) = 0;
  };

  // Decide for one call, in program order, when all that comes before it in the group is decided and nothing is issued
  // yet. An error fails the group.
  virtual ncclResult_t begin(EligibleAllGather* call, bool* compressed) const = 0;
  virtual ncclResult_t begin(EligibleTransfer* call, bool* compressed) const = 0;
  virtual ncclResult_t begin(EligibleAllToAll* call, bool* compressed) const = 0;

  // Calls of these communicators have begun, compressed or not, and NCCL has dropped them. Other ranks may not have
  // begun them, or begin them once more.
  virtual void dropped(std::span<const CommPointer* const> owners) const = 0;
  // These have run, and NCCL has dropped the rest of their group: it would have dropped them, too, so that other ranks
  // may not make them, or make them once more.
  virtual void ran_ahead(std::span<const EligibleAllGather> calls) const = 0;

  // Of calls that go compressed; outside any real group.
  virtual ncclResult_t run(std::span<const EligibleAllGather> calls) const = 0;
  virtual std::unique_ptr<Batch> batch(std::span<const EligibleTransfer> calls) const = 0;
  // For a group that has calls of several communicators or on several streams.
  virtual std::unique_ptr<Apart> apart(std::span<EligibleAllGather> all_gathers, std::span<EligibleTransfer> transfers,
                                       std::span<const NativeStream> native) const = 0;
  // A compressed all-to-all's operations: transfers that are compressed, and native calls for the rest.
  virtual std::vector<RecordedCall> parts(const EligibleAllToAll& call) const = 0;

 protected:
  ~EligibleCalls() = default;
};

// The calling thread's group. No function takes a lock.
class Group {
 public:
  static bool open();
  static bool recording();  // implies open()

  // ncclGroupStart. `record` counts for an outermost group.
  static ncclResult_t start(const NcclTable& nccl, bool record);
  // While recording. Returns the group's error so far: an error anywhere poisons the group, which then does nothing.
  static ncclResult_t add(RecordedCall call);
  static void poison(ncclResult_t error);
  // While open.
  static void at_end(Completion completion);
  // ncclGroupEnd; outside any group NCCL itself complains.
  static ncclResult_t end(const NcclTable& nccl, const EligibleCalls& eligible);
  // A group of one call, outside any group.
  static ncclResult_t alone(const NcclTable& nccl, const EligibleCalls& eligible, RecordedCall call);
  // ncclGroupSimulateEnd: everything natively, and nothing runs.
  static ncclResult_t simulate_end(const NcclTable& nccl, const EligibleCalls& eligible, ncclSimInfo_t* info);
};

}  // namespace zipccl::interpose
