// Messages of every kind of values, read by the plain decoder and by the engine, and judged by what FORMAT.md demands
// of a writer.
#include <algorithm>
#include <cstring>

#include "codec/host_engine.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/codec_messages.hpp"
#include "test/unit/plain_decoder.hpp"

namespace zipccl::test {
namespace {

struct TileDemand {
  unsigned window = 0;
  unsigned mode = 0;
  unsigned units = 0;
  unsigned escapes = 0;
  unsigned far_escapes = 0;
};

TileDemand demand_for(std::span<const std::uint16_t> values) {
  TileDemand demand;
  demand.window = plain_window(values);
  for (const std::uint16_t value : values) {
    const unsigned exponent = (value >> 7) & 255u;
    if (exponent >= demand.window && exponent < demand.window + 7) {
      continue;
    }
    ++demand.escapes;
    demand.far_escapes += plain_nibble(exponent, demand.window) == 15;
  }
  if (demand.escapes <= 60 && demand.far_escapes == 0) {
    return demand;
  }
  const unsigned bytes = (demand.escapes > 52 ? (demand.escapes - 52 + 1) / 2 : 0) + demand.far_escapes;
  demand.mode = bytes > 1008 ? 2 : 1;
  demand.units = bytes > 1008 ? 64 : (bytes + 15) / 16;
  return demand;
}

void check_message(std::span<const std::uint16_t> values, std::uint32_t pool_fraction) {
  const Message message = encode(values, pool_fraction, 77, 3);
  const PlainMessage plain =
      plain_decode(message.bytes.bytes(), message.overflow.bytes(), {values.size(), pool_fraction, 77, 3});
  REQUIRE(plain.status == Status::ok);
  REQUIRE(std::equal(values.begin(), values.end(), plain.values.begin(), plain.values.end()));

  PlainMessage totals;
  for (std::uint64_t t = 0; t < plain.tiles.size(); ++t) {
    const PlainTile& tile = plain.tiles[t];
    const TileDemand demand =
        demand_for(values.subspan(1024 * t, std::min<std::size_t>(1024, values.size() - 1024 * t)));
    REQUIRE(tile.status == Status::ok);
    REQUIRE(tile.window == demand.window);
    REQUIRE(tile.mode == demand.mode);
    REQUIRE(tile.units == demand.units);
    REQUIRE(tile.escapes == demand.escapes);
    if (tile.mode != 2) {
      REQUIRE(tile.far_escapes == demand.far_escapes);
    }
    // The host engine's order of entries is that of tiles.
    if (tile.mode != 0) {
      REQUIRE(tile.first_unit == totals.entry_units);
    }
    totals.entry_units += demand.units;
    totals.escapes += demand.escapes;
    totals.far_escapes += demand.far_escapes;
    totals.overflow_tiles += demand.units > 0 && totals.entry_units > plain.pool_units;
  }
  REQUIRE(plain.entry_units == totals.entry_units);
  REQUIRE(plain.escapes == totals.escapes);
  REQUIRE(plain.far_escapes == totals.far_escapes);
  REQUIRE(plain.overflow_tiles == totals.overflow_tiles);

  const Result result = decode(message);
  REQUIRE(result.summary.status == 0);
  REQUIRE(result.summary.entry_units == totals.entry_units);
  REQUIRE(result.summary.escapes == totals.escapes);
  REQUIRE(result.summary.far_escapes == totals.far_escapes);
  REQUIRE(result.summary.overflow_tiles == totals.overflow_tiles);
  REQUIRE(std::equal(values.begin(), values.end(), result.values.begin(), result.values.end()));
}

constexpr std::uint32_t pool_fractions[] = {0, 1, 100, 1000, codec::max_pool_fraction};

}  // namespace

TEST_CASE("all kinds of values, all pools") {
  for (const Fill fill : all_fills) {
    for (const std::uint64_t count :
         {1u, 2u, 7u, 8u, 9u, 255u, 256u, 257u, 1023u, 1024u, 1025u, 2047u, 5000u, 20001u}) {
      const auto values = make_values(fill, count, count);
      for (const std::uint32_t fraction : pool_fractions) {
        CAPTURE(static_cast<int>(fill), count, fraction);
        check_message(values, fraction);
      }
    }
  }
}

TEST_CASE("every count from 0 to 3000") {
  for (std::uint64_t count = 0; count <= 3000; ++count) {
    const Fill fill = all_fills[count % std::size(all_fills)];
    CAPTURE(static_cast<int>(fill), count);
    check_message(make_values(fill, count, count), pool_fractions[count % std::size(pool_fractions)]);
  }
}

TEST_CASE("numbers of escapes around every limit") {
  for (unsigned escapes = 0; escapes <= 1024; escapes += escapes < 70 || escapes > 480 ? 1 : 17) {
    for (const unsigned far : {0u, 1u, 2u, 16u, 17u, escapes}) {
      if (far > escapes) {
        continue;
      }
      // Lanes 0 to 13 must keep a largest exponent of 127 for the window to stay at 121; escapes fill from the end.
      std::vector<std::uint16_t> values(1024, 0x3f80);
      for (unsigned i = 0; i < escapes; ++i) {
        const unsigned exponent = i < far ? 60 : 115;
        values[1023 - i] = static_cast<std::uint16_t>(exponent << 7 | (i & 127));
      }
      CAPTURE(escapes, far);
      check_message(values, 40);
    }
  }
}

TEST_CASE("an entry of 1,008 bytes is one, more make a raw tile") {
  // Every lane's largest exponent is 127, window 121; of the 992 others `far` are far and the rest just below.
  const auto mode_with = [](unsigned far) {
    std::vector<std::uint16_t> values(1024, static_cast<std::uint16_t>(120 << 7));
    for (unsigned v = 0; v < 256; v += 8) {
      values[v] = 0x3f80;
    }
    unsigned left = far;
    for (auto& value : values) {
      if (value == 120 << 7 && left > 0) {
        value = 10 << 7;
        --left;
      }
    }
    REQUIRE(left == 0);
    check_message(values, codec::max_pool_fraction);
    return demand_for(values).mode;
  };
  // 992 escapes: 470 bytes of nibbles.
  CHECK(mode_with(1008 - 470) == 1);
  CHECK(mode_with(1009 - 470) == 2);
}

TEST_CASE("values at every 2-byte alignment, source and destination") {
  const auto values = make_values(Fill::mixture, 3333, 5);
  for (std::size_t offset = 0; offset < 32; ++offset) {
    std::vector<std::uint16_t> shifted(offset);
    shifted.insert(shifted.end(), values.begin(), values.end());
    const Message message = encode(std::span(shifted).subspan(offset), codec::max_pool_fraction);

    std::vector<std::uint16_t> out(offset + values.size() + 1, untouched);
    codec::DecodeJob job;
    job.messages = message.bytes.data();
    job.message_count = 1;
    job.values = out.data() + offset;
    job.count = values.size();
    job.pool_fraction = codec::max_pool_fraction;
    job.sequence = 1;
    REQUIRE(codec::HostEngine<codec::Bf16Traits>::decode(job) == Status::ok);
    REQUIRE(std::equal(values.begin(), values.end(), out.begin() + static_cast<std::ptrdiff_t>(offset)));
    REQUIRE(std::all_of(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(offset),
                        [](auto value) { return value == untouched; }));
    REQUIRE(out.back() == untouched);
  }
}

TEST_CASE("the message does not depend on what its memory held") {
  const auto values = make_values(Fill::heavy_tails, 5000, 9);
  const Message first = encode(values, 30);
  const auto layout = first.layout();
  Block second(layout.static_bytes);
  std::memset(second.data(), 0, second.size());
  Block overflow(layout.max_overflow_bytes());
  std::memset(overflow.data(), 0, overflow.size());
  codec::EncodeJob job;
  job.values = values.data();
  job.count = values.size();
  job.pool_fraction = 30;
  job.message = second.data();
  job.overflow = overflow.data();
  job.overflow_bytes = overflow.size();
  job.sequence = 1;
  REQUIRE(codec::HostEngine<codec::Bf16Traits>::encode(job) == Status::ok);
  CHECK(std::equal(second.bytes().begin(), second.bytes().end(), first.bytes.bytes().begin()));
  CHECK(first.overflow.size() > 0);
  CHECK(std::equal(first.overflow.bytes().begin(), first.overflow.bytes().end(), overflow.bytes().begin()));
}

TEST_CASE("jobs that break the contract are refused") {
  using Engine = codec::HostEngine<codec::Bf16Traits>;
  const std::vector<std::uint16_t> values(2048);
  const auto layout = codec::Layout::of(2048, 0);
  Block message(layout.static_bytes);
  Block overflow(layout.max_overflow_bytes());
  codec::EncodeJob good;
  good.values = values.data();
  good.count = 2048;
  good.message = message.data();
  good.overflow = overflow.data();
  good.overflow_bytes = overflow.size();
  REQUIRE(Engine::encode(good) == Status::ok);

  const auto refused = [&](auto change) {
    codec::EncodeJob job = good;
    change(job);
    return Engine::encode(job) == Status::invalid_argument;
  };
  CHECK(refused([](auto& job) { job.values = nullptr; }));
  CHECK(refused([](auto& job) { job.values = static_cast<const char*>(job.values) + 1; }));
  CHECK(refused([](auto& job) { job.message = nullptr; }));
  CHECK(refused([](auto& job) { job.message = static_cast<char*>(job.message) + 16; }));
  CHECK(refused([](auto& job) { job.overflow = nullptr; }));
  CHECK(refused([](auto& job) { job.overflow_bytes -= 1; }));
  CHECK(refused([](auto& job) { job.pool_fraction = codec::max_pool_fraction + 1; }));
  CHECK(refused([](auto& job) { job.count = codec::max_count + 1; }));

  std::vector<std::uint16_t> out(2048);
  codec::DecodeJob decode_good;
  decode_good.messages = message.data();
  decode_good.message_count = 1;
  decode_good.values = out.data();
  decode_good.count = 2048;
  REQUIRE(Engine::decode(decode_good) == Status::ok);
  const auto decode_refused = [&](auto change) {
    codec::DecodeJob job = decode_good;
    change(job);
    return Engine::decode(job) == Status::invalid_argument;
  };
  CHECK(decode_refused([](auto& job) { job.messages = nullptr; }));
  CHECK(decode_refused([](auto& job) { job.messages = static_cast<const char*>(job.messages) + 64; }));
  CHECK(decode_refused([](auto& job) { job.message_stride = 64; }));
  CHECK(decode_refused([](auto& job) { job.values = nullptr; }));
  CHECK(decode_refused([](auto& job) { job.value_stride = 3; }));
  CHECK(decode_refused([](auto& job) { job.overflow_size = 16; }));
  CHECK(decode_refused([](auto& job) { job.pool_fraction = codec::max_pool_fraction + 1; }));
}

}  // namespace zipccl::test
