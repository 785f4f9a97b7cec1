// Faults injected by the environment variable STANDIN_FAULT; standin_nccl.h describes it.
#pragma once

#include "test/standin/standin_nccl.h"

namespace standin {

// Throws Error(ncclSystemError), and says so on standard error, if the variable cannot be understood. Called when a
// communicator or a unique id is made.
void require_valid_faults();

struct Injection {
  ncclResult_t result = ncclSuccess;        // otherwise the call returns it and does nothing
  ncclResult_t asynchronous = ncclSuccess;  // otherwise the communicator's asynchronous error once the call is made
};

// Carries out exits and delays, and says what else is to happen at this call. `rank` is negative for calls without a
// communicator.
Injection inject_fault(const char* call, int rank);

}  // namespace standin
