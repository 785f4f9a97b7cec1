// Groups (ncclGroupStart to ncclGroupEnd). While the process has a communicator that compresses, a group's calls are
// recorded and issued at its end, when it is decided which are compressed: compressed collectives of all communicators
// first, then everything else, in program order, as exactly one real group. Splitting the user's group any other way
// deadlocks legal programs. Otherwise calls go straight on and only the depth is kept.
#pragma once

#include <functional>
#include <span>
#include <variant>
#include <vector>

#include "collectives/all_gather.hpp"
#include "interpose/comm_table.hpp"

namespace zipccl::interpose {

using collectives::NcclTable;

// Issues a recorded call to the real NCCL, which `nccl` is.
using NativeCall = std::function<ncclResult_t(const NcclTable& nccl)>;

// An all-gather that may go compressed, which is decided when it is issued.
struct EligibleAllGather {
  collectives::AllGatherCall call;
  ncclDataType_t dtype;
  CommPointer owner;  // keeps the communicator's state until the group is done

  ncclResult_t run_natively(const NcclTable& nccl) const;
};

using RecordedCall = std::variant<NativeCall, EligibleAllGather>;

// Runs when the outermost group has ended with `result`; what it returns becomes the group's result.
using Completion = std::function<ncclResult_t(ncclResult_t result)>;

// What becomes of eligible all-gathers; see all_gather_call.hpp.
struct AllGatherFunctions {
  // Decides for one, in program order, when all that comes before it in the group is decided and nothing is issued yet.
  // An error fails the group.
  ncclResult_t (*begin)(EligibleAllGather* call, bool* compressed);
  ncclResult_t (*run_compressed)(std::span<const EligibleAllGather> calls);
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
  static ncclResult_t end(const NcclTable& nccl, const AllGatherFunctions& all_gathers);
  // ncclGroupSimulateEnd: everything natively, and nothing runs.
  static ncclResult_t simulate_end(const NcclTable& nccl, ncclSimInfo_t* info);
};

}  // namespace zipccl::interpose
