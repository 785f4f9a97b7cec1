#include "test/fuzz/decode_check.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "codec/host_engine.hpp"
#include "test/unit/plain_decoder.hpp"

namespace zipccl::test {
namespace {

void demand(bool holds, const char* what) {
  if (holds) {
    return;
  }
  std::fprintf(stderr, "decode check: %s\n", what);
  std::abort();
}

void compare(const Message& message, const PlainMessage& plain, const Result& result) {
  Status expected = plain.status;
  for (const PlainTile& tile : plain.tiles) {
    if (tile.status != Status::ok) {
      expected = tile.status;
    }
  }
  demand(result.summary.status == static_cast<std::int32_t>(expected), "status differs from the plain decoder's");
  if (plain.status != Status::ok) {
    demand(std::all_of(result.values.begin(), result.values.end(), [](auto value) { return value == untouched; }),
           "values written despite a bad header");
    return;
  }
  for (std::uint64_t i = 0; i < message.count; ++i) {
    if (plain.tiles[i / codec::tile_values].status != Status::ok) {
      continue;
    }
    demand(result.values[i] == plain.values[i], "value differs from the plain decoder's");
  }
}

}  // namespace

std::uint64_t expected_overflow_bytes(const Message& message) {
  const codec::Layout layout = message.layout();
  const codec::MessageHeader header = message.header();
  const Status status = codec::check_header(header, codec::Dtype::bfloat16, layout, message.sequence, message.chunk);
  return status == Status::ok ? layout.overflow_bytes(header.entry_units) : 0;
}

void check_decode(const Message& message, std::uint64_t step) {
  const PlainMessage plain = plain_decode(message.bytes.bytes(), message.overflow.bytes(),
                                          {message.count, message.pool_fraction, message.sequence, message.chunk});
  compare(message, plain, decode(message));
  compare(message, plain, decode(message, step));
  if (message.overflow.size() > 0) {
    Result result{{}, std::vector<std::uint16_t>(message.count, untouched)};
    const std::uint64_t begin = step % message.overflow.size() / codec::unit_bytes * codec::unit_bytes;
    patch(message, begin, step, std::min(step, message.overflow.size() - begin), result);
  }
}

}  // namespace zipccl::test
