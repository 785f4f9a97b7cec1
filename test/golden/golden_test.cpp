#include "test/golden/golden.hpp"

#include <algorithm>

#include "test/unit/catch.hpp"
#include "test/unit/plain_decoder.hpp"

namespace zipccl::test {
namespace {

bool equal(const Block& a, const Block& b) {
  return std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin(), b.bytes().end());
}

const std::vector<GoldenMessage>& golden_messages() {
  static const auto messages = load_golden(golden_folder());
  return messages;
}

}  // namespace

TEST_CASE("the golden files are all there") {
  const auto& messages = golden_messages();
  const auto valid = std::count_if(messages.begin(), messages.end(), [](auto& m) { return m.status == Status::ok; });
  CHECK(valid == 13);
  CHECK(messages.size() == 32);
  for (const Status status : {Status::bad_magic, Status::bad_version, Status::bad_dtype, Status::bad_count,
                              Status::bad_pool, Status::bad_sequence, Status::bad_totals, Status::bad_tile}) {
    CHECK(std::any_of(messages.begin(), messages.end(), [=](auto& m) { return m.status == status; }));
  }
}

TEST_CASE("golden messages decode as they always did") {
  for (const GoldenMessage& golden : golden_messages()) {
    CAPTURE(golden.name);
    REQUIRE(golden.message.bytes.size() == golden.message.layout().static_bytes);
    const Result result = decode(golden.message, 2048);
    CHECK(result.summary.status == static_cast<std::int32_t>(golden.status));
    if (golden.status == Status::ok) {
      CHECK(hash_values(result.values) == golden.hash);
    }
  }
}

TEST_CASE("the plain decoder agrees") {
  for (const GoldenMessage& golden : golden_messages()) {
    CAPTURE(golden.name);
    const Message& message = golden.message;
    const PlainMessage plain = plain_decode(message.bytes.bytes(), message.overflow.bytes(),
                                            {message.count, message.pool_fraction, message.sequence, message.chunk});
    Status status = plain.status;
    for (const PlainTile& tile : plain.tiles) {
      if (tile.status != Status::ok) {
        status = tile.status;
      }
    }
    CHECK(status == golden.status);
    if (golden.status == Status::ok) {
      CHECK(hash_values(plain.values) == golden.hash);
    }
  }
}

TEST_CASE("encoding the values of a golden message gives its bytes again") {
  for (const GoldenMessage& golden : golden_messages()) {
    if (golden.status != Status::ok) {
      continue;
    }
    CAPTURE(golden.name);
    const Message& message = golden.message;
    const Message again = encode(decode(message).values, message.pool_fraction, message.sequence, message.chunk);
    CHECK(equal(again.bytes, message.bytes));
    CHECK(equal(again.overflow, message.overflow));
  }
}

}  // namespace zipccl::test
