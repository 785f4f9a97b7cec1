// BF16 inputs for the codec's GPU tests: what tensors look like, and what they never look like.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

namespace zipccl::test {

using Values = std::vector<std::uint16_t>;

struct Input {
  std::string name;
  Values values;
};

std::uint16_t to_bf16(float value);  // rounds to nearest even

Values normal_values(std::size_t count, float sigma, std::uint64_t seed);
// Rows of 1,000 values whose sigmas span 2^-octaves to 2^octaves, every seventh row zero, as gradients have them.
Values mixture_values(std::size_t count, float octaves, std::uint64_t seed);
Values random_bits(std::size_t count, std::uint64_t seed);
// Exponents spread evenly over `width` neighbours: a tile escapes ever more as width grows.
Values spread_values(std::size_t count, unsigned width, std::uint64_t seed);

// All kinds, `count` values each; all 65,536 patterns in order and shuffled come first.
std::vector<Input> all_inputs(std::size_t count, std::uint64_t seed);

// A raw little-endian BF16 file.
Values read_values(const std::filesystem::path& path);

}  // namespace zipccl::test
