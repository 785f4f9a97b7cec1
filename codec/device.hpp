// The seam between zipccl and the machine: memory, streams, events and the codec's stream operations. Two
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

// A rank number that stands for all other ranks of the communicator.
inline constexpr std::uint32_t all_receivers = ~0u;

// Opaque counters of one message while it is encoded, 256 bytes of device memory that start as zeros (Device::allocate
// does not clear; use Device::clear once) and are zero again when the encode has finished. Two encodes ordered by a
// stream may share them. A job of several messages needs as many, one behind the other, but never more than
// encode_scratch_messages: a job with more messages uses them in turn.
inline constexpr std::size_t encode_scratch_bytes = 256;
inline constexpr std::uint32_t encode_scratch_messages = 512;

struct MessageHeader;  // format.hpp
struct Outbox;         // overflow.hpp
struct ReceiveJob;

// One message of an encode's list.
struct EncodeItem {
  const void* values = nullptr;            // count values, any alignment that is a multiple of the value size
  std::uint64_t count = 0;                 // 0 gives a message without tiles
  void* message = nullptr;                 // Layout::of(count, pool_fraction).static_bytes, section_alignment
  std::uint32_t receiver = all_receivers;  // rank to which its overflow goes; not the own one
};

// Encodes messages, in one of two forms:
// - a row of message_count messages of the same count, message m from values + m * value_stride to
//   message + m * message_stride. Message `skip` (a rank's own part of an all-to-all) is left out. The overflow of
//   message m goes to rank m; that of a single message with `broadcast` to all ranks.
// - a list, if `items` is not null, of item_count messages of any count. The call copies the list. `broadcast`, `skip`
//   and the fields of a row are not used then.
// All messages of a job have the same pool fraction. A job without messages is allowed.
//
// The sequence in a message's header is (sequence_counter == nullptr ? 0 : *sequence_counter) + sequence, read when the
// encode runs, so that every replay of a captured encode has its own. With `message_counter` each message gets the next
// number of that counter instead: point_to_point_sequences + (*message_counter)++, in any order among a job's messages.
struct EncodeJob {
  const void* values = nullptr;      // any alignment that is a multiple of the value size
  std::uint64_t value_stride = 0;    // bytes, a multiple of the value size
  std::uint64_t count = 0;           // 0 gives a message without tiles
  std::uint32_t pool_fraction = 0;   // codec::Layout
  void* message = nullptr;           // Layout::of(count, pool_fraction).static_bytes, aligned to section_alignment
  std::uint64_t message_stride = 0;  // bytes, a multiple of section_alignment
  std::uint32_t message_count = 1;
  std::uint32_t skip = ~0u;
  bool broadcast = true;

  const EncodeItem* items = nullptr;
  std::uint32_t item_count = 0;

  void* scratch = nullptr;                          // encode_scratch_bytes for each message, see there; null without
  std::uint64_t sequence = 0;                       // goes into the header
  std::uint32_t chunk = 0;                          // goes into the header
  const std::uint64_t* sequence_counter = nullptr;  // device memory
  std::uint64_t* message_counter = nullptr;         // device memory
  // Device memory: gets the header of a job's single message as well, for ReceiveJob::own_header. May be null.
  MessageHeader* header_copy = nullptr;

  // Where entries beyond the pool go. Without outbox (exchange mode exact): here, the job being a single message.
  void* overflow = nullptr;          // aligned to unit_bytes
  std::uint64_t overflow_bytes = 0;  // its size; at least Layout::max_overflow_bytes()
  // With an outbox (exchange mode static) they leave through it, as the record of FORMAT.md 5: the job waits for the
  // CPU thread that empties it, never for anything else, and no longer than until *release, mapped too, is not zero. A
  // record may be incomplete then. Jobs that share an outbox may run at the same time.
  Outbox* outbox = nullptr;              // mapped, followed by outbox_capacity bytes
  std::uint64_t outbox_capacity = 0;     // a multiple of unit_bytes, at least that
  std::uint32_t* outbox_lock = nullptr;  // device memory, one for each outbox, zero at first
  const std::uint32_t* release = nullptr;
  std::uint64_t* started_ns = nullptr;  // device memory: gets the GPU's globaltimer at the start; may be null
};

// One message of a decode's list.
struct DecodeItem {
  const void* message = nullptr;  // aligned to section_alignment
  void* values = nullptr;         // room for count values, any alignment that is a multiple of the value size
  std::uint64_t count = 0;
  std::uint32_t sender = 0;  // rank whose overflow channel carries the message's overflow
};

