#include "test/unit/plain_decoder.hpp"

#include <algorithm>
#include <array>
#include <functional>

namespace zipccl::test {
namespace {

using Bytes = std::span<const std::uint8_t>;

std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

std::uint64_t read(Bytes bytes, std::uint64_t offset, unsigned size) {
  std::uint64_t number = 0;
  for (unsigned i = 0; i < size; ++i) {
    number |= std::uint64_t{bytes[offset + i]} << (8 * i);
  }
  return number;
}

unsigned exponent_of(std::uint16_t value) { return (value >> 7) & 255u; }

// 2. Layout of a message

struct Sections {
  std::uint64_t tiles;
  std::uint64_t pool_units;
  std::uint64_t sign_mantissa;
  std::uint64_t codes;
  std::uint64_t tails;
  std::uint64_t pool;
  std::uint64_t end;
};

Sections sections_of(std::uint64_t count, std::uint64_t pool_fraction) {
  Sections s{};
  s.tiles = ceil_divide(count, 1024);
  s.pool_units = ceil_divide(s.tiles * pool_fraction, 256);
  s.sign_mantissa = 128;
  s.codes = 128 + 1024 * s.tiles;
  s.tails = 128 + 1408 * s.tiles;
  s.pool = ceil_divide(s.tails + 32 * s.tiles, 128) * 128;
  s.end = ceil_divide(s.pool + 16 * s.pool_units, 128) * 128;
  return s;
}

// 4.1 Order of values

unsigned value_index(unsigned k, unsigned l, unsigned j) { return 256 * k + 8 * l + j; }

// 4.3 Sign-mantissa section

unsigned plane_position(unsigned k, unsigned l, unsigned j) { return 512 * (k / 2) + 16 * l + 8 * (k % 2) + j; }

// 4.4 Code section: the code of one half (0 low, 1 high) of pair q of lane l

unsigned code_of(Bytes codes, unsigned l, unsigned q, unsigned half) {
  const auto word = [&](unsigned i) { return static_cast<unsigned>(read(codes, 128 * i + 4 * l, 4)); };
  if (q < 15) {
    return (word(q % 3) >> (16 * half + 3 * (q / 3))) & 7;
  }
  unsigned code = 0;
  for (unsigned i = 0; i < 3; ++i) {
    code |= ((word(i) >> (16 * half + 15)) & 1) << i;
  }
  return code;
}

// 4.5 Escapes: the exponent of a category other than 15

unsigned exponent_of_nibble(unsigned nibble, unsigned window) {
  if (nibble == 14) {
    return 0;
  }
  if (nibble <= 11) {
    return (window - 1 - nibble) & 255u;
  }
  return (window + 7 + (nibble - 12)) & 255u;
}

// 4.6 Tail: nibble i in byte 2 + i / 2; and the same in an entry, from its first byte

unsigned nibble_at(Bytes bytes, unsigned i) { return (bytes[i / 2] >> (4 * (i % 2))) & 15u; }

// 5. Pool and overflow: the bytes of an entry, empty if they are not there

struct Entries {
  Bytes pool;
  Bytes overflow;
  std::uint64_t pool_units;
  std::uint64_t entry_units;

