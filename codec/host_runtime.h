/* A runtime for host memory that a NCCL library without GPUs (the stand-in under test/) offers zipccl. A library that
 * exports the data symbol `zipccl_host_runtime` of this type says: my buffers are host memory, my cudaStream_t is one
 * of these streams. Plain C, so that the stand-in shares nothing else with zipccl.
 *
 * Streams run their work in order on threads of their own; calls return before the work is done. A null stream is the
 * process's default stream. All functions return 0 on success and are callable from any thread. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZIPCCL_HOST_RUNTIME_VERSION 1

struct CUstream_st;

struct zipccl_host_runtime_v1 {
  unsigned version; /* ZIPCCL_HOST_RUNTIME_VERSION */
  unsigned size;    /* sizeof(struct zipccl_host_runtime_v1) */

  int (*allocate)(void** pointer, size_t bytes); /* aligned to 256 bytes */
  int (*release)(void* pointer);

  int (*stream_create)(struct CUstream_st** stream);
  int (*stream_destroy)(struct CUstream_st* stream);     /* after its work is done */
  int (*stream_synchronize)(struct CUstream_st* stream); /* the caller waits for all work enqueued so far */
  /* Runs function(argument) when everything enqueued before on the stream is done. */
  int (*stream_enqueue)(struct CUstream_st* stream, void (*function)(void*), void* argument);

  int (*event_create)(void** event);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, struct CUstream_st* stream);
  int (*event_query)(void* event, int* done); /* an event never recorded is done */
  int (*event_synchronize)(void* event);
  int (*stream_wait_event)(struct CUstream_st* stream, void* event);
  int (*device_synchronize)(void); /* waits for all streams of the process */
};

#define ZIPCCL_HOST_RUNTIME_SYMBOL "zipccl_host_runtime"

#ifdef __cplusplus
}
#endif
