// ncclAllGather, from the caller's arguments to a route.
#pragma once

#include <span>

#include "interpose/group.hpp"

namespace zipccl::interpose {

ncclResult_t all_gather(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                        cudaStream_t stream);

// As EligibleCalls says.
ncclResult_t begin_all_gather(EligibleAllGather* call, bool* compressed);
ncclResult_t run_all_gathers(std::span<const EligibleAllGather> calls);

}  // namespace zipccl::interpose
