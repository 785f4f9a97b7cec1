// What ends a compressed call.
#pragma once

#include <cstdint>
#include <exception>
#include <new>

#include "codec/status.hpp"
#include "collectives/nccl_api.hpp"

namespace zipccl::collectives {

inline constexpr std::uint64_t value_bytes = 2;  // bfloat16

// What ended a call: an NCCL result and, if zipccl found the fault, what it was.
struct Outcome {
  ncclResult_t result = ncclSuccess;
  Status status = Status::ok;
  bool ok() const { return result == ncclSuccess; }
  static Outcome of(ncclResult_t result);
  static Outcome of(Status status);
};

// What a caller of NCCL is told of a fault: a device error is ncclUnhandledCudaError; an abort, or a captured call for
// which there is no memory, ncclInvalidUsage; a lost peer ncclRemoteError, a corrupt message ncclInternalError.
ncclResult_t nccl_result(Status status);

// For steps of a call that allocate: whatever is thrown, the call must be ended in order. (A thread's cancellation,
// which is no exception of the standard's, goes through.)
template <typename Step>
Outcome attempt(Step step) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return Outcome::of(Status::out_of_memory);
  } catch (const std::exception&) {
    return {ncclInternalError, Status::invalid_argument};
  }
}

}  // namespace zipccl::collectives
