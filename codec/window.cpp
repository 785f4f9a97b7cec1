#include "codec/window.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "codec/traits.hpp"

namespace zipccl::codec {
namespace {

constexpr std::uint32_t highest_window = 255 - (window_exponents - 1);
constexpr int exponent_bias = 127;

// Smallest magnitude whose rounded value has an exponent field of at least `exponent`.
double lower_bound(std::uint32_t exponent) {
  if (exponent == 0) {
    return 0.0;
  }
  const double midpoint = 1.0 - std::ldexp(1.0, -(Bf16Traits::mantissa_bits + 2));
  return std::ldexp(midpoint, static_cast<int>(exponent) - exponent_bias);
}

}  // namespace

std::uint8_t window_start(std::span<const std::uint8_t> lane_maxima) {
  const std::uint32_t rank = window_rank(static_cast<std::uint32_t>(lane_maxima.size()));
  // Bit by bit, the largest exponent that at least `rank` maxima reach; counting beats sorting as it vectorises.
  std::uint32_t top = 0;
  for (std::uint32_t bit = 128; bit != 0; bit /= 2) {
    const auto candidate = static_cast<std::uint8_t>(top | bit);
    std::uint8_t reaching = 0;
    for (const std::uint8_t maximum : lane_maxima) {
      reaching = static_cast<std::uint8_t>(reaching + (maximum >= candidate));
    }
    if (reaching >= rank) {
      top = candidate;
    }
  }
  return static_cast<std::uint8_t>(std::max(top, window_exponents - 1) - (window_exponents - 1));
}

double escape_fraction(double sigma, std::uint32_t window) {
  const double scale = 1.0 / (sigma * std::numbers::sqrt2);
  return std::erf(lower_bound(window) * scale) + std::erfc(lower_bound(window + window_exponents) * scale);
}

std::uint32_t best_window(double sigma) {
  std::uint32_t best = 0;
  double smallest = escape_fraction(sigma, 0);
  for (std::uint32_t window = 1; window <= highest_window; ++window) {
    const double fraction = escape_fraction(sigma, window);
    if (fraction < smallest) {
      smallest = fraction;
      best = window;
    }
  }
  return best;
}

double best_window_log2(double sigma) {
  constexpr int n = window_exponents;
  return std::log2(sigma) + 0.5 * std::log2(2.0 * n * std::numbers::ln2 / (std::ldexp(1.0, 2 * n) - 1.0));
}

}  // namespace zipccl::codec