// Decodes messages, in one of two forms:
// - a row of message_count messages of the same count, message m from messages + m * message_stride to
//   values + m * value_stride, rank m being its sender. Message `skip` (a rank's own shard) has its header checked and
//   its summary filled in the first pass, but none of its values is written; ~0u skips none.
// - a list, if `items` is not null, of item_count messages of any count; only as part of a ReceiveJob. The call copies
//   the list. `skip` and the fields of a row are not used then.
// The values of a message with a bad header are undefined: the host engine leaves them alone, the CUDA engine writes
// the tiles that are plausible.
//
// Headers must hold (sequence_counter == nullptr ? 0 : *sequence_counter) + sequence, read when the decode runs, and
// chunk; with `any_sequence` they may hold any.
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

  const DecodeItem* items = nullptr;
  std::uint32_t item_count = 0;

  std::uint64_t sequence = 0;
  std::uint32_t chunk = 0;
  const std::uint64_t* sequence_counter = nullptr;  // device memory
  bool any_sequence = false;

  const void* overflow = nullptr;
  std::uint64_t overflow_stride = 0;
  std::uint64_t overflow_begin = 0;
  std::uint64_t overflow_step = 0;
  std::uint64_t overflow_size = 0;
  // message_count summaries in memory that both host and device reach (Device::allocate_mapped); may be null. The
  // caller zeroes them before the first pass.
  MessageSummary* summaries = nullptr;
};

// What encodes would have found, in memory that both host and device reach. Observations add to it, `finished` last, in
// stream order: two that share one are ordered by a stream.
struct alignas(128) Observation {
  std::uint64_t values;
  std::uint64_t escapes;
  std::uint64_t far_escapes;
  std::uint64_t entry_units;
  std::uint64_t entry_tiles;     // tiles that need an entry
  std::uint64_t overflow_units;  // units beyond the pool: of each observation's own, as if it were one message
  std::uint64_t finished;        // observations
  std::uint64_t reserved[9];
};
static_assert(sizeof(Observation) == 128);

// Finds what an encode of the values would find, and writes no message.
struct ObserveJob {
  const void* values = nullptr;  // count values, any alignment that is a multiple of the value size
  std::uint64_t count = 0;
  std::uint32_t pool_fraction = 0;
  void* scratch = nullptr;             // encode_scratch_bytes, as an encode's
  Observation* observation = nullptr;  // mapped
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
  // The same in the order of a stream, for what grows while calls are in flight: the memory exists for what is enqueued
  // on the stream between allocate and release. Not while the stream is being captured; another one may be.
  virtual Status allocate_async(void** pointer, std::size_t bytes, Stream stream) = 0;
  virtual void release_async(void* pointer, Stream stream) = 0;
  virtual Status clear_async(void* pointer, std::size_t bytes, Stream stream) = 0;
  virtual Stream own_stream() = 0;  // of the device's own, for memory that nothing enqueued uses

  virtual Status create_event(Event* event) = 0;  // without timing
  virtual void destroy_event(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status query(Event event, bool* done) = 0;
  virtual Status wait(Event event, Stream stream) = 0;  // stream waits for the event
  // Within a capture these become part of the graph: every launch of it waits for the latest record before the launch,
  // and records anew. Outside a capture they are record and wait.
  virtual Status record_external(Event event, Stream stream) = 0;
  virtual Status wait_external(Event event, Stream stream) = 0;

  // A stream's priority, as the device counts it.
  virtual Status priority(Stream stream, int* priority) = 0;
  // A stream that is not ordered with the default stream, of such a priority. destroy returns at once; work that is
  // still enqueued is completed.
  virtual Status create_stream(Stream* stream, int priority) = 0;
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
  virtual Status receive(const ReceiveJob& job, Stream stream) = 0;  // overflow.hpp: decode and what belongs to it
  // encode(encode) and then receive(receive), which may run at the same time, as one launch wherever the encode is a
  // single message and the receive job a row with messages; other forms are one after the other. Neither may write what
  // the other one reads or writes: not the encode a message of the receive job's, but, with own_header, the skipped
  // one, nor that job's start time; and receive.advance is not the counter that the encode's sequence comes from. If
  // either is refused, nothing is enqueued.
  virtual Status encode_and_receive(const EncodeJob& encode, const ReceiveJob& receive, Stream stream) = 0;
  virtual Status observe(const ObserveJob& job, Stream stream) = 0;
  // Keeps the stream waiting for about so long (at most 1 ms), with one thread of the GPU or none, so that what other
  // streams have ready by now gets its multiprocessors first.
  virtual Status pause(std::uint32_t nanoseconds, Stream stream) = 0;
};

}  // namespace zipccl::codec
