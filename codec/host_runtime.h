/* A runtime for host memory that a NCCL library without GPUs (the stand-in under test/) offers zipccl. A library that
 * exports the data symbol `zipccl_host_runtime` of this type says: my buffers are host memory, my cudaStream_t is one
 * of these streams. Plain C, so that the stand-in shares nothing else with zipccl.
 *
 * Streams run their work in order on threads of their own; calls return before the work is done. A null stream is the
 * process's default stream. All functions return 0 on success and are callable from any thread.
 *
 * Functions are only ever appended, which `size` tells; `version` changes when one that exists does.
 *
 * Capture is CUDA's. Between stream_capture_begin and stream_capture_end, what is enqueued on a stream goes into a
 * graph instead of running. Another stream joins by waiting for an event that was recorded within the capture, and must
 * be joined again by the first one before the end. Waiting within a capture for an event recorded outside, waiting
 * outside for one recorded within, or for a stream that captures, is an error; it spoils the capture, whose end then
 * fails. The *external* record and wait become part of the graph: a launch waits for the latest record before it and
 * is, from the launch call on, the latest record itself. Launches of one graph run one after the other. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZIPCCL_HOST_RUNTIME_VERSION 1

/* States of a stream, as in CUDA. */
#define ZIPCCL_CAPTURE_NONE 0
#define ZIPCCL_CAPTURE_ACTIVE 1
#define ZIPCCL_CAPTURE_INVALIDATED 2

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

  int (*stream_capture_begin)(struct CUstream_st* stream); /* not the default stream */
  int (*stream_capture_end)(struct CUstream_st* stream, void** graph);
  int (*stream_capture_status)(struct CUstream_st* stream, int* status); /* ZIPCCL_CAPTURE_* */
  int (*graph_launch)(void* graph, struct CUstream_st* stream);
  int (*graph_destroy)(void* graph);                                          /* waits for its launches */
  int (*event_record_external)(void* event, struct CUstream_st* stream);      /* as event_record outside a capture */
  int (*stream_wait_event_external)(struct CUstream_st* stream, void* event); /* as stream_wait_event outside */
  /* As stream_enqueue; and when the function will not run again, which within a capture is when the graph has been
   * destroyed, release(argument) is called once. Not if this function fails. */
  int (*stream_enqueue_owned)(struct CUstream_st* stream, void (*function)(void*), void (*release)(void*),
                              void* argument);
  /* Number of the capture, the same for all its streams and for no later one; 0 while the stream does not capture. An
   * error if the capture is spoilt. */
  int (*stream_capture_id)(struct CUstream_st* stream, unsigned long long* id);
};

#define ZIPCCL_HOST_RUNTIME_SYMBOL "zipccl_host_runtime"

#ifdef __cplusplus
}
#endif
