// Communicators' life cycle as zipccl follows it. Each function does what the NCCL function of its name does, and
// keeps the table up to date; inside a recording group the real call is recorded with the others.
#pragma once

#include "collectives/nccl_api.hpp"

namespace zipccl::interpose::lifecycle {

ncclResult_t get_unique_id(ncclUniqueId* id);
ncclResult_t init_rank(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank);
ncclResult_t init_rank_config(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank, ncclConfig_t* config);
ncclResult_t init_rank_scalable(ncclComm_t* comm, int ranks, int rank, int id_count, ncclUniqueId* ids,
                                ncclConfig_t* config);
ncclResult_t init_all(ncclComm_t* comms, int device_count, const int* devices);
ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config);
ncclResult_t shrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child, ncclConfig_t* config,
                    int flags);
ncclResult_t finalize(ncclComm_t comm);
ncclResult_t destroy(ncclComm_t comm);
ncclResult_t abort(ncclComm_t comm);
ncclResult_t revoke(ncclComm_t comm, int flags);
ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t* error);
ncclResult_t register_buffer(ncclComm_t comm, void* buffer, std::size_t size, void** handle);
ncclResult_t deregister_buffer(ncclComm_t comm, void* handle);
ncclResult_t register_window(ncclComm_t comm, void* buffer, std::size_t size, ncclWindow_t* window, int flags);
ncclResult_t deregister_window(ncclComm_t comm, ncclWindow_t window);

}  // namespace zipccl::interpose::lifecycle
