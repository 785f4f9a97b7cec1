// What a block of a receive job does, in whatever kernel: tiles, or, the last one, headers, overflow and counting.
#pragma once

#include <algorithm>

#include "codec/cuda/system_scope.cuh"
#include "codec/cuda/tile_decode.cuh"
#include "codec/overflow.hpp"

namespace zipccl::codec::cuda {

// Functions of the rare path are not inlined, so that tiles lose no registers to them, and have but the kernel's few.

// What the launches of a job share. Those of a list's parts add up; only the last one counts as the job.
struct ReceiveShared {
  ReceivedChecks checks;
  Mailbox* mailbox;
  std::uint64_t mailbox_capacity;
  std::uint8_t* room;
  const std::uint32_t* release;
  ExchangeCounters* counters;
  const std::uint64_t* started_ns;
  unsigned long long* advance;
  const MessageHeader* own_header;
  bool first;
  bool last;
};

inline ReceiveShared shared_arguments(const ReceiveJob& job) {
  ReceiveShared shared{};
  shared.checks = ReceivedChecks(job.decode);
  shared.mailbox = job.mailbox;
  shared.mailbox_capacity = job.mailbox_capacity;
  shared.room = static_cast<std::uint8_t*>(job.room);
  shared.release = job.release;
  shared.counters = job.counters;
  shared.started_ns = job.started_ns;
  shared.advance = reinterpret_cast<unsigned long long*>(job.advance);
  shared.own_header = job.own_header;
  shared.first = true;
  shared.last = true;
  return shared;
}

template <typename Messages>
struct ReceiveArguments {
  ReceiveShared shared;
  Messages messages;
};

__device__ inline void report_bad_tile(ExchangeCounters& counters) {
  counters.tile_status = static_cast<std::int32_t>(Status::bad_tile);
}

// A fault with its place, so that the first message's is the least.
inline constexpr unsigned long long no_fault = ~0ull;
__device__ inline unsigned long long fault_of(unsigned index, std::int32_t status) {
  return static_cast<unsigned long long>(index) << 32 | static_cast<std::uint32_t>(status);
}

// What the block's threads share, the message and the piece at hand included, for the sake of registers.
struct BlockState {
  ReceivedPlace message;
  OverflowPiece piece;
  ExchangeCounters counters;  // the communicator's, when the kernel started
  std::uint64_t started_ns;
  unsigned long long escapes;
  unsigned long long fault;
  std::uint64_t overflow_bytes;
  std::uint64_t wait_ns;
  unsigned long long values;
  unsigned overflow_messages;
  unsigned to_patch[decode_block_warps];  // bit i of word w: message 32 w + i of the round
  std::uint64_t ticket;                   // of the last request to the CPU thread
  Status answer;                          // to it
};

// One message's record.
struct Record {
  std::uint32_t sender;
  std::uint32_t chunk;
  std::uint64_t sequence;
  std::uint64_t bytes;  // what the message's header announces
};

// Asks for one piece, unless nothing is to be asked for any more; `ticket` gets the request's number. For one thread.
__device__ inline Status request_piece(const ReceiveShared& shared, const Record& record, std::uint64_t offset,
                                       std::uint64_t& ticket) {
  if (load_acquire(*shared.release) != 0) return Status::aborted;
  Mailbox& mailbox = *shared.mailbox;
  mailbox.sequence = record.sequence;
  mailbox.offset = offset;
  mailbox.chunk = record.chunk;
  mailbox.sender = record.sender;
  ticket = mailbox.ticket + 1;
  store_release(mailbox.ticket, ticket);
  return Status::ok;
}

// Waits for the piece that has been asked for last. For one thread.
__device__ inline Status await_piece(const ReceiveShared& shared, const Record& record, std::uint64_t offset,
                                     std::uint64_t ticket, std::uint64_t& wait_ns) {
  const Mailbox& mailbox = *shared.mailbox;
  const std::uint64_t begin = global_timer();
  const bool answered = wait_unless_released(*shared.release, [&] { return load_acquire(mailbox.answered) == ticket; });
  wait_ns += global_timer() - begin;
  if (!answered) return Status::aborted;
  const Status status = static_cast<Status>(mailbox.status);
  if (status != Status::ok) return status;
  const bool expected = mailbox.record_bytes == record.bytes &&
                        mailbox.piece_bytes == std::min(shared.mailbox_capacity, record.bytes - offset);
  return expected ? Status::ok : Status::bad_totals;
}

// Copies between memory that a CPU has written and device memory: a whole batch is loaded before it is stored, as loads
// take long. Block-wide.
__device__ __noinline__ inline void copy_piece(uint4* to, const uint4* from, std::uint64_t vectors) {
  constexpr unsigned batch = 8;
  std::uint64_t next = threadIdx.x;
#pragma unroll 1
  for (; next + (batch - 1) * decode_block_threads < vectors; next += batch * decode_block_threads) {
    uint4 loaded[batch];
#pragma unroll
    for (unsigned i = 0; i < batch; ++i) loaded[i] = __ldcv(from + next + i * decode_block_threads);
#pragma unroll
    for (unsigned i = 0; i < batch; ++i) to[next + i * decode_block_threads] = loaded[i];
  }
#pragma unroll 1
  for (; next < vectors; next += decode_block_threads) to[next] = __ldcv(from + next);
}

// Whether the lane's tile has an entry that starts in the piece, by its tail alone.
__device__ inline bool starts_in(const OverflowPiece& piece, const ReceivedPlace& message, std::uint64_t tile) {
  const Layout& layout = message.layout;
  if (tile >= layout.tiles) return false;
  const std::uint32_t* tail = reinterpret_cast<const std::uint32_t*>(message.bytes + layout.tails + tile * tail_bytes);
  const unsigned kind = tail[0] >> 8 & 0xff;
  const std::uint32_t first = tail[tail_bytes / sizeof(*tail) - 1];
  const TileMode mode = static_cast<TileMode>(kind & 3);
  const unsigned units = mode == TileMode::raw ? raw_entry_units : kind >> tail_units_shift;
  if (mode == TileMode::tail || layout.in_pool(first, units)) return false;
  const std::uint64_t offset = layout.overflow_offset(first);
  return offset >= piece.begin && offset - piece.begin < piece.step;
}

// Decodes the message's tiles whose entries start in the piece. Block-wide.
__device__ __noinline__ inline void decode_piece(const BlockState& state, std::uint8_t* distances,
                                                 ExchangeCounters& counters) {
  for (std::uint64_t first = warp_id() * lane_count; first < state.message.layout.tiles;
       first += decode_block_threads) {
    unsigned found = __ballot_sync(all_lanes, starts_in(state.piece, state.message, first + lane_id()));
    while (found != 0) {
      const unsigned lowest = __ffs(static_cast<int>(found)) - 1;
      found &= found - 1;
      const TileFate fate = decode_tile<false, true>(state.message, state.piece, first + lowest, distances);
      __syncwarp();  // before the next tile's distances
      if (fate == TileFate::corrupt && lane_id() == 0) report_bad_tile(counters);
    }
  }
  __syncthreads();  // before the next piece overwrites the room
}

// Patches the message at hand; false if no further one can be patched. Block-wide.
__device__ inline bool patch_message(const ReceiveShared& shared, unsigned index, std::uint32_t sender,
                                     std::uint8_t* distances, BlockState& state) {
  const MessageHeader& header = state.message.header();
  const Record record{sender, header.chunk, header.sequence, state.message.layout.overflow_bytes(header.entry_units)};
  // Pieces overlap by the largest entry, so that every entry lies in one of them as a whole.
  const std::uint64_t step = shared.mailbox_capacity - max_overflow_entry_bytes;
  if (threadIdx.x == 0) state.answer = request_piece(shared, record, 0, state.ticket);
  for (std::uint64_t offset = 0;; offset += step) {
    const std::uint64_t size = std::min(shared.mailbox_capacity, record.bytes - offset);
    const bool last = offset + size == record.bytes;
    if (threadIdx.x == 0) {
      if (state.answer == Status::ok) state.answer = await_piece(shared, record, offset, state.ticket, state.wait_ns);
      state.piece = {shared.room, offset, last ? size : step, size};
    }
    __syncthreads();
    if (state.answer != Status::ok) {
      if (threadIdx.x == 0) atomicMin(&state.fault, fault_of(index, static_cast<std::int32_t>(state.answer)));
      return false;
    }
    copy_piece(reinterpret_cast<uint4*>(shared.room), reinterpret_cast<const uint4*>(shared.mailbox + 1),
               size / sizeof(uint4));
    __syncthreads();
    // The CPU thread fetches the next one meanwhile.
    if (!last && threadIdx.x == 0) state.answer = request_piece(shared, record, offset + step, state.ticket);
    decode_piece(state, distances, *shared.counters);
    if (last) break;
  }
  if (threadIdx.x == 0) state.overflow_bytes += record.bytes;
  return true;
}

// Looks at the header of the lane's message; returns whether its overflow is to be patched. Warp-wide.
template <typename Messages>
__device__ bool examine(const ReceiveArguments<Messages>& arguments, unsigned index, BlockState& state) {
  const Messages& messages = arguments.messages;
  bool overflows = false;
  unsigned long long escapes = 0;
  unsigned long long values = 0;
  if (index - lane_id() >= messages.count) return false;
  if (index < messages.count) {
    const ReceivedPlace message = messages.place(index);
    const MessageHeader* own = messages.skips(index) ? arguments.shared.own_header : nullptr;
    const MessageHeader& header = own != nullptr ? *own : message.header();
    const Status status = arguments.shared.checks.check(header, message.layout);
    if (status == Status::ok) {
      values = message.layout.count;
      escapes = header.escapes;
      overflows = header.entry_units > message.layout.pool_units;
    } else {
      atomicMin(&state.fault, fault_of(index, static_cast<std::int32_t>(status)));
    }
  }
#pragma unroll
  for (unsigned distance = lane_count / 2; distance > 0; distance /= 2) {
    escapes += __shfl_down_sync(all_lanes, escapes, distance);
    values += __shfl_down_sync(all_lanes, values, distance);
  }
  const unsigned overflow_messages = __popc(__ballot_sync(all_lanes, overflows));
  if (lane_id() == 0 && values != 0) {
    atomicAdd(&state.escapes, escapes);
    atomicAdd(&state.values, values);
    atomicAdd(&state.overflow_messages, overflow_messages);
  }
  return overflows && !messages.skips(index);
}

// Whether an earlier part of the job has ended it. Its status does not say so: a bad header ends nothing, and a fault
// of an earlier job may have been there before.
__device__ inline bool ended_before(const ReceiveShared& shared, const BlockState& state) {
  return !shared.first && state.counters.ended != 0;
}

// Adds the launch to the communicator's counters; `ended`: it has ended the job. For one thread.
__device__ inline void publish(const ReceiveShared& shared, const BlockState& state, bool ended) {
  const ExchangeCounters& before = state.counters;
  ExchangeCounters& counters = *shared.counters;
  counters.values = before.values + state.values;
  counters.escapes = before.escapes + state.escapes;
  if (state.overflow_messages != 0) {
    counters.overflow_messages = before.overflow_messages + state.overflow_messages;
    counters.overflow_bytes = before.overflow_bytes + state.overflow_bytes;
    counters.wait_ns = before.wait_ns + state.wait_ns;
  }
  if (state.fault != no_fault && before.status == static_cast<std::int32_t>(Status::ok)) {
    counters.status = static_cast<std::int32_t>(state.fault);
  }
  if (!shared.last) {
    counters.ended = ended || ended_before(shared, state) ? 1 : 0;
    return;
  }
  if (shared.started_ns != nullptr) {
    counters.exchange_ns = before.exchange_ns + (global_timer() - state.started_ns);
  }
  store_release(counters.finished, before.finished + 1);
  if (shared.advance != nullptr) atomicAdd(shared.advance, 1ull);
}

// What the last block does: it looks at the headers, decodes what has overflowed, and counts. Block-wide.
template <typename Messages>
__device__ __noinline__ void patch(const ReceiveArguments<Messages>& arguments, std::uint8_t* distances) {
  __shared__ SharedRoom<BlockState> room;
  BlockState& state = room.object();
  const ReceiveShared& shared = arguments.shared;
  const Messages& messages = arguments.messages;

  constexpr unsigned counter_vectors = sizeof(ExchangeCounters) / sizeof(uint4);
  if (threadIdx.x == 0) {
    state.escapes = 0;
    state.fault = no_fault;
    state.overflow_bytes = 0;
    state.wait_ns = 0;
    state.values = 0;
    state.overflow_messages = 0;
  }
  __syncthreads();
  // The last warp, which seldom has a header to look at, fetches what lies across the bus meanwhile.
  const unsigned last_lane = threadIdx.x - (decode_block_threads - lane_count);
  if (last_lane < counter_vectors) {
    reinterpret_cast<uint4*>(&state.counters)[last_lane] =
        __ldcv(reinterpret_cast<const uint4*>(shared.counters) + last_lane);
  } else if (last_lane == counter_vectors && shared.started_ns != nullptr) {
    state.started_ns = *shared.started_ns;
  }

  bool ended = false;
  for (unsigned first = 0; first < messages.count; first += decode_block_threads) {
    const unsigned word = __ballot_sync(all_lanes, examine(arguments, first + threadIdx.x, state));
    if (lane_id() == 0) state.to_patch[warp_id()] = word;
    if (__syncthreads_or(word != 0) == 0) continue;
    ended = ended || ended_before(shared, state);
    for (unsigned w = 0; w < decode_block_warps; ++w) {
      for (unsigned left = state.to_patch[w]; left != 0 && !ended; left &= left - 1) {
        const unsigned index = first + w * lane_count + __ffs(static_cast<int>(left)) - 1;
        if (threadIdx.x == 0) state.message = messages.place(index);
        __syncthreads();
        ended = !patch_message(shared, index, messages.sender(index), distances, state);
      }
    }
    __syncthreads();  // before the next round's words
  }
  __syncthreads();
  if (threadIdx.x == 0) publish(shared, state, ended);
}

// Block number `block` of the job's, of which the last one patches; `distances()` is the warp's room, as decode_tile's.
// Block-wide.
template <bool aligned, typename Messages, typename Distances>
__device__ __forceinline__ void receive_block(const ReceiveArguments<Messages>& arguments, unsigned block, bool is_last,
                                              Distances distances) {
  // Blocks begin in their order: the last one ends as late as any, and all of them fit beside it when it waits.
  if (is_last) {
    patch(arguments, distances());
    return;
  }
  decode_block<aligned, false>(
      arguments.messages, block, [](unsigned) { return OverflowPiece{}; }, distances,
      [&](unsigned) { report_bad_tile(*arguments.shared.counters); });
}

}  // namespace zipccl::codec::cuda
