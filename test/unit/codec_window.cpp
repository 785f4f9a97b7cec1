#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "codec/traits.hpp"
#include "codec/window.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/codec_messages.hpp"
#include "test/unit/plain_decoder.hpp"

namespace zipccl::codec {
namespace {

std::vector<std::uint16_t> normal_values(double sigma, std::uint64_t count) {
  auto values = test::make_values(test::Fill::normal_unit, count, 42);
  // Scaling a rounded value by a power of two is exact, so other sigmas are made from wide ones.
  for (auto& value : values) {
    value = test::to_bf16(sigma * std::bit_cast<float>(std::uint32_t{value} << 16));
  }
  return values;
}

double observed_escapes(const std::vector<std::uint16_t>& values, std::uint32_t window) {
  std::uint64_t outside = 0;
  for (const std::uint16_t value : values) {
    const std::uint32_t exponent = Bf16Traits::exponent(value);
    outside += exponent < window || exponent >= window + window_exponents;
  }
  return static_cast<double>(outside) / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("the rule takes the 14th largest of 32 lanes") {
  std::array<std::uint8_t, 32> maxima;
  std::iota(maxima.begin(), maxima.end(), std::uint8_t{100});  // 100 .. 131; the 14th largest is 118
  CHECK(window_start(maxima) == 112);
  std::reverse(maxima.begin(), maxima.end());
  CHECK(window_start(maxima) == 112);
  maxima.fill(5);
  CHECK(window_start(maxima) == 0);
  maxima.fill(255);
  CHECK(window_start(maxima) == 249);
  maxima.fill(0);
  CHECK(window_start(maxima) == 0);
}

TEST_CASE("ranks of partial tiles") {
  CHECK(window_rank(32) == 14);
  CHECK(window_rank(1) == 1);
  CHECK(window_rank(2) == 1);
  CHECK(window_rank(3) == 2);
  CHECK(window_rank(16) == 7);
  CHECK(window_rank(31) == 14);
  for (std::uint32_t lanes = 1; lanes <= 32; ++lanes) {
    CHECK(window_rank(lanes) <= lanes);
  }
}

TEST_CASE("the rule agrees with the plain one for any number of lanes") {
  for (std::uint64_t lanes = 1; lanes <= 32; ++lanes) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const auto values = test::make_values(test::Fill::random_bits, lanes * 8, seed);
      std::vector<std::uint8_t> maxima;
      for (std::uint64_t lane = 0; lane < lanes; ++lane) {
        std::uint8_t maximum = 0;
        for (std::uint64_t j = 0; j < 8; ++j) {
          maximum = std::max(maximum, Bf16Traits::exponent(values[8 * lane + j]));
        }
        maxima.push_back(maximum);
      }
      REQUIRE(window_start(maxima) == test::plain_window(values));
    }
  }
}

TEST_CASE("the best real-valued window starts at log2(sigma) - 5.36") {
  CHECK(std::abs(best_window_log2(1.0) + 5.36) <= 0.005);
  CHECK(std::abs(best_window_log2(0.02) - (std::log2(0.02) - 5.36)) <= 0.005);
}

TEST_CASE("the best window is that of the real-valued theory to within one exponent") {
  for (double sigma = 1e-6; sigma < 1e6; sigma *= 1.37) {
    CAPTURE(sigma);
    CHECK(std::abs(best_window(sigma) - (best_window_log2(sigma) + 127)) <= 1.0);
  }
}

TEST_CASE("the best window leaves 2.1 to 3.5 percent of a normal distribution outside") {
  double total = 0;
  int steps = 0;
  for (double sigma = 1; sigma < 2; sigma *= 1.05, ++steps) {
    const double fraction = escape_fraction(sigma, best_window(sigma));
    CHECK(fraction > 0.021);
    CHECK(fraction < 0.035);
    total += fraction;
  }
  CHECK(std::abs(total / steps - 0.025) <= 0.002);
}

TEST_CASE("windows at the ends of the exponent range") {
  CHECK(best_window(1e-44) == 0);
  CHECK(escape_fraction(1e-44, 0) <= 1e-12);
  CHECK(escape_fraction(1.0, 249) >= 1.0 - 1e-12);
  CHECK(escape_fraction(1.0, 0) >= 1.0 - 1e-12);
}

TEST_CASE("normal data escapes as the theory says, for every window near the best") {
  for (const double sigma : {0.02, 1.0, 1.3, 7e4}) {
    const auto values = normal_values(sigma, 1 << 18);
    for (std::uint32_t window = best_window(sigma) - 3; window <= best_window(sigma) + 3; ++window) {
      CAPTURE(sigma, window);
      const double expected = escape_fraction(sigma, window);
      // Four standard deviations of a binomial, and the double rounding of scaled values.
      const double margin = 4 * std::sqrt(expected / static_cast<double>(values.size())) + 1e-3;
      CHECK(std::abs(observed_escapes(values, window) - expected) <= margin);
    }
  }
}

TEST_CASE("on normal data the rule is within 0.3 points of the best window") {
  for (double sigma = 0.01; sigma < 0.02; sigma *= 1.1) {
    CAPTURE(sigma);
    const auto values = normal_values(sigma, 1 << 18);
    const auto message = test::encode(values, 64);
    const double fraction = static_cast<double>(message.header().escapes) / static_cast<double>(values.size());
    CHECK(fraction < escape_fraction(sigma, best_window(sigma)) + 0.003);
  }
}

}  // namespace zipccl::codec
