// ncclAllGather, from the caller's arguments to a route.
#pragma once

#include <span>

#include "interpose/group.hpp"

namespace zipccl::interpose {

ncclResult_t all_gather(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                        cudaStream_t stream);

// Issues calls whose route is `compressed` and logs what went wrong; outside any real group.
ncclResult_t run_compressed(std::span<const CompressedAllGather> calls);

}  // namespace zipccl::interpose
