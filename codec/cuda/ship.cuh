// How the last block of a message ships its overflow: piece by piece through the outbox (overflow.hpp), the entries
// made anew from the values, as no memory holds them. Only that block waits, and only for the CPU thread and for the
// blocks of its own message, all of which have run.
#pragma once

#include "codec/cuda/encode_tile.cuh"
#include "codec/cuda/system_scope.cuh"
#include "codec/overflow.hpp"

namespace zipccl::codec::cuda {

// A message's scratch memory: zero between encodes. All its blocks update it; units lie in a cache line of their own.
struct EncodeCounters {
  unsigned long long progress;  // finished blocks << escape_bits | escapes of their tiles
  unsigned long long far_escapes;
  unsigned long long reserved[14];
  unsigned long long units;  // given out so far
  unsigned long long overflow_tiles;
  unsigned long long announced;  // of these: those whose tails all blocks see
};
static_assert(sizeof(EncodeCounters) <= encode_scratch_bytes);
constexpr unsigned escape_bits = 40;
static_assert(max_count < std::uint64_t{1} << escape_bits);

// What the messages of a launch share.
struct EncodeShared {
  std::uint8_t* counters;  // of the launch's first message; those of the others follow
  Outbox* outbox;
  std::uint64_t* started_ns;
  std::uint8_t* overflow;
  std::uint32_t chunk;
  std::uint64_t sequence;
  const std::uint64_t* sequence_counter;
  unsigned long long* message_counter;
  MessageHeader* header_copy;  // of a single message
  std::uint64_t outbox_capacity;
  std::uint32_t* outbox_lock;
  const std::uint32_t* release;

  __device__ EncodeCounters* counters_of(unsigned message) const {
    return reinterpret_cast<EncodeCounters*>(counters + message * encode_scratch_bytes);
  }
};

// A block's, of `warps` warps; one for each.
template <unsigned warps>
__device__ inline WarpStorage* block_storage() {
  __shared__ WarpStorage storage[warps];
  return storage;
}

struct Shipment {
  const MessagePlace* message;
  const EncodeShared* shared;
  std::uint64_t bytes;   // of the record
  std::uint64_t offset;  // of the piece
  std::uint64_t size;    // of the piece
  std::uint64_t overflow_tiles;
  std::uint32_t receiver;
  unsigned claims;  // tiles whose tails say that their entry lies in the overflow
  bool locked;
  bool go;
};

// An entry in the overflow, as a tail says; units is 0 if it says otherwise.
struct OverflowClaim {
  std::uint64_t begin;
  unsigned units;
  unsigned head;  // the tail's first word: the window and the mode

