// Deterministic BF16 test data: the same kind, count and seed give the same values on every rank and machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zipccl::test {

enum class Data : std::uint8_t {
  normal,    // N(0, 0.02): weights
  mixture,   // normal with another sigma, 2^-3 to 2^3 times, every 300 values and some zeros: gradients
  zeros,     // +0 alone
  patterns,  // all 65,536 patterns in a row: NaN payloads, denormals, both zeros
  random     // random bits: nearly every value escapes and most are far
};
inline constexpr int data_kinds = 5;

const char* to_string(Data kind);
std::vector<std::uint16_t> make_data(Data kind, std::size_t count, std::uint64_t seed);

}  // namespace zipccl::test
