// How a value type splits into an exponent, which is coded, and the rest, which travels as it is. Engines are
// templates on these structs; a new type is a new struct, a new Dtype and an explicit instantiation.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "codec/format.hpp"

#ifdef __CUDACC__
#define ZIPCCL_HOST_DEVICE __host__ __device__
#else
#define ZIPCCL_HOST_DEVICE
#endif

namespace zipccl::codec {

// What a traits struct provides:
//   Value          unsigned integer of the type's width, holding its bits
//   dtype          its number in the message header
//   exponent(v)    the exponent field, at most 8 bits, in the low bits of a byte
//   rest(v)        sign and mantissa in one byte, no bit twice, none lost
//   join(e, r)     the value again: join(exponent(v), rest(v)) == v for all bit patterns v
//   mantissa_bits  for the window theory: where rounding moves a number to the next exponent
// Version 1 of the format has one byte a value for the rest, which BF16 (1 + 7 bits) fills. A type whose rest is wider
// (FP16: 11 bits, FP32: 24) or narrower (FP8: 4) needs its own sign-mantissa section, and with it a format version;
// codes, tails and entries serve every type whose exponent has at most 8 bits.
template <typename T>
concept ValueTraits = requires(typename T::Value value, std::uint8_t byte) {
  requires std::unsigned_integral<typename T::Value>;
  requires std::same_as<std::remove_const_t<decltype(T::dtype)>, Dtype>;
  requires std::same_as < std::remove_const_t<decltype(T::mantissa_bits)>,
  int > ;
  { T::exponent(value) } -> std::same_as<std::uint8_t>;
  { T::rest(value) } -> std::same_as<std::uint8_t>;
  { T::join(byte, byte) } -> std::same_as<typename T::Value>;
};

struct Bf16Traits {
  using Value = std::uint16_t;
  static constexpr Dtype dtype = Dtype::bfloat16;
  static constexpr int mantissa_bits = 7;

  ZIPCCL_HOST_DEVICE static constexpr std::uint8_t exponent(Value value) {
    return static_cast<std::uint8_t>(value >> 7);
  }
  ZIPCCL_HOST_DEVICE static constexpr std::uint8_t rest(Value value) {
    return static_cast<std::uint8_t>(((value >> 8) & 0x80) | (value & 0x7f));
  }
  ZIPCCL_HOST_DEVICE static constexpr Value join(std::uint8_t exponent, std::uint8_t rest) {
    return static_cast<Value>(((rest & 0x80) << 8) | (exponent << 7) | (rest & 0x7f));
  }
};
static_assert(ValueTraits<Bf16Traits>);

}  // namespace zipccl::codec
