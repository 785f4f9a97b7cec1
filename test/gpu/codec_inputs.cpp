#include "test/gpu/codec_inputs.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <numeric>
#include <stdexcept>

namespace zipccl::test {

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

Values normal_values(std::size_t count, float sigma, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  Values values(count);
  for (auto& value : values) {
    value = to_bf16(normal(random));
  }
  return values;
}

Values mixture_values(std::size_t count, float octaves, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 1e-3f);
  std::uniform_real_distribution<float> octave(-octaves, octaves);
  Values values(count);
  float scale = 1.0f;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 1000 == 0) {
      scale = i / 1000 % 7 == 6 ? 0.0f : std::exp2(octave(random));
    }
    values[i] = to_bf16(normal(random) * scale);
  }
  return values;
}

Values random_bits(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Values values(count);
  for (auto& value : values) {
    value = static_cast<std::uint16_t>(random());
  }
  return values;
}

Values spread_values(std::size_t count, unsigned width, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Values values(count);
  for (auto& value : values) {
    const auto bits = random();
    const auto exponent = static_cast<unsigned>(120 - bits % width);
    value = static_cast<std::uint16_t>((bits >> 40 & 0x807f) | exponent << 7);
  }
  return values;
}

std::vector<Input> all_inputs(std::size_t count, std::uint64_t seed) {
  std::vector<Input> inputs;
  Values patterns(65536);
  std::iota(patterns.begin(), patterns.end(), std::uint16_t{0});
  inputs.push_back({"all patterns", patterns});
  std::shuffle(patterns.begin(), patterns.end(), std::mt19937_64(seed));
  inputs.push_back({"all patterns shuffled", patterns});

  inputs.push_back({"normal", normal_values(count, 0.02f, seed)});
  inputs.push_back({"mixture", mixture_values(count, 3.0f, seed)});
  inputs.push_back({"wide mixture", mixture_values(count, 60.0f, seed)});
  inputs.push_back({"zeros", Values(count, 0)});
  inputs.push_back({"negative zeros", Values(count, 0x8000)});
  inputs.push_back({"infinities", Values(count, 0x7f80)});
  inputs.push_back({"random bits", random_bits(count, seed)});
  for (const unsigned width : {7u, 8u, 12u, 21u, 40u, 110u}) {
    inputs.push_back({"spread over " + std::to_string(width), spread_values(count, width, seed)});
  }
  Values special = normal_values(count, 1.0f, seed);
  std::mt19937_64 random(seed);
  for (auto& value : special) {
    const auto bits = random();
    if (bits % 19 == 0) {
      value = static_cast<std::uint16_t>(0x7f80 | (bits >> 32 & 0x807f));  // NaN payloads, infinities
    }
    if (bits % 23 == 0) {
      value = static_cast<std::uint16_t>(bits >> 32 & 0x807f);  // denormals, both zeros
    }
  }
  inputs.push_back({"specials", std::move(special)});
  return inputs;
}

Values read_values(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  Values values(std::filesystem::file_size(path) / sizeof(std::uint16_t));
  if (!file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * 2))) {
    throw std::runtime_error("cannot read " + path.string());
  }
  return values;
}

}  // namespace zipccl::test
