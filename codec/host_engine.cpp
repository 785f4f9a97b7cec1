#include "codec/host_engine.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "codec/host_exchange.hpp"
#include "codec/host_tile.hpp"
#include "codec/window.hpp"

namespace zipccl::codec {
namespace {

constexpr std::uint32_t highest_window = 249;

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

// Bytes with nibbles that follow those of the tail, in mode entry.
constexpr std::uint32_t entry_nibble_bytes(std::uint32_t escapes) {
  return escapes <= tail_nibbles_with_entry ? 0 : (escapes - tail_nibbles_with_entry + 1) / 2;
}

constexpr std::uint32_t units_of(std::uint32_t bytes) { return (bytes + unit_bytes - 1) / unit_bytes; }

struct Tail {
  std::uint8_t window;
  std::uint8_t mode_and_units;
  std::uint8_t nibbles[tail_nibbles_with_entry / 2];
  std::uint32_t first_unit;  // with modes entry and raw; four more bytes of nibbles in mode tail

  TileMode mode() const { return static_cast<TileMode>(mode_and_units & 3); }
  std::uint32_t units() const { return mode() == TileMode::raw ? raw_entry_units : mode_and_units >> tail_units_shift; }
  // Checks that need nothing but these bytes.
  bool plausible() const {
    if (window > highest_window) {
      return false;
    }
    const std::uint32_t upper_bits = mode_and_units >> tail_units_shift;
    switch (mode()) {
      case TileMode::tail:
      case TileMode::raw:
        return upper_bits == 0;
      case TileMode::entry:
        return upper_bits != 0;
    }
    return false;
  }
};
static_assert(sizeof(Tail) == tail_bytes);

// Where a message's parts lie while it is written, and what has been written so far.
struct MessageWriter {
  std::uint8_t* base;
  std::uint8_t* overflow;
  OverflowNotice* notice;  // null if nobody ships the overflow
  const std::uint32_t* release;
  Layout layout;
  MessageHeader header;
  std::uint64_t pool_end = 0;      // bytes of the pool section in use
  std::uint64_t overflow_end = 0;  // bytes of the overflow in use
  bool released = false;           // while the overflow's former content was being shipped
  // For entries of the overflow after a release.
  std::array<std::uint8_t, std::size_t{raw_entry_units} * unit_bytes> discarded;

  // Before the first entry goes there.
  void wait_for_overflow() {
    released = notice != nullptr &&
               !wait_unless_released(*release, [this] { return load_acquire(notice->drained) == notice->posted; });
  }

  std::uint8_t* place_entry(std::uint32_t units) {
    const std::uint64_t first = header.entry_units;
    header.entry_units += units;
    if (layout.in_pool(first, units)) {
      pool_end = (first + units) * unit_bytes;
      return base + layout.pool + first * unit_bytes;
    }
    if (header.overflow_tiles++ == 0) {
      wait_for_overflow();
    }
    if (released) {
      return discarded.data();
    }
    const std::uint64_t offset = layout.overflow_offset(first);
    std::memset(overflow + overflow_end, 0, offset - overflow_end);
    overflow_end = offset + std::uint64_t{units} * unit_bytes;
    return overflow + offset;
  }

  void post_overflow() {
    if (notice == nullptr || header.overflow_tiles == 0 || released) {
      return;
    }
    notice->sequence = header.sequence;
    notice->bytes = layout.overflow_bytes(header.entry_units);
    notice->chunk = header.chunk;
    store_release(notice->posted, notice->posted + 1);
  }

