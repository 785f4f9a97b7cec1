// Entries beyond the pool, which arrive apart and in pieces, and rows of several messages.
#include <algorithm>
#include <cstring>

#include "codec/host_engine.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/codec_messages.hpp"
#include "test/unit/plain_decoder.hpp"

namespace zipccl::test {
namespace {

using Engine = codec::HostEngine<codec::Bf16Traits>;

// Tiles of all modes, with entries of many sizes.
std::vector<std::uint16_t> varied_values(std::uint64_t tiles, std::uint64_t seed) {
  constexpr Fill fills[] = {Fill::random_bits, Fill::normal, Fill::steps, Fill::heavy_tails, Fill::mixture};
  std::vector<std::uint16_t> values;
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    const auto more = make_values(fills[(tile + seed) % std::size(fills)], codec::tile_values, seed + tile);
    values.insert(values.end(), more.begin(), more.end());
  }
  values.resize(values.size() - 100);
  return values;
}

std::vector<PlainTile> tiles_of(const Message& message) {
  return plain_decode(message.bytes.bytes(), message.overflow.bytes(),
                      {message.count, message.pool_fraction, message.sequence, message.chunk})
      .tiles;
}

bool overflows(const Message& message, const PlainTile& tile) {
  return tile.mode != 0 && !message.layout().in_pool(tile.first_unit, tile.units);
}

std::span<const std::uint16_t> tile_span(const std::vector<std::uint16_t>& values, std::uint64_t tile) {
  const std::uint64_t begin = tile * codec::tile_values;
  return std::span(values).subspan(begin, std::min<std::uint64_t>(codec::tile_values, values.size() - begin));
}

bool is_untouched(std::span<const std::uint16_t> values) {
  return std::all_of(values.begin(), values.end(), [](std::uint16_t value) { return value == untouched; });
}

}  // namespace

TEST_CASE("the first pass writes all tiles but those that overflow") {
  const auto values = varied_values(40, 1);
  for (const std::uint32_t fraction : {0u, 500u, 4000u}) {
    const Message message = encode(values, fraction);
    const Result result = decode_static(message);
    CHECK(result.summary.status == 0);
    CHECK(result.summary.overflow_tiles > 0);
    const auto tiles = tiles_of(message);
    std::uint64_t overflowing = 0;
    for (std::uint64_t t = 0; t < tiles.size(); ++t) {
      CAPTURE(fraction, t);
      const auto out = tile_span(result.values, t);
      const auto in = tile_span(values, t);
      overflowing += overflows(message, tiles[t]);
      CHECK((overflows(message, tiles[t]) ? is_untouched(out) : std::equal(in.begin(), in.end(), out.begin())));
    }
    CHECK(overflowing == result.summary.overflow_tiles);
  }
}

TEST_CASE("pieces of any size complete a message") {
  const auto values = varied_values(60, 2);
  for (const std::uint32_t fraction : {0u, 100u, 3000u}) {
    const Message message = encode(values, fraction);
    REQUIRE(message.overflow.size() > 0);
    for (const std::uint64_t step : {16u, 48u, 1024u, 1040u, 10000u, 65536u}) {
      CAPTURE(fraction, step);
      const Result result = decode(message, step / 16 * 16);
      CHECK(result.summary.status == 0);
      CHECK(result.values == values);
    }
  }
}

TEST_CASE("random bits come through whole") {
  for (const std::uint64_t count : {300u, 1000u, 1024u, 1025u, 100000u}) {
    for (const std::uint32_t fraction : {0u, 1u, 256u, codec::max_pool_fraction}) {
      CAPTURE(count, fraction);
      const auto values = make_values(Fill::random_bits, count, count);
      const Message message = encode(values, fraction);
      CHECK((message.overflow.size() == 0) == (fraction == codec::max_pool_fraction));
      const Result result = decode(message, 4096);
      CHECK(result.summary.status == 0);
      CHECK(result.values == values);
    }
  }
}