  // As another lane has it. Warp-wide.
  __device__ OverflowClaim of_lane(unsigned lane) const {
    return {__shfl_sync(all_lanes, begin, lane), __shfl_sync(all_lanes, units, lane),
            __shfl_sync(all_lanes, head, lane)};
  }
};

__device__ inline OverflowClaim read_claim(const MessagePlace& message, std::uint64_t tile) {
  // Not from the L1 cache: other blocks have written them.
  const auto* tail = reinterpret_cast<const std::uint32_t*>(message.bytes + message.layout.tails + tile * tail_bytes);
  const unsigned head = __ldcg(tail);
  const unsigned kind = head >> 8 & 0xff;
  const std::uint32_t first = __ldcg(tail + tail_bytes / sizeof(*tail) - 1);
  const TileMode mode = static_cast<TileMode>(kind & 3);
  const unsigned units = mode == TileMode::raw ? raw_entry_units : kind >> tail_units_shift;
  if (mode == TileMode::tail || message.layout.in_pool(first, units)) return {0, 0, 0};
  return {message.layout.overflow_offset(first), units, head};
}

// Makes a tile's entry once more, into `storage`, as its tail's first word, the same in all lanes, says. In few
// registers, not fast. Warp-wide.
__device__ inline void remake_entry(const MessagePlace& message, std::uint32_t tile, unsigned head,
                                    WarpStorage& storage) {
  const unsigned lane = lane_id();
  const auto place = [lane](unsigned k, unsigned j) { return 512 * (k / 2) + 16 * lane + 8 * (k % 2) + j; };
  const unsigned remaining = remaining_values(message.layout.count, tile);
  const std::uint16_t* values = message.values + std::uint64_t{tile} * tile_values;
  // The lane's exponents, where a raw entry has them.
#pragma unroll 1
  for (unsigned k = 0; k < rows; ++k) {
#pragma unroll
    for (unsigned j = 0; j < 8; ++j) {
      const unsigned index = k * row_values + lane * 8 + j;
      storage.entry[place(k, j)] = static_cast<std::uint8_t>(index < remaining ? values[index] >> 7 : 0);
    }
  }
  const unsigned window = head & 0xff;
  if ((head >> 8 & 3) == static_cast<unsigned>(TileMode::raw)) return;
  const auto exponent_of_bit = [&](unsigned bit) {
    const unsigned pair = bit % lane_pairs;
    return storage.entry[place(pair / 4, pair % 4 * 2 + bit / lane_pairs)];
  };
  std::uint32_t mask = 0;
#pragma unroll 1
  for (unsigned bit = 0; bit < lane_values; ++bit) {
    const bool real = pair_index(lane, bit % lane_pairs) + bit / lane_pairs < remaining;
    if (real && exponent_of_bit(bit) - window >= window_exponents) mask |= 1u << bit;
  }
  const EscapeRanks ranks = rank_escapes(mask, lane);
  unsigned next = ranks.first;
#pragma unroll 1
  for (; mask != 0; mask &= mask - 1) {
    storage.exponents[next++] = exponent_of_bit(__ffs(static_cast<int>(mask)) - 1);
  }
  __syncwarp();
  build_entry(storage, ranks.total, window,
              nibble_pair(storage.exponents, lane - 2, lane < 2 ? 0 : ranks.total, window));
}

// Fills the piece from all tiles whose entries it touches, and counts the claims. Block-wide.
template <unsigned warps>
__device__ inline void fill_piece(volatile Shipment& shipment) {
  const MessagePlace& message = *shipment.message;
  WarpStorage& storage = block_storage<warps>()[warp_id()];
  const unsigned lane = lane_id();
  const auto tiles = static_cast<std::uint32_t>(message.layout.tiles);
#pragma unroll 1
  for (std::uint32_t first = warp_id() * lane_count; first < tiles; first += warps * lane_count) {
    const OverflowClaim own = first + lane < tiles ? read_claim(message, first + lane) : OverflowClaim{0, 0, 0};
    const unsigned claims = __popc(__ballot_sync(all_lanes, own.units != 0));
    if (claims != 0 && lane == 0) atomicAdd(const_cast<unsigned*>(&shipment.claims), claims);
    const bool touches =
        own.begin + own.units * unit_bytes > shipment.offset && own.begin < shipment.offset + shipment.size;
    unsigned found = __ballot_sync(all_lanes, own.units != 0 && touches);
    for (; found != 0; found &= found - 1) {
      // What the finder has read: a tail that has yet to come through may read differently by now, and not in all
      // lanes alike, which must take the same way.
      const unsigned finder = __ffs(static_cast<int>(found)) - 1;
      const OverflowClaim claim = own.of_lane(finder);
      remake_entry(message, first + finder, claim.head, storage);
      __syncwarp();
      for (unsigned i = lane; i < claim.units; i += lane_count) {
        // Units before the piece wrap to large numbers.
        const std::uint64_t in_piece = claim.begin + i * unit_bytes - shipment.offset;
        if (in_piece < shipment.size) {
          reinterpret_cast<uint4*>(shipment.shared->outbox + 1)[in_piece / sizeof(uint4)] =
              reinterpret_cast<const uint4*>(storage.entry)[i];
        }
      }
      __syncwarp();  // before the next tile's entry
    }
  }
}

// The next four are for one thread.
__device__ inline void begin_shipment(volatile Shipment& shipment, EncodeCounters& counters) {
  const auto& header = *reinterpret_cast<const MessageHeader*>(shipment.message->bytes);
  shipment.bytes = shipment.message->layout.overflow_bytes(header.entry_units);
  shipment.offset = 0;
  shipment.overflow_tiles = header.overflow_tiles;
  // The blocks that the message lacks have taken their units and are about to write their tails.
  while (atomicAdd(&counters.announced, 0ull) != header.overflow_tiles) __nanosleep(100);
  counters.announced = 0;
  __threadfence();
  // Several messages of a launch, or of launches that run at the same time, may want the outbox.
  const EncodeShared& shared = *shipment.shared;
  shipment.locked = wait_unless_released(*shared.release, [&] { return atomicCAS(shared.outbox_lock, 0u, 1u) == 0; });
  __threadfence();
}

// Whether there is a next piece and the outbox is free for it.
__device__ inline bool next_piece(volatile Shipment& shipment) {
  const EncodeShared& shared = *shipment.shared;
  if (!shipment.locked || shipment.offset >= shipment.bytes || load_acquire(*shared.release) != 0) return false;
  const std::uint64_t left = shipment.bytes - shipment.offset;
  shipment.size = left < shared.outbox_capacity ? left : shared.outbox_capacity;
  const std::uint64_t posted = load_acquire(shared.outbox->posted);
  return wait_unless_released(*shared.release, [&] { return load_acquire(shared.outbox->taken) == posted; });
}

__device__ inline void post_piece(volatile Shipment& shipment) {
  const auto& header = *reinterpret_cast<const MessageHeader*>(shipment.message->bytes);
  Outbox& outbox = *shipment.shared->outbox;
  outbox.sequence = header.sequence;
  outbox.offset = shipment.offset;
  outbox.piece_bytes = shipment.size;
  outbox.record_bytes = shipment.bytes;
  outbox.chunk = header.chunk;
  outbox.receiver = shipment.receiver;
  store_release(outbox.posted, load_acquire(outbox.posted) + 1);
  shipment.offset = shipment.offset + shipment.size;
}

__device__ inline void end_shipment(volatile Shipment& shipment) {
  if (!shipment.locked) return;
  __threadfence();
  atomicExch(shipment.shared->outbox_lock, 0u);
}

// Block-wide, when the message's header has been written. Not inlined: ordinary messages must not pay for it.
template <unsigned warps, typename Arguments>
__device__ __noinline__ void ship(const Arguments& arguments, unsigned index) {
  __shared__ Shipment memory;
  __shared__ SharedRoom<MessagePlace> place_room;
  MessagePlace& place = place_room.object();
  volatile Shipment& shipment = memory;
  if (threadIdx.x == 0) {
    place = arguments.message(index);
    shipment.message = &place;
    shipment.shared = &arguments.shared;
    shipment.receiver = arguments.receiver(index);
    begin_shipment(shipment, *arguments.counters(index));
  }
  for (;;) {
    if (threadIdx.x == 0) shipment.go = next_piece(shipment);
    __syncthreads();
    if (!shipment.go) break;
    // Tails of tiles without overflow may not have come through yet: what lies there may claim an entry. All true
    // claims are there, so the piece is right when there are no others.
    do {
      __syncthreads();
      if (threadIdx.x == 0) shipment.claims = 0;
      __syncthreads();
      fill_piece<warps>(shipment);
      __syncthreads();
    } while (shipment.claims != shipment.overflow_tiles);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) post_piece(shipment);
  }
  if (threadIdx.x == 0) end_shipment(shipment);
}

}  // namespace zipccl::codec::cuda
