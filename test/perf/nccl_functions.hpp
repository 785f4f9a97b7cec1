// The NCCL calls of a benchmark, in two sets. A call as the linker binds it is what a preloaded zipccl intercepts;
// asked of the loaded library itself it always reaches NCCL. Both sets may be used on one communicator, call by call,
// so that clocks, links and neighbours treat them alike. A group must be of one set.
#pragma once

#include "test/support/nccl.hpp"

namespace zipccl::test {

struct NcclFunctions {
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclAllGather) all_to_all;  // same signature; null where NCCL is older than 2.28
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
};

const NcclFunctions& intercepted_nccl();
const NcclFunctions& native_nccl();  // ends the process if a function is missing

// Ends the process with a message and exit status 1 unless `result` is ncclSuccess.
void check(ncclResult_t result, const char* what);

}  // namespace zipccl::test
