// Groups (ncclGroupStart to ncclGroupEnd). While the process has a communicator that compresses, a group's calls are
// recorded and issued at its end: compressed collectives of all communicators first, then everything else, in program
// order, as exactly one real group. Splitting the user's group any other way deadlocks legal programs. Otherwise
// calls go straight on and only the depth is kept.
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

// A recorded all-gather whose route is `compressed`.
struct CompressedAllGather {
  collectives::AllGatherCall call;
  ncclDataType_t dtype;
  CommPointer owner;  // keeps the communicator's state until the group is done

  ncclResult_t run_natively(const NcclTable& nccl) const;  // for ncclGroupSimulateEnd
};

using RecordedCall = std::variant<NativeCall, CompressedAllGather>;

// Runs when the outermost group has ended with `result`; what it returns becomes the group's result.
using Completion = std::function<ncclResult_t(ncclResult_t result)>;

// Issues compressed all-gathers, with all that belongs to it beside collectives::all_gather.
using AllGatherFunction = ncclResult_t (*)(std::span<const CompressedAllGather> calls);

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
  static ncclResult_t end(const NcclTable& nccl, AllGatherFunction all_gather);
  // ncclGroupSimulateEnd: everything natively, and nothing runs.
  static ncclResult_t simulate_end(const NcclTable& nccl, ncclSimInfo_t* info);
};

}  // namespace zipccl::interpose