TEST_CASE("a patch pass writes the tiles whose entries start in its piece, and no others") {
  const auto values = varied_values(30, 3);
  const Message message = encode(values, 200);
  const auto tiles = tiles_of(message);
  constexpr std::uint64_t step = 4096;
  for (std::uint64_t begin = 0; begin < message.overflow.size(); begin += step) {
    Result result{{}, std::vector<std::uint16_t>(values.size(), untouched)};
    patch(message, begin, step, std::min(step + 1024, message.overflow.size() - begin), result);
    CHECK(result.summary.status == 0);
    CHECK(result.summary.entry_units == 0);
    for (std::uint64_t t = 0; t < tiles.size(); ++t) {
      CAPTURE(begin, t);
      const auto out = tile_span(result.values, t);
      const auto in = tile_span(values, t);
      bool expected = false;
      if (overflows(message, tiles[t])) {
        const std::uint64_t offset = message.layout().overflow_offset(tiles[t].first_unit);
        expected = offset >= begin && offset < begin + step;
      }
      CHECK((expected ? std::equal(in.begin(), in.end(), out.begin()) : is_untouched(out)));
    }
  }
}

TEST_CASE("a piece ends before the entry that starts at its step") {
  const auto values = make_values(Fill::random_bits, 3 * codec::tile_values, 6);
  const Message message = encode(values, 0);
  const std::uint64_t begin = message.layout().overflow_offset(0);
  Result result{{}, std::vector<std::uint16_t>(values.size(), untouched)};
  patch(message, begin, 1024, message.overflow.size() - begin, result);
  CHECK(std::equal(values.begin(), values.begin() + 1024, result.values.begin()));
  CHECK(is_untouched(std::span(result.values).subspan(1024)));
}

TEST_CASE("a patch pass leaves errors that the first pass has found to it") {
  Message message = encode(make_values(Fill::random_bits, 3 * codec::tile_values, 7), 0);
  message.tail(1)[0] = 250;
  Result result = decode_static(message);
  CHECK(result.summary.status == static_cast<std::int32_t>(Status::bad_tile));
  result.summary = {};
  patch(message, 0, message.overflow.size(), message.overflow.size(), result);
  CHECK(result.summary.status == 0);
  CHECK(is_untouched(tile_span(result.values, 1)));
}

TEST_CASE("an entry that starts in a piece and ends beyond it makes its tile bad") {
  const auto values = make_values(Fill::random_bits, 4 * codec::tile_values, 4);
  const Message message = encode(values, 0);
  Result result = decode_static(message);
  patch(message, 0, message.overflow.size(), message.overflow.size() - codec::unit_bytes, result);
  CHECK(result.summary.status == static_cast<std::int32_t>(Status::bad_tile));
  for (std::uint64_t t = 0; t < 3; ++t) {
    const auto in = tile_span(values, t);
    CHECK(std::equal(in.begin(), in.end(), tile_span(result.values, t).begin()));
  }
  CHECK(is_untouched(tile_span(result.values, 3)));
}

TEST_CASE("entries may come in any order") {
  const auto values = make_values(Fill::random_bits, 5 * codec::tile_values, 5);
  Message message = encode(values, codec::max_pool_fraction);
  constexpr std::uint64_t raw_bytes = codec::tile_values;
  std::vector<std::uint8_t> pool(message.bytes.data() + message.layout().pool,
                                 message.bytes.data() + message.layout().pool + 5 * raw_bytes);
  for (std::uint32_t t = 0; t < 5; ++t) {
    const std::uint32_t first = (4 - t) * codec::raw_entry_units;
    std::memcpy(message.tail(t) + 28, &first, sizeof(first));
    std::memcpy(message.bytes.data() + message.layout().pool + (4 - t) * raw_bytes, pool.data() + t * raw_bytes,
                raw_bytes);
  }
  const Result result = decode(message);
  CHECK(result.summary.status == 0);
  CHECK(result.values == values);
}

