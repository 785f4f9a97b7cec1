#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "codec/host_engine.hpp"
#include "codec/host_exchange.hpp"
#include "codec/host_tail.hpp"
#include "codec/host_tile.hpp"
#include "codec/job_messages.hpp"
#include "codec/window.hpp"

namespace zipccl::codec {
namespace {

std::uint8_t find_window(const HostTile& tile, std::uint32_t real) {
  // std::max returns references, which GCC turns into branches here instead of vector instructions.
  const auto larger = [](std::uint8_t a, std::uint8_t b) { return a > b ? a : b; };
  std::array<std::uint8_t, 256> columns;  // lane l's eight from 8 l
  for (std::uint32_t i = 0; i < 256; ++i) {
    const std::uint8_t front = larger(tile.exponents[i], tile.exponents[256 + i]);
    columns[i] = larger(front, larger(tile.exponents[512 + i], tile.exponents[768 + i]));
  }
  std::array<std::uint8_t, lane_count> maxima{};
  for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
    for (std::uint32_t j = 0; j < 8; ++j) {
      maxima[lane] = larger(maxima[lane], columns[8 * lane + j]);
    }
  }
  return window_start(std::span(maxima).first(std::min(lane_count, (real + 7) / 8)));
}

// Nibbles of exponents other than zero by their distance from the window's start, -255 to 255, plus 255: a look-up, as
// branches on the exponents of escapes are never predicted.
constexpr auto nibble_by_distance = [] {
  std::array<std::uint8_t, 511> nibbles{};
  nibbles.fill(nibble_far);
  for (std::uint32_t n = 0; n < nibble_below; ++n) {
    nibbles[255 - 1 - n] = static_cast<std::uint8_t>(n);
  }
  for (std::uint32_t n = nibble_above; n < nibble_zero; ++n) {
    nibbles[255 + window_exponents + n - nibble_above] = static_cast<std::uint8_t>(n);
  }
  return nibbles;
}();

std::uint8_t nibble_of(std::uint8_t exponent, std::uint8_t window) {
  const std::uint8_t nibble = nibble_by_distance[255u + exponent - window];
  return exponent == 0 ? std::uint8_t{nibble_zero} : nibble;
}

// What a tile's tail and entry will be.
struct TileSummary {
  std::uint8_t window;
  TileMode mode;
  std::uint32_t escapes;
  std::uint32_t far_escapes;
  std::uint32_t units;  // of the entry, 0 in mode tail
};

// Everything of a tile but the bytes where they belong: fills in `tile` and the rests by value.
template <typename Traits>
TileSummary code_tile(const std::uint8_t* values, std::uint32_t real, HostTile& tile, TileBytes& rests) {
  alignas(64) std::array<typename Traits::Value, tile_values> local;
  std::memcpy(local.data(), values, real * sizeof(typename Traits::Value));
  // Zeros as padding have the rest that the format asks for and leave lane maxima alone.
  std::fill(local.begin() + real, local.end(), typename Traits::Value{0});
  for (std::uint32_t i = 0; i < tile_values; ++i) {
    rests[i] = Traits::rest(local[i]);
  }
  for (std::uint32_t i = 0; i < tile_values; ++i) {
    tile.exponents[i] = Traits::exponent(local[i]);
  }

  TileSummary summary{};
  summary.window = find_window(tile, real);
  for (std::uint32_t i = 0; i < tile_values; ++i) {
    // An exponent below the window wraps to a large number, which is an escape as one above it is.
    const auto distance = static_cast<std::uint8_t>(tile.exponents[i] - summary.window);
    tile.codes[i] = distance < escape_code ? distance : std::uint8_t{escape_code};
  }
  std::fill(tile.codes.begin() + real, tile.codes.end(), std::uint8_t{0});
  codes_to_pairs(tile);
  find_escapes(tile);
  for_each_escape(tile, [&](std::uint32_t position) {
    const std::uint8_t exponent = tile.exponents[position];
    const std::uint8_t nibble = nibble_of(exponent, summary.window);
    tile.nibbles[summary.escapes++] = nibble;
    tile.far[summary.far_escapes] = exponent;
    summary.far_escapes += nibble == nibble_far;
  });

  if (summary.far_escapes == 0 && summary.escapes <= tail_nibbles) {
    summary.mode = TileMode::tail;
    return summary;
  }
  const std::uint32_t entry_bytes = entry_nibble_bytes(summary.escapes) + summary.far_escapes;
  summary.mode = entry_bytes > max_entry_bytes ? TileMode::raw : TileMode::entry;
  summary.units = summary.mode == TileMode::raw ? raw_entry_units : units_of(entry_bytes);
  return summary;
}

void write_entry(const HostTile& tile, const TileSummary& summary, std::uint8_t* entry) {
  if (summary.mode == TileMode::raw) {
    to_plane_order(tile.exponents, entry);
    return;
  }
  const std::uint32_t nibble_bytes = entry_nibble_bytes(summary.escapes);
  const std::uint32_t entry_bytes = nibble_bytes + summary.far_escapes;
  if (nibble_bytes != 0) {
    pack_nibbles(tile, tail_nibbles_with_entry, summary.escapes, entry);
  }
  std::memcpy(entry + nibble_bytes, tile.far.data(), summary.far_escapes);
  std::memset(entry + entry_bytes, 0, std::size_t{summary.units} * unit_bytes - entry_bytes);
}

void write_tail(const HostTile& tile, const TileSummary& summary, std::uint64_t first_unit, std::uint8_t* out) {
  Tail tail{};
  tail.window = summary.window;
  tail.mode_and_units = static_cast<std::uint8_t>(summary.mode);
  if (summary.mode == TileMode::tail) {
    std::memcpy(out, &tail, tail_bytes);
    pack_nibbles(tile, 0, summary.escapes, out + offsetof(Tail, nibbles));
    return;
  }
  tail.first_unit = static_cast<std::uint32_t>(first_unit);
  if (summary.mode == TileMode::entry) {
    tail.mode_and_units = static_cast<std::uint8_t>(tail.mode_and_units | summary.units << tail_units_shift);
    pack_nibbles(tile, 0, std::min(summary.escapes, tail_nibbles_with_entry), tail.nibbles);
  }
  std::memcpy(out, &tail, tail_bytes);
}

template <typename Traits>
const std::uint8_t* tile_values_of(const EncodeItem& item, std::uint64_t index) {
  return static_cast<const std::uint8_t*>(item.values) + index * tile_values * sizeof(typename Traits::Value);
}

// Where a message's parts lie while it is written, and what has been written so far.
struct MessageWriter {
  std::uint8_t* base;
  std::uint8_t* overflow;  // null if it leaves through an outbox
  Layout layout;
  MessageHeader header;
  std::uint64_t pool_end = 0;      // bytes of the pool section in use
  std::uint64_t overflow_end = 0;  // bytes of the overflow in use

