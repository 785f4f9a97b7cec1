// How kernels and a CPU thread hand over entries that a message's pool cannot hold (exchange mode static), through host
// memory that both map. The CPU thread makes no CUDA call, so a kernel may wait for it (rule R3). Every structure has
// one writer a field; a writer stores its counter last, with system scope, and the other side loads it first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/device.hpp"

namespace zipccl::codec {

// Sender's side: one notice for each overflow buffer. The buffer is mapped host memory too.
struct alignas(128) OverflowNotice {
  // Written by encode, if a message has overflow; posted last. Nothing is written once a wait has been released.
  std::uint64_t sequence;
  std::uint64_t bytes;  // of the buffer, from its start: the record
  std::uint32_t chunk;
  std::uint32_t reserved0;
  std::uint64_t posted;  // records so far
  std::uint64_t reserved1[4];
  // Written by the CPU thread when it has copied the record: the value of posted. An encode that has overflow waits for
  // drained == posted before it writes the first byte of the buffer.
  std::uint64_t drained;
  std::uint64_t reserved2[7];
};
static_assert(sizeof(OverflowNotice) == 128);

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

// What a communicator's kernels have done, in mapped memory. One kernel of a communicator runs at a time, so plain
// additions suffice; the CPU reads at any time. `finished` is stored last.
struct alignas(128) ExchangeCounters {
  std::uint64_t finished;           // patch jobs completed: the highest PatchJob::ticket so far
  std::uint64_t values;             // in received messages and the own ones
  std::uint64_t escapes;            // of these, outside their window
  std::uint64_t overflow_messages;  // received or own messages with overflow
  std::uint64_t overflow_bytes;     // received overflow
  std::uint64_t wait_ns;            // time that patches waited for the CPU thread
  std::uint64_t exchange_ns;        // from the start of each encode to the end of its patch
  std::int32_t status;              // zipccl::Status: the first fault, sticky; see PatchJob
  std::uint32_t reserved0;
  std::uint64_t reserved1[8];
};
static_assert(sizeof(ExchangeCounters) == 128);

// The last pass of a compressed exchange in mode static. Always enqueued behind decode, on its stream; in the ordinary
// case, without overflow, it reads the headers, adds up the counters and ends. For each message with overflow, in
// order of rank, it asks the mailbox piece by piece, gathers them in `room`, and writes the tiles that decode left out.
// The own message (decode.skip) is counted, not patched.
//
// counters->status gets what the summaries say of the first pass, and what the patch itself finds:
//   a bad header       checked again; the message is neither counted nor patched, the others are
//   bad_tile           the tile is left alone, the others are written; the summary says so too
//   bad_totals         a record or a piece of another size than announced
//   aborted            *release was set while, or before, a record was asked for
//   the mailbox's      a record will never come
// The last three end the patch: no further record is asked for, and the tiles not yet written stay as decode left them.
// `finished` is stored in any case.
struct PatchJob {
  DecodeJob decode;  // as given to the first pass; its overflow fields are not used
  // The next five may be null or zero if the pool holds whatever comes (Layout::max_overflow_bytes() is zero).
  Mailbox* mailbox = nullptr;                 // mapped, followed by mailbox_capacity bytes
  std::uint64_t mailbox_capacity = 0;         // a multiple of unit_bytes
  void* room = nullptr;                       // device memory, aligned to section_alignment
  std::uint64_t room_bytes = 0;               // at least the Layout's max_overflow_bytes()
  const std::uint32_t* release = nullptr;     // mapped; set by an abort
  ExchangeCounters* counters = nullptr;       // mapped
  const std::uint64_t* started_ns = nullptr;  // EncodeJob::started_ns of this chunk; may be null
  std::uint64_t ticket = 0;                   // goes to counters->finished
};

}  // namespace zipccl::codec