TEST_CASE("a row of messages: strides, the skipped message, overflow of each") {
  constexpr std::uint32_t ranks = 4;
  constexpr std::uint32_t skipped = 2;
  constexpr std::uint64_t count = 7 * 1024 + 11;
  constexpr std::uint64_t value_stride = count + 5;
  // Message 0 has no overflow, the others have some.
  std::vector<std::vector<std::uint16_t>> values;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    values.push_back(make_values(Fill::normal, count, r));
    const auto random = make_values(Fill::random_bits, count / 2, r);
    if (r != 0) {
      std::copy(random.begin(), random.end(), values[r].begin());
    }
  }
  const auto layout = codec::Layout::of(count, 300);
  const std::uint64_t message_stride = layout.static_bytes + 256;
  Block messages(message_stride * ranks);
  std::vector<Message> sent;
  std::uint64_t overflow_stride = 0;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    sent.push_back(encode(values[r], 300, 12, 9));
    std::memcpy(messages.data() + r * message_stride, sent[r].bytes.data(), layout.static_bytes);
    overflow_stride = std::max(overflow_stride, sent[r].overflow.size());
  }
  Block overflow(overflow_stride * ranks);
  for (std::uint32_t r = 1; r < ranks; ++r) {
    std::memcpy(overflow.data() + r * overflow_stride, sent[r].overflow.data(), sent[r].overflow.size());
  }

  std::vector<std::uint16_t> out(value_stride * ranks, untouched);
  std::vector<codec::MessageSummary> summaries(ranks);
  codec::DecodeJob job;
  job.messages = messages.data();
  job.message_stride = message_stride;
  job.message_count = ranks;
  job.skip = skipped;
  job.values = out.data();
  job.value_stride = value_stride * sizeof(std::uint16_t);
  job.count = count;
  job.pool_fraction = 300;
  job.sequence = 12;
  job.chunk = 9;
  job.summaries = summaries.data();
  REQUIRE(Engine::decode(job) == Status::ok);
  job.overflow = overflow.data();
  job.overflow_stride = overflow_stride;
  job.overflow_step = overflow_stride;
  job.overflow_size = overflow_stride;
  REQUIRE(Engine::decode(job) == Status::ok);

  for (std::uint32_t r = 0; r < ranks; ++r) {
    CAPTURE(r);
    const auto got = std::span(out).subspan(r * value_stride, value_stride);
    CHECK((sent[r].overflow.size() > 0) == (r > 0));
    CHECK((r == skipped ? is_untouched(got) : std::equal(values[r].begin(), values[r].end(), got.begin())));
    CHECK(is_untouched(got.subspan(count)));
    CHECK(summaries[r].status == 0);
    CHECK(summaries[r].entry_units == sent[r].header().entry_units);
    CHECK(summaries[r].overflow_tiles == sent[r].header().overflow_tiles);
  }
}

TEST_CASE("a corrupt message in a row leaves the others alone") {
  constexpr std::uint64_t count = 3000;
  const auto layout = codec::Layout::of(count, 64);
  const auto values = make_values(Fill::normal, count, 1);
  const Message message = encode(values, 64);
  Block messages(layout.static_bytes * 3);
  for (std::uint64_t m = 0; m < 3; ++m) {
    std::memcpy(messages.data() + m * layout.static_bytes, message.bytes.data(), layout.static_bytes);
  }
  messages.data()[layout.static_bytes] ^= 1;
  std::vector<std::uint16_t> out(count * 3, untouched);
  codec::MessageSummary summaries[3] = {};
  codec::DecodeJob job;
  job.messages = messages.data();
  job.message_stride = layout.static_bytes;
  job.message_count = 3;
  job.values = out.data();
  job.value_stride = count * sizeof(std::uint16_t);
  job.count = count;
  job.pool_fraction = 64;
  job.sequence = 1;
  job.summaries = summaries;
  REQUIRE(Engine::decode(job) == Status::ok);
  CHECK(summaries[0].status == 0);
  CHECK(summaries[1].status == static_cast<std::int32_t>(Status::bad_magic));
  CHECK(summaries[2].status == 0);
  CHECK(std::equal(values.begin(), values.end(), out.begin()));
  CHECK(is_untouched(std::span(out).subspan(count, count)));
  CHECK(std::equal(values.begin(), values.end(), out.begin() + 2 * count));
}

}  // namespace zipccl::test