  // Null if the entry is not to be written now.
  std::uint8_t* place_entry(std::uint32_t units) {
    const std::uint64_t first = header.entry_units;
    header.entry_units += units;
    if (layout.in_pool(first, units)) {
      pool_end = (first + units) * unit_bytes;
      return base + layout.pool + first * unit_bytes;
    }
    ++header.overflow_tiles;
    if (overflow == nullptr) {
      return nullptr;
    }
    const std::uint64_t offset = layout.overflow_offset(first);
    std::memset(overflow + overflow_end, 0, offset - overflow_end);
    overflow_end = offset + std::uint64_t{units} * unit_bytes;
    return overflow + offset;
  }

  void clear_gaps() {
    const std::uint64_t tails_end = layout.tails + layout.tiles * tail_bytes;
    std::memset(base + tails_end, 0, layout.pool - tails_end);
    const std::uint64_t entries_end = layout.pool + pool_end;
    std::memset(base + entries_end, 0, layout.static_bytes - entries_end);
  }
};

template <typename Traits>
void encode_tile(const EncodeItem& item, std::uint64_t index, MessageWriter& writer) {
  HostTile tile;
  alignas(64) TileBytes rests;
  const Layout& layout = writer.layout;
  const TileSummary summary =
      code_tile<Traits>(tile_values_of<Traits>(item, index), values_in_tile(layout, index), tile, rests);
  to_plane_order(rests, writer.base + layout.planes + index * plane_bytes);
  pack_pairs(tile, writer.base + layout.codes + index * code_bytes);
  writer.header.escapes += summary.escapes;
  writer.header.far_escapes += summary.far_escapes;
  write_tail(tile, summary, writer.header.entry_units, writer.base + layout.tails + index * tail_bytes);
  if (summary.units != 0) {
    if (std::uint8_t* entry = writer.place_entry(summary.units); entry != nullptr) {
      write_entry(tile, summary, entry);
    }
  }
}

// Makes the piece [offset, offset + size) of the record anew from the message's tails and its values.
template <typename Traits>
void fill_piece(const EncodeItem& item, const Layout& layout, std::uint64_t offset, std::uint64_t size,
                std::byte* piece) {
  std::memset(piece, 0, size);  // what belongs to no entry
  const auto* tails = static_cast<const std::uint8_t*>(item.message) + layout.tails;
  for (std::uint64_t index = 0; index < layout.tiles; ++index) {
    Tail tail;
    std::memcpy(&tail, tails + index * tail_bytes, tail_bytes);
    if (tail.mode() == TileMode::tail || layout.in_pool(tail.first_unit, tail.units())) {
      continue;
    }
    const std::uint64_t begin = layout.overflow_offset(tail.first_unit);
    const std::uint64_t end = begin + std::uint64_t{tail.units()} * unit_bytes;
    if (end <= offset || begin >= offset + size) {
      continue;
    }
    HostTile tile;
    alignas(64) TileBytes rests;
    std::array<std::uint8_t, std::size_t{raw_entry_units} * unit_bytes> entry;
    write_entry(tile,
                code_tile<Traits>(tile_values_of<Traits>(item, index), values_in_tile(layout, index), tile, rests),
                entry.data());
    const std::uint64_t from = std::max(begin, offset);
    std::memcpy(piece + (from - offset), entry.data() + (from - begin), std::min(end, offset + size) - from);
  }
}

// Posts the record of a message that is complete but for its overflow.
template <typename Traits>
void ship(const EncodeJob& job, const EncodeItem& item, const MessageWriter& writer) {
  Outbox& outbox = *job.outbox;
  const std::uint64_t bytes = writer.layout.overflow_bytes(writer.header.entry_units);
  if (!wait_unless_released(*job.release, [&] { return exchange_acquire(*job.outbox_lock, std::uint32_t{1}) == 0; })) {
    return;
  }
  for (std::uint64_t offset = 0; offset < bytes; offset += job.outbox_capacity) {
    const std::uint64_t posted = outbox.posted;
    if (load_acquire(*job.release) != 0 ||
        !wait_unless_released(*job.release, [&] { return load_acquire(outbox.taken) == posted; })) {
      break;
    }
    outbox.sequence = writer.header.sequence;
    outbox.offset = offset;
    outbox.piece_bytes = std::min(job.outbox_capacity, bytes - offset);
    outbox.record_bytes = bytes;
    outbox.chunk = writer.header.chunk;
    outbox.receiver = item.receiver;
    fill_piece<Traits>(item, writer.layout, offset, outbox.piece_bytes, outbox.data());
    store_release(outbox.posted, posted + 1);
  }
  store_release(*job.outbox_lock, std::uint32_t{0});
}

template <typename Traits>
void encode_message(const EncodeJob& job, const EncodeItem& item, std::uint64_t sequence) {
  MessageWriter writer{.base = static_cast<std::uint8_t*>(item.message),
                       .overflow = job.outbox == nullptr ? static_cast<std::uint8_t*>(job.overflow) : nullptr,
                       .layout = Layout::of(item.count, job.pool_fraction),
                       .header = {}};
  writer.header.magic = format_magic;
  writer.header.version = format_version;
  writer.header.dtype = static_cast<std::uint8_t>(Traits::dtype);
  writer.header.count = item.count;
  writer.header.sequence = sequence;
  writer.header.chunk = job.chunk;
  writer.header.pool_units = writer.layout.pool_units;
  for (std::uint64_t index = 0; index < writer.layout.tiles; ++index) {
    encode_tile<Traits>(item, index, writer);
  }
  writer.clear_gaps();
  std::memcpy(writer.base, &writer.header, sizeof(MessageHeader));
  if (job.header_copy != nullptr && job.items == nullptr && job.message_count == 1) {
    *job.header_copy = writer.header;
  }
  if (job.outbox != nullptr && writer.header.overflow_tiles != 0) {
    ship<Traits>(job, item, writer);
  }
}

}  // namespace

