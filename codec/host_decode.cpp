#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "codec/host_engine.hpp"
#include "codec/host_exchange.hpp"
#include "codec/host_tail.hpp"
#include "codec/host_tile.hpp"
#include "codec/job_messages.hpp"

namespace zipccl::codec {
namespace {

// Where entries may be read, in the first pass or in a patch pass.
struct EntrySource {
  Layout layout;
  const std::uint8_t* pool;
  std::uint64_t entry_units;  // first pass: bound from the header
  const std::uint8_t* overflow;
  std::uint64_t begin;  // of the overflow bytes present
  std::uint64_t step;
  std::uint64_t size;  // 0 in the first pass
};

enum class Found { here, elsewhere, nowhere };

// Finds a tile's entry: here (*entry is set), to be decoded by another pass, or outside all bounds.
Found find_entry(const EntrySource& source, std::uint64_t first, std::uint32_t units, const std::uint8_t** entry) {
  const bool pooled = source.layout.in_pool(first, units);
  if (source.size == 0) {
    if (first + units > source.entry_units) {
      return Found::nowhere;
    }
    if (!pooled) {
      return Found::elsewhere;
    }
    *entry = source.pool + first * unit_bytes;
    return Found::here;
  }
  if (pooled) {
    return Found::elsewhere;
  }
  const std::uint64_t offset = source.layout.overflow_offset(first);
  if (offset < source.begin || offset - source.begin >= source.step) {
    return Found::elsewhere;
  }
  const std::uint64_t skipped = offset - source.begin;
  if (skipped > source.size || source.size - skipped < std::uint64_t{units} * unit_bytes) {
    return Found::nowhere;
  }
  *entry = source.overflow + skipped;
  return Found::here;
}

// Puts the exponents of escapes into the tile. False if the tail or the entry contradicts the codes.
bool read_escapes(HostTile& tile, const Tail& tail, const std::uint8_t* tail_address, const std::uint8_t* entry) {
  const bool has_entry = tail.mode() == TileMode::entry;
  if (!has_entry && tile.escapes > tail_nibbles) {
    return false;
  }
  unpack_nibbles(tail_address + offsetof(Tail, nibbles), 0,
                 std::min(tile.escapes, has_entry ? tail_nibbles_with_entry : tail_nibbles), tile);
  const std::uint32_t nibble_bytes = entry_nibble_bytes(tile.escapes);
  if (has_entry && nibble_bytes != 0) {
    if (nibble_bytes > tail.units() * unit_bytes) {
      return false;
    }
    unpack_nibbles(entry, tail_nibbles_with_entry, tile.escapes, tile);
  }
  const auto far_escapes = static_cast<std::uint32_t>(
      std::count(tile.nibbles.begin(), tile.nibbles.begin() + tile.escapes, std::uint8_t{nibble_far}));
  if (has_entry ? units_of(nibble_bytes + far_escapes) != tail.units() : far_escapes != 0) {
    return false;
  }

  std::array<std::uint8_t, 16> exponent_of{};
  for (std::uint32_t n = 0; n < nibble_below; ++n) {
    exponent_of[n] = static_cast<std::uint8_t>(tail.window - 1 - n);
  }
  for (std::uint32_t n = nibble_above; n < nibble_zero; ++n) {
    exponent_of[n] = static_cast<std::uint8_t>(tail.window + window_exponents + n - nibble_above);
  }
  std::uint32_t next = 0;
  const std::uint8_t* far = far_escapes == 0 ? nullptr : entry + nibble_bytes;
  for_each_escape(tile, [&](std::uint32_t position) {
    const std::uint8_t nibble = tile.nibbles[next++];
    tile.exponents[position] = nibble == nibble_far ? *far++ : exponent_of[nibble];
  });
  return true;
}

// One tile into `values`. False if it is bad; also true if it is for another pass.
template <typename Traits>
bool decode_tile(const std::uint8_t* message, const EntrySource& source, std::uint64_t index, std::uint8_t* values,
                 std::uint32_t real) {
  const Layout& layout = source.layout;
  const std::uint8_t* tail_address = message + layout.tails + index * tail_bytes;
  Tail tail;
  std::memcpy(&tail, tail_address, tail_bytes);
  // A patch pass leaves everything but its own entries to the first pass, errors included.
  const bool patching = source.size != 0;
  if (!tail.plausible()) {
    return patching;
  }
  if (patching && tail.mode() == TileMode::tail) {
    return true;
  }
  const std::uint8_t* entry = nullptr;
  if (tail.mode() != TileMode::tail) {
    const Found found = find_entry(source, tail.first_unit, tail.units(), &entry);
    if (found != Found::here) {
      return found == Found::elsewhere;
    }
  }

  HostTile tile;
  if (tail.mode() == TileMode::raw) {
    from_plane_order(entry, tile.exponents);
  } else {
    unpack_pairs(message + layout.codes + index * code_bytes, tile);
    find_escapes(tile);
    pairs_to_codes(tile);
    for (std::uint32_t i = 0; i < tile_values; ++i) {
      tile.exponents[i] = static_cast<std::uint8_t>(tile.codes[i] + tail.window);
    }
    if (!read_escapes(tile, tail, tail_address, entry)) {
      return false;
    }
  }
  alignas(64) TileBytes rests;
  from_plane_order(message + layout.planes + index * plane_bytes, rests);
  alignas(64) std::array<typename Traits::Value, tile_values> local;
  for (std::uint32_t i = 0; i < tile_values; ++i) {
    local[i] = Traits::join(tile.exponents[i], rests[i]);
  }
  std::memcpy(values, local.data(), real * sizeof(typename Traits::Value));
  return true;
}

void report(MessageSummary* summary, Status status) {
  if (summary != nullptr) {
    summary->status = static_cast<std::int32_t>(status);
  }
}

}  // namespace

template <ValueTraits Traits>
Status HostEngine<Traits>::decode(const DecodeJob& job) {
  if (const Status status = validate(job, sizeof(typename Traits::Value)); status != Status::ok) {
    return status;
  }
  const bool patching = job.overflow_size != 0;
  const std::uint64_t sequence = job.sequence + counted(job.sequence_counter);

  for (std::uint32_t m = 0; m < message_total(job); ++m) {
    if (patching && is_skipped(job, m)) {
      continue;
    }
    const DecodeItem item = message_of(job, m);
    const Layout layout = Layout::of(item.count, job.pool_fraction);
    const auto* message = static_cast<const std::uint8_t*>(item.message);
    MessageSummary* summary = job.summaries == nullptr ? nullptr : job.summaries + m;
    EntrySource source{.layout = layout,
                       .pool = message + layout.pool,
                       .entry_units = 0,
                       .overflow = nullptr,
                       .begin = job.overflow_begin,
                       .step = job.overflow_step,
                       .size = job.overflow_size};
    if (patching) {
      source.overflow = static_cast<const std::uint8_t*>(job.overflow) + m * job.overflow_stride;
    } else {
      MessageHeader header;
      std::memcpy(&header, message, sizeof(header));
      const Status status = check_header(header, Traits::dtype, layout, sequence, job.chunk, job.any_sequence);
      if (status != Status::ok) {
        report(summary, status);
        continue;
      }
      source.entry_units = header.entry_units;
      if (summary != nullptr) {
        summary->entry_units = header.entry_units;
        summary->escapes = header.escapes;
        summary->far_escapes = header.far_escapes;
        summary->overflow_tiles = header.overflow_tiles;
      }
      if (is_skipped(job, m)) {
        continue;
      }
    }
    auto* values = static_cast<std::uint8_t*>(item.values);
    for (std::uint64_t index = 0; index < layout.tiles; ++index) {
      std::uint8_t* out = values + index * tile_values * sizeof(typename Traits::Value);
      if (!decode_tile<Traits>(message, source, index, out, values_in_tile(layout, index))) {
        report(summary, Status::bad_tile);
      }
    }
  }
  return Status::ok;
}

template Status HostEngine<Bf16Traits>::decode(const DecodeJob& job);

}  // namespace zipccl::codec
