// Every check of FORMAT.md 7, by the engine and by the plain decoder alike.
#include <cstring>
#include <functional>

#include "codec/host_engine.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/codec_messages.hpp"
#include "test/unit/plain_decoder.hpp"

namespace zipccl::test {
namespace {

// Three tiles: random bits (raw), steps (entry), normal (tail).
Message three_modes(std::uint32_t pool_fraction = codec::max_pool_fraction) {
  std::vector<std::uint16_t> values;
  for (const Fill fill : {Fill::random_bits, Fill::heavy_tails, Fill::normal}) {
    const auto more = make_values(fill, codec::tile_values, 8);
    values.insert(values.end(), more.begin(), more.end());
  }
  return encode(values, pool_fraction, 5, 6);
}

PlainMessage plain(const Message& message) {
  return plain_decode(message.bytes.bytes(), message.overflow.bytes(),
                      {message.count, message.pool_fraction, message.sequence, message.chunk});
}

void check_header_status(Status expected, const std::function<void(codec::MessageHeader&)>& change) {
  Message message = three_modes();
  codec::MessageHeader header = message.header();
  change(header);
  message.set_header(header);
  CAPTURE(describe(expected));
  const Result result = decode_static(message);
  CHECK(result.summary.status == static_cast<std::int32_t>(expected));
  CHECK(plain(message).status == expected);
  if (expected != Status::ok) {
    CHECK(result.values == std::vector<std::uint16_t>(message.count, untouched));
  }
}

// Changes tile `tile`; the engine and the plain decoder must both find it bad, or both find it good, and the other two
// tiles intact.
void check_tile(std::uint64_t tile, bool bad, const std::function<void(Message&)>& change) {
  Message message = three_modes();
  const Result good = decode_static(message);
  change(message);
  const Result result = decode_static(message);
  const PlainMessage reference = plain(message);
  CHECK(result.summary.status == static_cast<std::int32_t>(bad ? Status::bad_tile : Status::ok));
  CHECK(reference.tiles[tile].status == (bad ? Status::bad_tile : Status::ok));
  for (std::uint64_t i = 0; i < message.count; ++i) {
    if (i / codec::tile_values != tile) {
      REQUIRE(result.values[i] == good.values[i]);
    }
    if (!bad) {
      REQUIRE(result.values[i] == reference.values[i]);
    }
  }
}

void set_first_unit(Message& message, std::uint64_t tile, std::uint32_t first) {
  std::memcpy(message.tail(tile) + 28, &first, sizeof(first));
}

}  // namespace

TEST_CASE("the test message has all three modes") {
  const Message message = three_modes();
  const auto tiles = plain(message).tiles;
  CHECK(tiles[0].mode == 2);
  CHECK(tiles[1].mode == 1);
  CHECK(tiles[2].mode == 0);
  CHECK(tiles[1].escapes > 60);
  CHECK(tiles[1].far_escapes > 0);
  CHECK(tiles[2].escapes > 0);
}

TEST_CASE("header fields") {
  using Header = codec::MessageHeader;
  check_header_status(Status::ok, [](Header&) {});
  check_header_status(Status::bad_magic, [](Header& h) { h.magic ^= 0x100; });
  check_header_status(Status::bad_version, [](Header& h) { h.version = 2; });
  check_header_status(Status::bad_version, [](Header& h) { h.version = 0x101; });
  check_header_status(Status::bad_dtype, [](Header& h) { h.dtype = 0; });
  check_header_status(Status::bad_count, [](Header& h) { h.count -= 1; });
  check_header_status(Status::bad_count, [](Header& h) { h.count += std::uint64_t{1} << 32; });
  check_header_status(Status::bad_pool, [](Header& h) { h.pool_units += 1; });
  check_header_status(Status::bad_sequence, [](Header& h) { h.sequence += 1; });
  check_header_status(Status::bad_sequence, [](Header& h) { h.chunk += 1; });
  check_header_status(Status::bad_totals, [](Header& h) { h.entry_units = 3 * 64 + 1; });
  check_header_status(Status::bad_totals, [](Header& h) { h.escapes = h.count + 1; });
  check_header_status(Status::bad_totals, [](Header& h) { h.far_escapes = h.escapes + 1; });
  check_header_status(Status::bad_totals, [](Header& h) { h.overflow_tiles = 1; });
  // The first failing check decides.
  check_header_status(Status::bad_magic, [](Header& h) {
    h.magic = 0;
    h.version = 9;
    h.count = 0;
  });
  check_header_status(Status::bad_count, [](Header& h) {
    h.count = 0;
    h.sequence = 0;
    h.entry_units = ~0u;
  });
}

TEST_CASE("bytes that must be zero are ignored") {
  check_header_status(Status::ok, [](codec::MessageHeader& h) {
    h.reserved0 = 1;
    h.reserved1[0] = 1;
    h.reserved1[63] = 255;
  });
}

TEST_CASE("totals and overflow must agree") {
  const auto status_of = [](Message& message) { return decode_static(message).summary.status; };
  Message message = three_modes(0);
  REQUIRE(status_of(message) == 0);
  auto header = message.header();
  REQUIRE(header.overflow_tiles == 2);
  header.overflow_tiles = 0;
  message.set_header(header);
  CHECK(status_of(message) == static_cast<std::int32_t>(Status::bad_totals));
  header.overflow_tiles = 2;
  header.entry_units = 3 * codec::raw_entry_units + 1;
  message.set_header(header);
  CHECK(status_of(message) == static_cast<std::int32_t>(Status::bad_totals));
  header.entry_units = 3 * codec::raw_entry_units;
  message.set_header(header);
  CHECK(status_of(message) == static_cast<std::int32_t>(Status::ok));
  header.overflow_tiles = 4;
  message.set_header(header);
  CHECK(status_of(message) == static_cast<std::int32_t>(Status::bad_totals));
}

TEST_CASE("windows above 249") {
  for (const std::uint64_t tile : {0u, 1u, 2u}) {
    check_tile(tile, true, [=](Message& message) { message.tail(tile)[0] = 250; });
    check_tile(tile, true, [=](Message& message) { message.tail(tile)[0] = 255; });
    check_tile(tile, false, [=](Message& message) { message.tail(tile)[0] = 249; });
  }
}

TEST_CASE("modes") {
  for (const std::uint64_t tile : {0u, 1u, 2u}) {
    check_tile(tile, true, [=](Message& message) { message.tail(tile)[1] = 3; });
    check_tile(tile, true, [=](Message& message) { message.tail(tile)[1] = 4; });
    check_tile(tile, true, [=](Message& message) { message.tail(tile)[1] = 6; });
    check_tile(tile, true, [=](Message& message) { message.tail(tile)[1] = 255; });
  }
  // Raw needs nothing of codes and nibbles, only its 64 units.
  check_tile(1, false, [](Message& message) {
    message.tail(1)[1] = 2;
    set_first_unit(message, 1, 0);
  });
}

TEST_CASE("mode tail with too many escapes or far ones") {
  check_tile(1, true, [](Message& message) { message.tail(1)[1] = 0; });
  check_tile(2, true, [](Message& message) { message.tail(2)[2] |= 0x0f; });
  check_tile(2, true, [](Message& message) { std::memset(message.codes(2), 0xff, codec::code_bytes); });
}

TEST_CASE("nibbles without an escape are ignored") {
  check_tile(2, false, [](Message& message) { message.tail(2)[31] = 0xff; });
}

TEST_CASE("exponents beyond the ends wrap") {
  check_tile(2, false, [](Message& message) {
    message.tail(2)[0] = 0;
    std::memset(message.tail(2) + 2, 0xbd, 30);  // nibbles 13 and 11
  });
  check_tile(2, false, [](Message& message) {
    message.tail(2)[0] = 249;
    std::memset(message.tail(2) + 2, 0xcd, 30);  // nibbles 13 and 12
  });
}

TEST_CASE("entries that lie outside") {
  const std::uint32_t all = static_cast<std::uint32_t>(three_modes().header().entry_units);
  const unsigned units = plain(three_modes()).tiles[1].units;
  check_tile(0, true, [=](Message& message) { set_first_unit(message, 0, all - 63); });
  check_tile(0, true, [=](Message& message) { set_first_unit(message, 0, 0xffffffff); });
  check_tile(0, true, [=](Message& message) { set_first_unit(message, 0, 0x80000000); });
  check_tile(0, false, [=](Message& message) { set_first_unit(message, 0, all - 64); });
  check_tile(1, true, [=](Message& message) { set_first_unit(message, 1, all - units + 1); });
  check_tile(1, true, [=](Message& message) { set_first_unit(message, 1, 0xffffffff); });
}

TEST_CASE("units that contradict the escapes") {
  for (int change : {-1, 1}) {
    check_tile(1, true, [=](Message& message) {
      message.tail(1)[1] = static_cast<std::uint8_t>(message.tail(1)[1] + 4 * change);
      set_first_unit(message, 1, 0);
    });
  }
  check_tile(1, true, [](Message& message) { message.tail(1)[1] = 1; });
  // 1,024 escapes need 486 bytes of nibbles, more than the units say.
  check_tile(1, true, [](Message& message) { std::memset(message.codes(1), 0xff, codec::code_bytes); });
  // All far: 486 + 1,024 bytes, more than any entry has.
  check_tile(1, true, [](Message& message) {
    auto header = message.header();
    header.entry_units = 3 * codec::raw_entry_units;
    message.set_header(header);
    std::memset(message.codes(1), 0xff, codec::code_bytes);
    std::memset(message.tail(1) + 2, 0xff, 26);
    message.tail(1)[1] = 1 + 4 * 63;
    set_first_unit(message, 1, 128);
    std::memset(message.bytes.data() + message.layout().pool + 128 * 16, 0xff, 63 * 16);
  });
}

TEST_CASE("an entry without units") {
  check_tile(2, true, [](Message& message) {
    std::memset(message.codes(2), 0, codec::code_bytes);
    message.tail(2)[1] = 1;
    set_first_unit(message, 2, 0);
  });
}

TEST_CASE("errors need no summaries") {
  Message message = three_modes();
  message.bytes.data()[0] = 0;
  std::vector<std::uint16_t> out(message.count, untouched);
  codec::DecodeJob job;
  job.messages = message.bytes.data();
  job.message_count = 1;
  job.values = out.data();
  job.count = message.count;
  job.pool_fraction = message.pool_fraction;
  REQUIRE(codec::HostEngine<codec::Bf16Traits>::decode(job) == Status::ok);
  CHECK(out == std::vector<std::uint16_t>(message.count, untouched));
}

}  // namespace zipccl::test
