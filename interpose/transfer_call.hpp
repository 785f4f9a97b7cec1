// ncclSend, ncclRecv and ncclAlltoAll, from the caller's arguments to a route. An all-to-all is a send and a receive
// for every peer, as in NCCL; unlike theirs, its route is the same for all ranks.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "interpose/group.hpp"

namespace zipccl::interpose {

ncclResult_t send(const void* buffer, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                  cudaStream_t stream);
ncclResult_t receive(void* buffer, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                     cudaStream_t stream);
ncclResult_t all_to_all(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                        cudaStream_t stream);
// By the real NCCL alone; where that has no ncclAlltoAll, by its sends and receives.
ncclResult_t all_to_all_natively(const NcclTable& nccl, const void* send, void* receive, std::size_t count,
                                 ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream);

// As EligibleCalls says.
ncclResult_t begin_transfer(EligibleTransfer* call, bool* compressed);
ncclResult_t begin_all_to_all(EligibleAllToAll* call, bool* compressed);
std::unique_ptr<EligibleCalls::Batch> make_transfer_batch(std::span<const EligibleTransfer> calls);
std::vector<RecordedCall> parts_of_all_to_all(const EligibleAllToAll& call);

}  // namespace zipccl::interpose
