#include "collectives/outcome.hpp"

namespace zipccl::collectives {

ncclResult_t nccl_result(Status status) {
  switch (status) {
    case Status::ok:
      return ncclSuccess;
    case Status::device_error:
    case Status::out_of_memory:
      return ncclUnhandledCudaError;
    case Status::aborted:
    case Status::unsupported:
      return ncclInvalidUsage;
    case Status::connection_lost:
      return ncclRemoteError;
    default:
      return ncclInternalError;
  }
}

Outcome Outcome::of(ncclResult_t result) { return {result, result == ncclSuccess ? Status::ok : Status::nccl_error}; }

Outcome Outcome::of(Status status) { return {nccl_result(status), status}; }

}  // namespace zipccl::collectives