  void clear_gaps() {
    const std::uint64_t tails_end = layout.tails + layout.tiles * tail_bytes;
    std::memset(base + tails_end, 0, layout.pool - tails_end);
    const std::uint64_t entries_end = layout.pool + pool_end;
    std::memset(base + entries_end, 0, layout.static_bytes - entries_end);
  }
};

// Writes tail and entry from exponents and escape masks.
void write_escapes(HostTile& tile, std::uint8_t window, std::uint64_t index, MessageWriter& writer) {
  std::uint32_t escapes = 0;
  std::uint32_t far_escapes = 0;
  for_each_escape(tile, [&](std::uint32_t position) {
    const std::uint8_t exponent = tile.exponents[position];
    const std::uint8_t nibble = nibble_of(exponent, window);
    tile.nibbles[escapes++] = nibble;
    tile.far[far_escapes] = exponent;
    far_escapes += nibble == nibble_far;
  });
  writer.header.escapes += escapes;
  writer.header.far_escapes += far_escapes;

  Tail tail{};
  tail.window = window;
  auto* out = writer.base + writer.layout.tails + index * tail_bytes;
  if (far_escapes == 0 && escapes <= tail_nibbles) {
    std::memcpy(out, &tail, tail_bytes);
    pack_nibbles(tile, 0, escapes, out + offsetof(Tail, nibbles));
    return;
  }
  const std::uint32_t nibble_bytes = entry_nibble_bytes(escapes);
  const std::uint32_t entry_bytes = nibble_bytes + far_escapes;
  tail.first_unit = static_cast<std::uint32_t>(writer.header.entry_units);
  if (entry_bytes > max_entry_bytes) {
    tail.mode_and_units = static_cast<std::uint8_t>(TileMode::raw);
    to_plane_order(tile.exponents, writer.place_entry(raw_entry_units));
  } else {
    const std::uint32_t units = units_of(entry_bytes);
    tail.mode_and_units =
        static_cast<std::uint8_t>(static_cast<std::uint32_t>(TileMode::entry) | units << tail_units_shift);
    pack_nibbles(tile, 0, std::min(escapes, tail_nibbles_with_entry), tail.nibbles);
    std::uint8_t* entry = writer.place_entry(units);
    if (nibble_bytes != 0) {
      pack_nibbles(tile, tail_nibbles_with_entry, escapes, entry);
    }
    std::memcpy(entry + nibble_bytes, tile.far.data(), far_escapes);
    std::memset(entry + entry_bytes, 0, std::size_t{units} * unit_bytes - entry_bytes);
  }
  std::memcpy(out, &tail, tail_bytes);
}

template <typename Traits>
void encode_tile(const std::uint8_t* values, std::uint32_t real, std::uint64_t index, MessageWriter& writer) {
  alignas(64) std::array<typename Traits::Value, tile_values> local;
  std::memcpy(local.data(), values, real * sizeof(typename Traits::Value));
  // Zeros as padding have the rest that the format asks for and leave lane maxima alone.
  std::fill(local.begin() + real, local.end(), typename Traits::Value{0});

  HostTile tile;
  alignas(64) TileBytes rests;
  for (std::uint32_t i = 0; i < tile_values; ++i) {
    rests[i] = Traits::rest(local[i]);
  }
  for (std::uint32_t i = 0; i < tile_values; ++i) {
    tile.exponents[i] = Traits::exponent(local[i]);
  }
  to_plane_order(rests, writer.base + writer.layout.planes + index * plane_bytes);

  const std::uint8_t window = find_window(tile, real);
  for (std::uint32_t i = 0; i < tile_values; ++i) {
    // An exponent below the window wraps to a large number, which is an escape as one above it is.
    const auto distance = static_cast<std::uint8_t>(tile.exponents[i] - window);
    tile.codes[i] = distance < escape_code ? distance : std::uint8_t{escape_code};
  }
  std::fill(tile.codes.begin() + real, tile.codes.end(), std::uint8_t{0});
  codes_to_pairs(tile);
  pack_pairs(tile, writer.base + writer.layout.codes + index * code_bytes);
  find_escapes(tile);
  write_escapes(tile, window, index, writer);
}

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

std::uint32_t values_in_tile(const Layout& layout, std::uint64_t index) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(tile_values, layout.count - index * tile_values));
}

void report(MessageSummary* summary, Status status) {
  if (summary != nullptr) {
    summary->status = static_cast<std::int32_t>(status);
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
  MessageWriter writer{.base = static_cast<std::uint8_t*>(job.message),
                       .overflow = static_cast<std::uint8_t*>(job.overflow),
                       .notice = job.notice,
                       .release = job.release,
                       .layout = Layout::of(job.count, job.pool_fraction),
                       .header = {},
                       .discarded = {}};
  writer.header.magic = format_magic;
  writer.header.version = format_version;
  writer.header.dtype = static_cast<std::uint8_t>(Traits::dtype);
  writer.header.count = job.count;
  writer.header.sequence = job.sequence;
  writer.header.chunk = job.chunk;
  writer.header.pool_units = writer.layout.pool_units;

  const auto* values = static_cast<const std::uint8_t*>(job.values);
  for (std::uint64_t index = 0; index < writer.layout.tiles; ++index) {
    encode_tile<Traits>(values + index * tile_values * sizeof(typename Traits::Value),
                        values_in_tile(writer.layout, index), index, writer);
  }
  writer.clear_gaps();
  std::memcpy(writer.base, &writer.header, sizeof(MessageHeader));
  writer.post_overflow();
  return Status::ok;
}

template <ValueTraits Traits>
Status HostEngine<Traits>::decode(const DecodeJob& job) {
  if (const Status status = validate(job, sizeof(typename Traits::Value)); status != Status::ok) {
    return status;
  }
  const Layout layout = Layout::of(job.count, job.pool_fraction);
  const bool patching = job.overflow_size != 0;

  for (std::uint32_t m = 0; m < job.message_count; ++m) {
    if (patching && m == job.skip) {
      continue;
    }
    const auto* message = static_cast<const std::uint8_t*>(job.messages) + m * job.message_stride;
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
      const Status status = check_header(header, Traits::dtype, layout, job.sequence, job.chunk);
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
      if (m == job.skip) {
        continue;
      }
    }
    auto* values = static_cast<std::uint8_t*>(job.values) + m * job.value_stride;
    for (std::uint64_t index = 0; index < layout.tiles; ++index) {
      std::uint8_t* out = values + index * tile_values * sizeof(typename Traits::Value);
      if (!decode_tile<Traits>(message, source, index, out, values_in_tile(layout, index))) {
        report(summary, Status::bad_tile);
      }
    }
  }
  return Status::ok;
}

template class HostEngine<Bf16Traits>;

}  // namespace zipccl::codec
