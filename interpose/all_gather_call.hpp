// ncclAllGather, from the caller's arguments to a route.
#pragma once

#include <span>

#include "interpose/group.hpp"

namespace zipccl::interpose {

ncclResult_t all_gather(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                        cudaStream_t stream);

// For groups, which record eligible calls. begin() decides about one and may wait at a fence; run_compressed() issues
// those that go compressed, outside any real group. Both log what went wrong.
extern const AllGatherFunctions all_gather_functions;

}  // namespace zipccl::interpose
