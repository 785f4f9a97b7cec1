// The seam between zipccl and the machine: memory, streams, events and the codec's three stream operations. Two
// implementations: CudaDevice (cudart, CUDA engine) and HostDevice (the stand-in NCCL's host runtime, host engine).
//
// Rules for all implementations: no exception leaves a method; nothing but the create and allocate functions may
// allocate or synchronise; the stream is the last argument; a method works whatever device is current in the
// calling thread and restores it. Methods may be called from several threads. What is enqueued on a stream that is
// being captured becomes part of the graph; no method disturbs a capture, whosever it is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/status.hpp"

struct CUstream_st;  // cudaStream_t without CUDA's headers; the host runtime uses the same opaque pointer

namespace zipccl::codec {

using Stream = CUstream_st*;
using Event = void*;

// What a receiver learns about one received message; written by decode to memory that the host can read.
// `status` is a zipccl::Status; a decode that finds nothing wrong leaves what the caller put there (ok), so tiles
// may report without ordering among each other. The other fields are copied from the header.
struct MessageSummary {
  std::int32_t status;
  std::uint32_t reserved;
  std::uint64_t entry_units;
  std::uint64_t escapes;
  std::uint64_t far_escapes;
  std::uint64_t overflow_tiles;
};

// Opaque counters of one encode in flight, 256 bytes of device memory that start as zeros (Device::allocate does
// not clear; use Device::clear once) and are zero again when the encode has finished. One per concurrently running
// encode: two encodes ordered by a stream may share it.
inline constexpr std::size_t encode_scratch_bytes = 256;

struct OverflowNotice;  // overflow.hpp
struct PatchJob;

// Encodes `count` values at `values` into one message.
struct EncodeJob {
  const void* values = nullptr;      // count values, any alignment that is a multiple of the value size
  std::uint64_t count = 0;           // 0 gives a message without tiles
  std::uint32_t pool_fraction = 0;   // codec::Layout
  void* message = nullptr;           // Layout::of(count, pool_fraction).static_bytes, aligned to section_alignment
  void* overflow = nullptr;          // room for entries beyond the pool, aligned to unit_bytes
  std::uint64_t overflow_bytes = 0;  // its size; at least Layout::max_overflow_bytes()
  void* scratch = nullptr;           // encode_scratch_bytes
  std::uint64_t sequence = 0;        // goes into the header
  std::uint32_t chunk = 0;           // goes into the header
  // If `overflow` is mapped host memory that a CPU thread ships (exchange mode static): where encode posts what it
  // wrote there, waiting first until the previous record has been shipped; on a GPU a waiting encode may hold all of
  // it. The wait ends when *release, mapped too, is not zero; encode then writes no overflow and posts nothing. At most
  // one encode of a notice at a time. A job without notice needs neither.
  OverflowNotice* notice = nullptr;
  const std::uint32_t* release = nullptr;
  std::uint64_t* started_ns = nullptr;  // device memory: gets the GPU's globaltimer at the start; may be null
};

// Decodes a row of messages of the same count, message m from messages + m * message_stride to
// values + m * value_stride. Message `skip` (a rank's own shard) has its header checked and its summary filled in the
// first pass, but none of its values is written; ~0u skips none. The values of a message with a bad header are
// undefined: the host engine leaves them alone, the CUDA engine writes the tiles that are plausible.
//
// Entries beyond the pool are read from overflow + m * overflow_stride, which holds the bytes
// [overflow_begin, overflow_begin + overflow_size) of message m's overflow. A decode with overflow_size == 0 is the
// first pass: it writes all tiles but those whose entry lies beyond the pool, checks headers and fills summaries.
// A decode with overflow_size > 0 is a patch pass: it writes exactly those tiles whose entry starts in
// [overflow_begin, overflow_begin + overflow_step) and lies inside the bytes present, reads no header totals and
// leaves summaries alone except for a tile's error. Pieces therefore overlap by the largest entry.
struct DecodeJob {
  const void* messages = nullptr;
  std::uint64_t message_stride = 0;  // bytes, a multiple of section_alignment
  std::uint32_t message_count = 0;
  std::uint32_t skip = ~0u;
  void* values = nullptr;
  std::uint64_t value_stride = 0;  // bytes, a multiple of the value size
  std::uint64_t count = 0;         // values in every message
  std::uint32_t pool_fraction = 0;
  std::uint64_t sequence = 0;  // expected in every header
  std::uint32_t chunk = 0;
  const void* overflow = nullptr;
  std::uint64_t overflow_stride = 0;
  std::uint64_t overflow_begin = 0;
  std::uint64_t overflow_step = 0;
  std::uint64_t overflow_size = 0;
  // message_count summaries in memory that both host and device reach (Device::allocate_mapped); may be null.
  // The caller zeroes them before the first pass.
  MessageSummary* summaries = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual int ordinal() const = 0;                 // CUDA device number; 0 on the host runtime
  virtual const char* name() const = 0;            // "NVIDIA H200" or "host"
  virtual const char* last_error() const = 0;      // text of this thread's last device_error, never null
  virtual std::uint64_t total_memory() const = 0;  // bytes of device memory

  // Device memory, aligned to 256 bytes at least. Never called between a collective's first and last enqueue.
  virtual Status allocate(void** pointer, std::size_t bytes) = 0;
  virtual void release(void* pointer) = 0;
  // Host memory that kernels reach under the same address, zeroed.
  virtual Status allocate_mapped(void** pointer, std::size_t bytes) = 0;
  virtual void release_mapped(void* pointer) = 0;
  // Synchronous, for creation only: sets device memory to zero before anything is enqueued.
  virtual Status clear(void* pointer, std::size_t bytes) = 0;

  virtual Status create_event(Event* event) = 0;  // without timing
  virtual void destroy_event(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status query(Event event, bool* done) = 0;
  virtual Status wait(Event event, Stream stream) = 0;  // stream waits for the event
  // Within a capture these become part of the graph: every launch of it waits for the latest record before the launch,
  // and records anew. Outside a capture they are record and wait.
  virtual Status record_external(Event event, Stream stream) = 0;
  virtual Status wait_external(Event event, Stream stream) = 0;

  // A stream that is not ordered with the default stream, of the highest priority. destroy returns at once; work that
  // is still enqueued is completed.
  virtual Status create_stream(Stream* stream) = 0;
  virtual void destroy_stream(Stream stream) = 0;

  // Between device and mapped memory, whichever either is.
  virtual Status copy(void* destination, const void* source, std::size_t bytes, Stream stream) = 0;
  // Number of the capture into a graph that the stream takes part in, the same for all its streams and for no later
  // one; 0 if it takes part in none. An error if the capture has been spoilt, or CUDA would spoil it by a call like the
  // caller's.
  virtual Status capture(Stream stream, std::uint64_t* id) = 0;
  virtual Status synchronize() = 0;  // the whole device; only when a communicator ends

  virtual Status encode(const EncodeJob& job, Stream stream) = 0;
  virtual Status decode(const DecodeJob& job, Stream stream) = 0;
  virtual Status patch(const PatchJob& job, Stream stream) = 0;  // overflow.hpp
};

}  // namespace zipccl::codec
