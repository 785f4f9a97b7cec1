// Values, messages and decodes for the codec's tests.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "codec/device.hpp"
#include "codec/format.hpp"

namespace zipccl::test {

// Bytes in a heap block of exactly their size, aligned as messages must be: sanitizers see every overrun. Filled with
// a pattern that no one should rely on.
class Block {
 public:
  explicit Block(std::uint64_t bytes);
  explicit Block(std::span<const std::uint8_t> bytes);
  std::uint8_t* data() { return data_.get(); }
  const std::uint8_t* data() const { return data_.get(); }
  std::uint64_t size() const { return size_; }
  std::span<const std::uint8_t> bytes() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::uint8_t* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<std::uint8_t, Free> data_;
  std::uint64_t size_;
};

struct Message {
  std::uint64_t count;
  std::uint32_t pool_fraction;
  std::uint64_t sequence;
  std::uint32_t chunk;
  Block bytes;     // static_bytes of them
  Block overflow;  // exactly what the message needs, which may be none

  codec::Layout layout() const { return codec::Layout::of(count, pool_fraction); }
  codec::MessageHeader header() const;
  void set_header(const codec::MessageHeader& header);
  std::uint8_t* tail(std::uint64_t tile) { return bytes.data() + layout().tails + tile * codec::tail_bytes; }
  std::uint8_t* codes(std::uint64_t tile) { return bytes.data() + layout().codes + tile * codec::code_bytes; }
};

// By the host engine. Fails the test if it refuses.
Message encode(std::span<const std::uint16_t> values, std::uint32_t pool_fraction, std::uint64_t sequence = 1,
               std::uint32_t chunk = 0);

struct Result {
  codec::MessageSummary summary;
  std::vector<std::uint16_t> values;
};

inline constexpr std::uint16_t untouched = 0x5AA5;  // what decode's output starts as

// The host engine's first pass.
Result decode_static(const Message& message);
// Its first pass, then the overflow in pieces that begin every `step` bytes.
Result decode(const Message& message, std::uint64_t step = std::uint64_t{1} << 40);
// One patch pass over `result`, with the bytes begin .. begin + size - 1 of the overflow present, in a Block of their
// own.
void patch(const Message& message, std::uint64_t begin, std::uint64_t step, std::uint64_t size, Result& result);

// Kinds of values; every kind fills any count, and the same seed gives the same values.
enum class Fill {
  normal,        // sigma 0.02
  normal_unit,   // sigma 1
  normal_tiny,   // sigma 1e-38: mostly denormals and low exponents
  mixture,       // normal, sigma changing by powers of two every few dozen values
  heavy_tails,   // normal to the fifth power
  zeros,         // of both signs
  sparse,        // 82 % zeros, the rest normal
  random_bits,   // all patterns alike
  nan_payloads,  // exponent 255
  denormals,     // exponent 0
  constant,      // one value
  outlier,       // one value but for one pattern per tile
  steps          // exponents that rise and fall through all 256
};
inline constexpr Fill all_fills[] = {Fill::normal,       Fill::normal_unit, Fill::normal_tiny, Fill::mixture,
                                     Fill::heavy_tails,  Fill::zeros,       Fill::sparse,      Fill::random_bits,
                                     Fill::nan_payloads, Fill::denormals,   Fill::constant,    Fill::outlier,
                                     Fill::steps};
std::vector<std::uint16_t> make_values(Fill fill, std::uint64_t count, std::uint64_t seed);

// Nearest BF16, ties to even.
std::uint16_t to_bf16(double value);

}  // namespace zipccl::test
