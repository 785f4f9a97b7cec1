// libFuzzer's entry. Input: 8 bytes of parameters, then the message, then its overflow; what is missing is zero. The
// header's agreed fields are put right unless a parameter says otherwise, for else nearly all inputs end there.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "test/fuzz/decode_check.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace zipccl;
  constexpr std::size_t parameter_bytes = 8;
  if (size < parameter_bytes) {
    return 0;
  }
  const auto parameter = [data](std::size_t i) { return std::uint32_t{data[i]} | std::uint32_t{data[i + 1]} << 8; };
  const std::uint64_t count = parameter(0) % 4000;
  const std::uint32_t pool_fraction = parameter(2) % (codec::max_pool_fraction + 1);
  const std::uint64_t step = std::uint64_t{1 + parameter(4) % 512} * codec::unit_bytes;
  const bool keep_header = data[6] == 0xff;
  std::span<const std::uint8_t> rest(data + parameter_bytes, size - parameter_bytes);
  const auto fill = [&rest](test::Block& block) {
    const std::size_t present = std::min<std::size_t>(rest.size(), block.size());
    if (block.size() == 0) {
      return;
    }
    std::memset(block.data(), 0, block.size());
    std::copy_n(rest.begin(), present, block.data());
    rest = rest.subspan(present);
  };

  const auto layout = codec::Layout::of(count, pool_fraction);
  test::Message message{count, pool_fraction, 1, 0, test::Block(layout.static_bytes), test::Block(0)};
  fill(message.bytes);
  if (!keep_header) {
    codec::MessageHeader header = message.header();
    header.magic = codec::format_magic;
    header.version = codec::format_version;
    header.dtype = static_cast<std::uint8_t>(codec::Dtype::bfloat16);
    header.count = count;
    header.sequence = message.sequence;
    header.chunk = message.chunk;
    header.pool_units = layout.pool_units;
    header.escapes %= count + 1;
    header.far_escapes %= header.escapes + 1;
    header.entry_units %= layout.tiles * codec::raw_entry_units + 1;
    header.overflow_tiles = header.entry_units > layout.pool_units ? 1 : 0;
    message.set_header(header);
  }
  message.overflow = test::Block(test::expected_overflow_bytes(message));
  fill(message.overflow);
  test::check_decode(message, step);
  return 0;
}
