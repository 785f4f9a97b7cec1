// A NCCL that does nothing, at once: what zipccl adds to a call is then nearly all that the call costs. With
// PRELOAD_NULL_LACKS_SEND it has no ncclSend, which zipccl cannot do without.
#include "collectives/nccl_table.hpp"

#define PRELOAD_EXPORT extern "C" __attribute__((visibility("default")))

PRELOAD_EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = 21800;
  return ncclSuccess;
}
PRELOAD_EXPORT const char* ncclGetErrorString(ncclResult_t) { return "nothing happened"; }
PRELOAD_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId*) { return ncclSuccess; }
PRELOAD_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int, ncclUniqueId, int) {
  static char memory = 0;
  *comm = reinterpret_cast<ncclComm_t>(&memory);
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*) { return ncclSuccess; }
PRELOAD_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
PRELOAD_EXPORT ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
PRELOAD_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclCommCount(const ncclComm_t, int* count) {
  *count = 1;
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t, int* device) {
  *device = 0;
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t, int* rank) {
  *rank = 0;
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclGroupStart() { return ncclSuccess; }
PRELOAD_EXPORT ncclResult_t ncclGroupEnd() { return ncclSuccess; }
PRELOAD_EXPORT ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                          cudaStream_t) {
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                              cudaStream_t) {
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                                       cudaStream_t) {
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclBcast(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
#ifndef PRELOAD_NULL_LACKS_SEND
PRELOAD_EXPORT ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
#endif
