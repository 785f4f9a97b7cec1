// Which seven exponents of a tile get a code of their own: the rule that engines use, and the theory for normally
// distributed values, by which the tests judge the rule.
#pragma once

#include <cstdint>
#include <span>

#include "codec/format.hpp"

namespace zipccl::codec {

// The rule of FORMAT.md 4.2: the lowest exponent of the window, from the largest exponent of each lane that has a
// value. 1 to 32 maxima.
std::uint8_t window_start(std::span<const std::uint8_t> lane_maxima);

// The rank in that rule: the window's top is the rank-th largest of `lanes` maxima.
constexpr std::uint32_t window_rank(std::uint32_t lanes) { return (14 * lanes + lane_count - 1) / lane_count; }

// The theory: X ~ N(0, sigma^2), rounded to BF16 to nearest even. Its exponent field reaches m >= 1 exactly if
// |X| >= 2^(m - 127) (1 - 2^-9), the midpoint below the power of two. With b(m) this bound, b(0) = 0, and
// P(|X| < b) = erf(b / (sigma sqrt 2)), the window w .. w + 6 leaves the fraction
//   erf(b(w) / (sigma sqrt 2)) + erfc(b(w + 7) / (sigma sqrt 2))
// outside. `window` is 0 to 249, sigma above zero.
double escape_fraction(double sigma, std::uint32_t window);

// The window of 0 to 249 with the smallest escape_fraction; the lowest such.
std::uint32_t best_window(double sigma);

// The same if windows could start anywhere: log2 of the lower end. Derivation: erf((2^7 t) / sqrt 2) - erf(t / sqrt 2)
// is largest where its derivative vanishes, 2^7 exp(-(2^7 t)^2 / 2) = exp(-t^2 / 2), hence t^2 = 14 ln 2 / (2^14 - 1)
// and log2(t) = -5.36. ZipCCL (arXiv 2604.27844) states it as log2(sigma) - 5.35.
double best_window_log2(double sigma);

}  // namespace zipccl::codec
