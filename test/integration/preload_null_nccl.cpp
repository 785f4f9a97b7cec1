// A NCCL that does nothing, at once: what zipccl adds to a call is then nearly all that the call costs. With
// PRELOAD_NULL_LACKS_SEND it has no ncclSend, which zipccl cannot do without. With PRELOAD_NULL_NARRATES it has a host
// runtime whose streams do nothing, prints the calls that end communicators, groups and memory, with NULL_LONG_ID in
// the environment makes ids that use all of their bytes, and with NULL_NEVER_DONE has events that do not happen.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "codec/host_runtime.h"
#include "collectives/nccl_table.hpp"

namespace {

std::atomic<int> questions{0};

void narrate([[maybe_unused]] const char* event) {
#ifdef PRELOAD_NULL_NARRATES
  std::puts(event);
#endif
}

}  // namespace

#define PRELOAD_EXPORT extern "C" __attribute__((visibility("default")))

PRELOAD_EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = 21800;
  return ncclSuccess;
}
PRELOAD_EXPORT const char* ncclGetErrorString(ncclResult_t) { return "nothing happened"; }
PRELOAD_EXPORT ncclResult_t ncclGetUniqueId([[maybe_unused]] ncclUniqueId* id) {
#ifdef PRELOAD_NULL_NARRATES
  if (std::getenv("NULL_LONG_ID") != nullptr) {
    std::memset(id->internal, 0x11, sizeof(id->internal));
  }
#endif
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int, ncclUniqueId, int) {
  static char memory[16];
  static std::size_t used = 0;
  *comm = reinterpret_cast<ncclComm_t>(&memory[used++ % sizeof(memory)]);
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*) { return ncclSuccess; }
PRELOAD_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t) {
  narrate("finalize");
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t) {
  narrate("destroy");
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclCommAbort(ncclComm_t) {
  narrate("abort");
  return ncclSuccess;
}
PRELOAD_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  ++questions;
  *error = ncclSuccess;
  return ncclSuccess;
}
// How often NCCL was asked for errors, as zipccl does while it waits.
PRELOAD_EXPORT int null_nccl_questions() { return questions; }
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
PRELOAD_EXPORT ncclResult_t ncclGroupEnd() {
  narrate("group end");
  return ncclSuccess;
}
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
#ifdef PRELOAD_NULL_NARRATES
extern "C" __attribute__((visibility("default"))) const zipccl_host_runtime_v1 zipccl_host_runtime = {
    .version = ZIPCCL_HOST_RUNTIME_VERSION,
    .size = sizeof(zipccl_host_runtime_v1),
    .allocate =
        [](void** pointer, size_t bytes) {
          *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
          return *pointer != nullptr ? 0 : 1;
        },
    .release =
        [](void* pointer) {
          narrate("release");
          std::free(pointer);
          return 0;
        },
    .stream_create = [](CUstream_st**) { return 0; },
    .stream_destroy = [](CUstream_st*) { return 0; },
    .stream_synchronize = [](CUstream_st*) { return 0; },
    .stream_enqueue = [](CUstream_st*, void (*)(void*), void*) { return 0; },
    .event_create = [](void**) { return 0; },
    .event_destroy = [](void*) { return 0; },
    .event_record = [](void*, CUstream_st*) { return 0; },
    .event_query =
        [](void*, int* done) {
          *done = std::getenv("NULL_NEVER_DONE") == nullptr ? 1 : 0;
          return 0;
        },
    .event_synchronize = [](void*) { return 0; },
    .stream_wait_event = [](CUstream_st*, void*) { return 0; },
    .device_synchronize = [] { return 0; },
    .stream_capture_begin = [](CUstream_st*) { return 1; },
    .stream_capture_end = [](CUstream_st*, void**) { return 1; },
    .stream_capture_status =
        [](CUstream_st*, int* status) {
          *status = ZIPCCL_CAPTURE_NONE;
          return 0;
        },
    .graph_launch = [](void*, CUstream_st*) { return 1; },
    .graph_destroy = [](void*) { return 1; },
    .event_record_external = [](void*, CUstream_st*) { return 0; },
    .stream_wait_event_external = [](CUstream_st*, void*) { return 0; },
    .stream_enqueue_owned =
        [](CUstream_st*, void (*)(void*), void (*release)(void*), void* argument) {
          release(argument);
          return 0;
        },
    .stream_capture_id =
        [](CUstream_st*, unsigned long long* id) {
          *id = 0;
          return 0;
        },
};
#endif
