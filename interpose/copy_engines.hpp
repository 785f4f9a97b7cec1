// All-gathers over NVLink through the GPUs' copy engines (ZIPCCL_COPY_ENGINES=1): NCCL moves between buffers that are
// registered as symmetric windows without kernels, if the communicator's policy asks for that. Kernels would compete
// with encode and decode for multiprocessors and be slower besides, so that over NVLink compression hardly pays with
// them. Here the staging is such a window. The ranks' agreement says whether all of them can do it.
#pragma once

#include <string>

#include "interpose/comm_table.hpp"

namespace zipccl::interpose {

// Once, before the process makes its first communicator, of whatever kind: sets NCCL_CTA_POLICY unless the user has.
// NCCL reads it then, and never again; ranks of which only some have it would wait for each other in different ways.
void choose_copy_policy();

// Before a communicator's real init, on one rank: what keeps its staging from becoming a window; empty if nothing does.
std::string why_no_copy_engines();

// After the real init, on all ranks of the communicator together: blocks until they have come. The staging must be from
// ncclMemAlloc, and limited to what is agreed. On an error the communicator cannot go on, as others may count on it.
ncclResult_t register_staging(CommState& state);

// Before the real Finalize or Destroy, on one rank, when nothing that is enqueued uses the window any more: NCCL 2.28
// keeps the memory of windows that are still there when a communicator ends. After an abort it keeps it for good.
void unregister_staging(CommState& state);

}  // namespace zipccl::interpose
