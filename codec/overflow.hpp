// How kernels and a CPU thread hand over entries that a message's pool cannot hold (exchange mode static), through host
// memory that both map. The CPU thread makes no CUDA call, so a kernel may wait for it (rule R3). Every structure has
// one writer a field; a writer stores its counter last, with system scope, and the other side loads it first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/device.hpp"

namespace zipccl::codec {

// Sequences that a message counter gives (EncodeJob::message_counter) begin here, where no call number ever comes.
inline constexpr std::uint64_t point_to_point_sequences = std::uint64_t{1} << 62;

// Sender's side: one for each communicator. An encode whose message overflows posts the record piece by piece: it fills
// the outbox's data, posts, and before the next piece waits until this one has been taken. The pieces of a record
// follow each other in order, without gap, and no other record's come between; the last one ends at record_bytes. Once
// a wait has been released nothing more is posted, so that a record may stay incomplete.
struct alignas(128) Outbox {
  // Written by encode; posted last.
  std::uint64_t sequence;      // of the message: its record is known by these and the own rank
  std::uint64_t offset;        // of the piece in the record
  std::uint64_t piece_bytes;   // at data()
  std::uint64_t record_bytes;  // bytes of the whole record
  std::uint32_t chunk;         // of the message
  std::uint32_t receiver;      // rank, or all_receivers
  std::uint64_t posted;        // pieces so far
  std::uint64_t reserved0[10];
  // Written by the CPU thread when it has copied the piece: the value of posted.
  std::uint64_t taken;
  std::uint64_t reserved2[15];

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(Outbox) == 256);

// Receiver's side: one for each communicator. The waiting kernel asks for one piece of one record at a time; the CPU
// thread puts it behind the mailbox and answers.
struct alignas(128) Mailbox {
  // Written by the kernel; ticket last.
  std::uint64_t sequence;
  std::uint64_t offset;  // first byte wanted
  std::uint32_t chunk;
  std::uint32_t sender;  // rank
  std::uint64_t ticket;  // requests so far
  std::uint64_t reserved0[12];
  // Written by the CPU thread; answered last.
  std::uint64_t piece_bytes;   // bytes of the piece, at data(): min(capacity, record - offset)
  std::uint64_t record_bytes;  // bytes of the whole record; the message's header must announce as many
  std::int32_t status;         // zipccl::Status; not ok: no piece will ever come
  std::uint32_t reserved1;
  std::uint64_t answered;  // the ticket that is answered
  std::uint64_t reserved2[12];

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(Mailbox) == 256);

// What a communicator's receive jobs have done, in mapped memory. One job of a communicator runs at a time, so plain
// additions suffice; the CPU reads at any time. `finished` is stored after the others but tile_status.
struct alignas(128) ExchangeCounters {
  std::uint64_t finished;           // jobs that have all they need from others; their last tiles may yet be written
  std::uint64_t values;             // in received messages and the own ones
  std::uint64_t escapes;            // of these, outside their window
  std::uint64_t overflow_messages;  // received or own messages with overflow
  std::uint64_t overflow_bytes;     // received overflow
  std::uint64_t wait_ns;            // time that jobs waited for the CPU thread
  std::uint64_t exchange_ns;        // from the start of each encode to when its receive job has finished, as above
  std::int32_t status;              // zipccl::Status: the first fault that is not a tile's, sticky; see ReceiveJob
  std::int32_t tile_status;         // zipccl::Status: bad_tile once there was a corrupt tile
  std::uint64_t ended;              // the engine's own: not zero if the job under way asks for no further record
  std::uint64_t reserved[7];

  // What the communicator is told. Tiles of a message with a bad header are often bad as well, hence the order.
  Status fault() const { return static_cast<Status>(status != 0 ? status : tile_status); }
};
static_assert(sizeof(ExchangeCounters) == 128);

// The largest entry, by which the pieces that a receive job asks for overlap.
inline constexpr std::uint64_t max_overflow_entry_bytes = 1024;

// The second half of a compressed exchange in mode static: decodes messages, whatever of them has overflowed included.
// In the ordinary case, without overflow, that is a first pass (DecodeJob), a look at the headers and the counting. For
// each message with overflow, in order, the job asks the mailbox for the sender's record piece by piece, copies each to
// `room` and writes the tiles whose entries the piece holds. The own message (decode.skip) is counted, not decoded. A
// record is asked for by its header's sequence and chunk. A job without messages only counts.
//
// counters->tile_status gets bad_tile for a corrupt tile; it is left alone, the others are written. Tiles of a message
// with a bad header may count, or not.
// counters->status gets what else is found, the first message's first:
//   a bad header       the message is neither counted nor patched, the others are
//   bad_totals         a record or a piece of another size than announced
//   aborted            *release was set while, or before, a piece of a record was asked for
//   the mailbox's      a record will never come
// The last three end the job: no further record is asked for, and tiles that need one stay as they were. `finished` and
// `advance` are counted in any case.
struct ReceiveJob {
  DecodeJob decode;  // a row or a list; its overflow fields and summaries are not used
  // The next four may be null or zero if the pool holds whatever comes (Layout::max_overflow_bytes() is zero).
  Mailbox* mailbox = nullptr;                 // mapped, followed by mailbox_capacity bytes
  std::uint64_t mailbox_capacity = 0;         // a multiple of unit_bytes above max_overflow_entry_bytes
  void* room = nullptr;                       // device memory of mailbox_capacity bytes, aligned to section_alignment
  const std::uint32_t* release = nullptr;     // mapped; set by an abort
  ExchangeCounters* counters = nullptr;       // mapped
  const std::uint64_t* started_ns = nullptr;  // EncodeJob::started_ns of this chunk; may be null
  // Device memory: gets one added when all else is counted, by the last job of a call, so that the next call, or the
  // next replay of a captured one, has the next sequence (EncodeJob::sequence_counter). May be null.
  std::uint64_t* advance = nullptr;
  // Device memory: the header of the own message (decode.skip) as its encode has left it in EncodeJob::header_copy;
  // nothing is then read of the message itself, which may be encoded anew meanwhile. Null: it is read from the message.
  const MessageHeader* own_header = nullptr;
};

}  // namespace zipccl::codec
