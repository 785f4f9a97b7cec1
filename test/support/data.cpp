#include "test/support/data.hpp"

#include <bit>
#include <cmath>

namespace zipccl::test {

namespace {

// SplitMix64: a state of one word, good bits, the same everywhere (std::normal_distribution is not).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
  }
  // Sum of four uniform numbers would have no tails; Box and Muller's does.
  float normal() {
    const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(bits() >> 11) + 1) * 0x1p-53));
    const double angle = 6.283185307179586 * static_cast<double>(bits() >> 11) * 0x1p-53;
    return static_cast<float>(radius * std::cos(angle));
  }

 private:
  std::uint64_t state_;
};

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

const char* to_string(Data kind) {
  switch (kind) {
    case Data::normal:
      return "normal";
    case Data::mixture:
      return "mixture";
    case Data::zeros:
      return "zeros";
    case Data::patterns:
      return "patterns";
    case Data::random:
      return "random";
  }
  return "unknown";
}

std::vector<std::uint16_t> make_data(Data kind, std::size_t count, std::uint64_t seed) {
  std::vector<std::uint16_t> values(count);
  Random random(seed);
  float sigma = 0.02F;
  for (std::size_t index = 0; index < count; ++index) {
    std::uint16_t& value = values[index];
    switch (kind) {
      case Data::normal:
        value = to_bfloat16(0.02F * random.normal());
        break;
      case Data::mixture:
        if (index % 300 == 0) {
          sigma = 0.02F * std::exp2(static_cast<float>(random.bits() % 7) - 3.0F);
        }
        value = random.bits() % 64 == 0 ? std::uint16_t{0} : to_bfloat16(sigma * random.normal());
        break;
      case Data::zeros:
        value = 0;
        break;
      case Data::patterns:
        value = static_cast<std::uint16_t>(index + seed * 977);
        break;
      case Data::random:
        value = static_cast<std::uint16_t>(random.bits());
        break;
    }
  }
  return values;
}

}  // namespace zipccl::test
