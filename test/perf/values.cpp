#include <algorithm>

#include "test/jobs/recorded.hpp"
#include "test/perf/exchange.hpp"
#include "test/support/data.hpp"

namespace zipccl::test {

namespace {

constexpr std::size_t block_values = std::size_t{4} << 20;  // of generated data, repeated

std::vector<std::uint16_t> make_block(const Options& options, std::uint64_t seed, const char* recorded_prefix) {
  if (options.input.rfind("recorded", 0) == 0) {
    const std::size_t colon = options.input.find(':');
    const std::string prefix = colon == std::string::npos ? recorded_prefix : options.input.substr(colon + 1);
    std::vector<std::uint16_t> recorded = read_recorded(options.data, prefix);
    if (recorded.empty()) {
      fail("no recorded tensors " + prefix + "*.bf16 in " + options.data);
    }
    return recorded;
  }
  for (const Data kind : {Data::normal, Data::random, Data::zeros}) {
    if (options.input == to_string(kind)) {
      return make_data(kind, block_values, seed);
    }
  }
  fail("unknown input '" + options.input + "'");
}

}  // namespace

Values::Values(const Options& options, std::uint64_t seed, const char* recorded_prefix)
    : block_(make_block(options, seed, recorded_prefix)), seed_(seed) {}

void Values::upload(Backend& backend, unsigned char* device, std::size_t part, std::size_t bytes) const {
  const auto* source = reinterpret_cast<const unsigned char*>(block_.data());
  const std::size_t block_bytes = block_.size() * sizeof(std::uint16_t);
  std::size_t begin = (seed_ + part * 7919 * 1024 + 2) / 2 * 2 % block_bytes;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, block_bytes - begin);
    backend.upload(device + done, source + begin, piece);
    done += piece;
    begin = 0;
  }
}

}  // namespace zipccl::test