template <ValueTraits Traits>
Status HostEngine<Traits>::encode(const EncodeJob& job) {
  if (const Status status = validate(job, sizeof(typename Traits::Value)); status != Status::ok) {
    return status;
  }
  if (job.started_ns != nullptr) {
    *job.started_ns = now_ns();
  }
  const std::uint64_t sequence = job.sequence + counted(job.sequence_counter);
  for (std::uint32_t m = 0; m < message_total(job); ++m) {
    if (is_skipped(job, m)) {
      continue;
    }
    const bool numbered = job.message_counter != nullptr;
    encode_message<Traits>(
        job, message_of(job, m),
        numbered ? point_to_point_sequences + add_release(*job.message_counter, std::uint64_t{1}) : sequence);
  }
  return Status::ok;
}

template <ValueTraits Traits>
Status HostEngine<Traits>::observe(const ObserveJob& job) {
  if (const Status status = validate(job, sizeof(typename Traits::Value)); status != Status::ok) {
    return status;
  }
  const Layout layout = Layout::of(job.count, job.pool_fraction);
  const EncodeItem item{.values = job.values, .count = job.count};
  Observation found{};
  for (std::uint64_t index = 0; index < layout.tiles; ++index) {
    HostTile tile;
    alignas(64) TileBytes rests;
    const TileSummary summary =
        code_tile<Traits>(tile_values_of<Traits>(item, index), values_in_tile(layout, index), tile, rests);
    found.escapes += summary.escapes;
    found.far_escapes += summary.far_escapes;
    found.entry_units += summary.units;
    found.entry_tiles += summary.units != 0;
  }
  Observation& total = *job.observation;
  add_release(total.values, job.count);
  add_release(total.escapes, found.escapes);
  add_release(total.far_escapes, found.far_escapes);
  add_release(total.entry_units, found.entry_units);
  add_release(total.entry_tiles, found.entry_tiles);
  add_release(total.overflow_units, found.entry_units - std::min<std::uint64_t>(found.entry_units, layout.pool_units));
  add_release(total.finished, std::uint64_t{1});
  return Status::ok;
}

template Status HostEngine<Bf16Traits>::encode(const EncodeJob& job);
template Status HostEngine<Bf16Traits>::observe(const ObserveJob& job);

}  // namespace zipccl::codec
