// The real NCCL as a struct of functions. interpose/ fills it from the library that the job uses; collectives call
// through it; tests hand in one that fails.
#pragma once

#include "collectives/nccl_api.hpp"

// X(function, required, return type, parameters)
// required: zipccl cannot work with a library that lacks it, and says so; the others came later than 2.18 or are
// only passed through, and a call to one that is missing returns ncclInvalidUsage with a log line.
#define ZIPCCL_NCCL_FUNCTIONS(X)                                                                                     \
  X(ncclGetVersion, true, ncclResult_t, (int* version))                                                              \
  X(ncclGetErrorString, true, const char*, (ncclResult_t result))                                                    \
  X(ncclGetUniqueId, true, ncclResult_t, (ncclUniqueId * id))                                                        \
  X(ncclCommInitRank, true, ncclResult_t, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank))                 \
  X(ncclCommInitRankConfig, false, ncclResult_t,                                                                     \
    (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config))                                 \
  X(ncclCommInitRankScalable, false, ncclResult_t,                                                                   \
    (ncclComm_t * comm, int ranks, int rank, int id_count, ncclUniqueId* ids, ncclConfig_t* config))                 \
  X(ncclCommInitAll, true, ncclResult_t, (ncclComm_t * comms, int device_count, const int* devices))                 \
  X(ncclCommSplit, false, ncclResult_t,                                                                              \
    (ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config))                                  \
  X(ncclCommShrink, false, ncclResult_t,                                                                             \
    (ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child, ncclConfig_t* config, int flags))        \
  X(ncclCommFinalize, false, ncclResult_t, (ncclComm_t comm))                                                        \
  X(ncclCommDestroy, true, ncclResult_t, (ncclComm_t comm))                                                          \
  X(ncclCommAbort, true, ncclResult_t, (ncclComm_t comm))                                                            \
  X(ncclCommRevoke, false, ncclResult_t, (ncclComm_t comm, int flags))                                               \
  X(ncclCommGetAsyncError, true, ncclResult_t, (ncclComm_t comm, ncclResult_t * error))                              \
  X(ncclCommCount, true, ncclResult_t, (const ncclComm_t comm, int* count))                                          \
  X(ncclCommCuDevice, true, ncclResult_t, (const ncclComm_t comm, int* device))                                      \
  X(ncclCommUserRank, true, ncclResult_t, (const ncclComm_t comm, int* rank))                                        \
  X(ncclCommRegister, false, ncclResult_t, (const ncclComm_t comm, void* buffer, size_t size, void** handle))        \
  X(ncclCommDeregister, false, ncclResult_t, (const ncclComm_t comm, void* handle))                                  \
  X(ncclCommWindowRegister, false, ncclResult_t,                                                                     \
    (ncclComm_t comm, void* buffer, size_t size, ncclWindow_t* window, int flags))                                   \
  X(ncclMemAlloc, false, ncclResult_t, (void** pointer, size_t size))                                                \
  X(ncclMemFree, false, ncclResult_t, (void* pointer))                                                               \
  X(ncclCommWindowDeregister, false, ncclResult_t, (ncclComm_t comm, ncclWindow_t window))                           \
  X(ncclRedOpCreatePreMulSum, false, ncclResult_t,                                                                   \
    (ncclRedOp_t * op, void* scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm))        \
  X(ncclRedOpDestroy, false, ncclResult_t, (ncclRedOp_t op, ncclComm_t comm))                                        \
  X(ncclGroupStart, true, ncclResult_t, ())                                                                          \
  X(ncclGroupEnd, true, ncclResult_t, ())                                                                            \
  X(ncclGroupSimulateEnd, false, ncclResult_t, (ncclSimInfo_t * info))                                               \
  X(ncclAllGather, true, ncclResult_t,                                                                               \
    (const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream))     \
  X(ncclAllReduce, true, ncclResult_t,                                                                               \
    (const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,           \
     cudaStream_t stream))                                                                                           \
  X(ncclReduceScatter, true, ncclResult_t,                                                                           \
    (const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,           \
     cudaStream_t stream))                                                                                           \
  X(ncclReduce, true, ncclResult_t,                                                                                  \
    (const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root, ncclComm_t comm, \
     cudaStream_t stream))                                                                                           \
  X(ncclBroadcast, true, ncclResult_t,                                                                               \
    (const void* send, void* receive, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,                 \
     cudaStream_t stream))                                                                                           \
  X(ncclBcast, true, ncclResult_t,                                                                                   \
    (void* buffer, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream))              \
  X(ncclAlltoAll, false, ncclResult_t,                                                                               \
    (const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream))     \
  X(ncclGather, false, ncclResult_t,                                                                                 \
    (const void* send, void* receive, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,                 \
     cudaStream_t stream))                                                                                           \
  X(ncclScatter, false, ncclResult_t,                                                                                \
    (const void* send, void* receive, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,                 \
     cudaStream_t stream))                                                                                           \
  X(ncclSend, true, ncclResult_t,                                                                                    \
    (const void* send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream))          \
  X(ncclRecv, true, ncclResult_t,                                                                                    \
    (void* receive, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream))

namespace zipccl::collectives {

struct NcclTable {
#define ZIPCCL_NCCL_MEMBER(function, required, result, parameters) result(*function) parameters = nullptr;
  ZIPCCL_NCCL_FUNCTIONS(ZIPCCL_NCCL_MEMBER)
#undef ZIPCCL_NCCL_MEMBER
};

}  // namespace zipccl::collectives