  Bytes find(std::uint64_t first, unsigned units) const {
    if (first + units > entry_units) {
      return {};
    }
    if (first + units <= pool_units) {
      return pool.subspan(16 * first, 16 * units);
    }
    const std::uint64_t offset = 16 * (first + 63 - pool_units);
    if (offset + 16 * units > overflow.size()) {
      return {};
    }
    return overflow.subspan(offset, 16 * units);
  }
};

// 4. Tile, with the checks of 7

PlainTile decode_tile(Bytes sign_mantissa, Bytes codes, Bytes tail, const Entries& entries,
                      std::array<std::uint16_t, 1024>& values) {
  PlainTile tile;
  const auto bad = [&tile] {
    tile.status = Status::bad_tile;
    return tile;
  };
  tile.window = tail[0];
  tile.mode = tail[1] & 3;
  if (tile.window > 249) {
    return bad();
  }
  if (tile.mode == 3 || (tile.mode != 1 && tail[1] != tile.mode) || tail[1] == 1) {
    return bad();
  }

  Bytes entry;
  if (tile.mode != 0) {
    tile.first_unit = read(tail, 28, 4);
    tile.units = tile.mode == 2 ? 64 : tail[1] / 4;
    entry = entries.find(tile.first_unit, tile.units);
    if (entry.size() != 16 * tile.units) {
      return bad();
    }
  }

  // Exponents by value index: codes first, and which values escaped, in escape order.
  std::array<unsigned, 1024> exponents{};
  std::vector<unsigned> escaped;
  for (unsigned l = 0; l < 32; ++l) {
    for (unsigned bit = 0; bit < 32; ++bit) {
      const unsigned q = bit % 16;
      const unsigned half = bit / 16;
      const unsigned index = value_index(q / 4, l, 2 * (q % 4) + half);
      const unsigned code = code_of(codes, l, q, half);
      exponents[index] = tile.window + code;
      if (code == 7) {
        escaped.push_back(index);
      }
    }
  }
  tile.escapes = static_cast<unsigned>(escaped.size());

  if (tile.mode == 2) {
    for (unsigned k = 0; k < 4; ++k) {
      for (unsigned l = 0; l < 32; ++l) {
        for (unsigned j = 0; j < 8; ++j) {
          exponents[value_index(k, l, j)] = entry[plane_position(k, l, j)];
        }
      }
    }
  } else {
    const unsigned in_tail = tile.mode == 0 ? 60 : 52;
    if (tile.mode == 0 && tile.escapes > in_tail) {
      return bad();
    }
    const auto nibble_bytes =
        static_cast<unsigned>(tile.escapes > in_tail ? ceil_divide(tile.escapes - in_tail, 2) : 0);
    if (nibble_bytes > entry.size()) {
      return bad();
    }
    std::vector<unsigned> nibbles;
    for (unsigned i = 0; i < tile.escapes; ++i) {
      nibbles.push_back(i < in_tail ? nibble_at(tail.subspan(2), i) : nibble_at(entry, i - in_tail));
    }
    tile.far_escapes = static_cast<unsigned>(std::count(nibbles.begin(), nibbles.end(), 15u));
    if (tile.mode == 0 && tile.far_escapes > 0) {
      return bad();
    }
    if (tile.mode == 1 && ceil_divide(nibble_bytes + tile.far_escapes, 16) != tile.units) {
      return bad();
    }
    unsigned far = nibble_bytes;
    for (unsigned i = 0; i < tile.escapes; ++i) {
      exponents[escaped[i]] = nibbles[i] == 15 ? entry[far++] : exponent_of_nibble(nibbles[i], tile.window);
    }
  }

  for (unsigned k = 0; k < 4; ++k) {
    for (unsigned l = 0; l < 32; ++l) {
      for (unsigned j = 0; j < 8; ++j) {
        const unsigned rest = sign_mantissa[plane_position(k, l, j)];
        const unsigned sign = rest >> 7;
        const unsigned mantissa = rest & 127;
        const unsigned index = value_index(k, l, j);
        values[index] = static_cast<std::uint16_t>(sign << 15 | exponents[index] << 7 | mantissa);
      }
    }
  }
  return tile;
}

// 3. Header, with the checks of 7

Status read_header(Bytes message, const PlainExpectation& expected, const Sections& sections, PlainMessage& out) {
  if (message[0] != 0x5A || message[1] != 0x43 || message[2] != 0x4D || message[3] != 0x31) {
    return Status::bad_magic;
  }
  if (read(message, 4, 2) != 1) {
    return Status::bad_version;
  }
  if (message[6] != 1) {
    return Status::bad_dtype;
  }
  if (read(message, 8, 8) != expected.count) {
    return Status::bad_count;
  }
  if (read(message, 28, 4) != sections.pool_units) {
    return Status::bad_pool;
  }
  if (read(message, 16, 8) != expected.sequence || read(message, 24, 4) != expected.chunk) {
    return Status::bad_sequence;
  }
  out.pool_units = sections.pool_units;
  out.entry_units = read(message, 32, 8);
  out.escapes = read(message, 40, 8);
  out.far_escapes = read(message, 48, 8);
  out.overflow_tiles = read(message, 56, 8);
  if (out.entry_units > 64 * sections.tiles || out.escapes > expected.count || out.far_escapes > out.escapes ||
      out.overflow_tiles > sections.tiles || (out.overflow_tiles > 0) != (out.entry_units > sections.pool_units)) {
    return Status::bad_totals;
  }
  return Status::ok;
}

}  // namespace

std::uint64_t plain_static_bytes(std::uint64_t count, std::uint64_t pool_fraction) {
  return sections_of(count, pool_fraction).end;
}

PlainMessage plain_decode(std::span<const std::uint8_t> message, std::span<const std::uint8_t> overflow,
                          const PlainExpectation& expected) {
  PlainMessage out;
  const Sections sections = sections_of(expected.count, expected.pool_fraction);
  out.status = read_header(message, expected, sections, out);
  if (out.status != Status::ok) {
    return out;
  }

  const Entries entries{message.subspan(sections.pool, 16 * sections.pool_units), overflow, sections.pool_units,
                        out.entry_units};
  for (std::uint64_t t = 0; t < sections.tiles; ++t) {
    std::array<std::uint16_t, 1024> values{};
    out.tiles.push_back(decode_tile(message.subspan(sections.sign_mantissa + 1024 * t, 1024),
                                    message.subspan(sections.codes + 384 * t, 384),
                                    message.subspan(sections.tails + 32 * t, 32), entries, values));
    const std::uint64_t real = std::min<std::uint64_t>(1024, expected.count - 1024 * t);
    out.values.insert(out.values.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(real));
  }
  return out;
}

unsigned plain_window(std::span<const std::uint16_t> values) {
  const auto r = static_cast<unsigned>(values.size());
  const unsigned n = std::min(32u, (r + 7) / 8);
  std::vector<unsigned> maxima(n, 0);
  for (unsigned v = 0; v < r; ++v) {
    unsigned& maximum = maxima[(v / 8) % 32];
    maximum = std::max(maximum, exponent_of(values[v]));
  }
  std::sort(maxima.begin(), maxima.end(), std::greater<>());
  const auto rank = static_cast<unsigned>(ceil_divide(14 * n, 32));
  const unsigned top = maxima[rank - 1];
  return top >= 6 ? top - 6 : 0;
}

unsigned plain_nibble(unsigned exponent, unsigned window) {
  if (exponent == 0) {
    return 14;
  }
  for (unsigned n = 0; n <= 11; ++n) {
    if (exponent + 1 + n == window) {
      return n;
    }
  }
  if (exponent == window + 7) {
    return 12;
  }
  if (exponent == window + 8) {
    return 13;
  }
  return 15;
}

}  // namespace zipccl::test
