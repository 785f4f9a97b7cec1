// The fuzzer's check as a regression test, for builds without libFuzzer: valid messages of all kinds, mutated with
// fixed seeds, and the golden messages. Usage: decode-regression [ITERATIONS [SEED]].
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "test/fuzz/decode_check.hpp"
#include "test/golden/golden.hpp"

namespace zipccl::test {
namespace {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }

  Message make() {
    const Fill fill = all_fills[below(std::size(all_fills))];
    const std::uint64_t count = below(4) == 0 ? below(20) : below(3500);
    constexpr std::uint32_t fractions[] = {0, 10, 500, 4000, codec::max_pool_fraction};
    auto values = make_values(fill, count, random_());
    // A second kind in part of the message, so that tiles of several modes meet.
    const auto other = make_values(all_fills[below(std::size(all_fills))], count, random_());
    const std::uint64_t border = below(count + 1);
    std::copy(other.begin() + static_cast<std::ptrdiff_t>(border), other.end(),
              values.begin() + static_cast<std::ptrdiff_t>(border));
    return encode(values, fractions[below(std::size(fractions))], random_(), static_cast<std::uint32_t>(random_()));
  }

  void mutate(Message& message) {
    const codec::Layout layout = message.layout();
    switch (below(8)) {
      case 0:
        return damage(message.bytes.data(), sizeof(codec::MessageHeader));
      case 1:
        return damage(message.bytes.data() + layout.codes, layout.tiles * codec::code_bytes);
      case 2:
        return damage(message.bytes.data() + layout.pool, layout.static_bytes - layout.pool);
      case 3:
        return damage(message.overflow.data(), message.overflow.size());
      case 4:
        return change_totals(message);
      default:
        break;
    }
    if (layout.tiles == 0) {
      return;
    }
    std::uint8_t* tail = message.tail(below(layout.tiles));
    switch (below(5)) {
      case 0:
        tail[0] = interesting_byte();
        break;
      case 1:
        tail[1] = static_cast<std::uint8_t>(below(4) == 0 ? random_() : 1 | below(64) << codec::tail_units_shift);
        break;
      case 2: {
        // Near the ends of the pool and of all entries.
        const std::uint64_t ends[] = {layout.pool_units, message.header().entry_units, 0, 1u << 31};
        const auto first = static_cast<std::uint32_t>(ends[below(4)] + below(140) - 70);
        std::memcpy(tail + 28, &first, sizeof(first));
        break;
      }
      case 3:
        std::memcpy(tail, message.tail(below(layout.tiles)), codec::tail_bytes);
        break;
      default:
        damage(tail, codec::tail_bytes);
    }
  }

 private:
  std::uint8_t interesting_byte() {
    constexpr std::uint8_t bytes[] = {0, 1, 127, 128, 249, 250, 254, 255};
    return bytes[below(std::size(bytes))];
  }

  void damage(std::uint8_t* bytes, std::uint64_t size) {
    if (size == 0) {
      return;
    }
    const std::uint64_t begin = below(size);
    switch (below(3)) {
      case 0:
        bytes[begin] = static_cast<std::uint8_t>(bytes[begin] ^ 1 << below(8));
        break;
      case 1:
        bytes[begin] = interesting_byte();
        break;
      default:
        std::memset(bytes + begin, interesting_byte(), std::min<std::uint64_t>(size - begin, below(200)));
    }
  }

  // To totals that pass the header's checks, so that tiles have to be refused for themselves.
  void change_totals(Message& message) {
    codec::MessageHeader header = message.header();
    const codec::Layout layout = message.layout();
    header.entry_units = below(layout.tiles * codec::raw_entry_units + 1);
    header.overflow_tiles = header.entry_units > layout.pool_units ? 1 + below(layout.tiles) : 0;
    message.set_header(header);
  }

  std::mt19937_64 random_;
};

// The overflow as a receiver would have it, whatever the sender meant.
void fit_overflow(Message& message) {
  Block fitted(expected_overflow_bytes(message));
  std::copy_n(message.overflow.data(), std::min(message.overflow.size(), fitted.size()), fitted.data());
  message.overflow = std::move(fitted);
}

}  // namespace
}  // namespace zipccl::test

int main(int argc, char** argv) {
  using namespace zipccl::test;
  const std::uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 8000;
  const std::uint64_t first_seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;

  std::uint64_t replayed = 0;
  for (GoldenMessage& golden : load_golden(golden_folder())) {
    fit_overflow(golden.message);
    check_decode(golden.message, 512);
    ++replayed;
  }
  for (std::uint64_t i = 0; i < iterations; ++i) {
    Mutator mutator(first_seed + i);
    Message message = mutator.make();
    check_decode(message, 1024);
    for (std::uint64_t mutations = 1 + mutator.below(6); mutations > 0; --mutations) {
      mutator.mutate(message);
      fit_overflow(message);
      check_decode(message, (1 + mutator.below(200)) * zipccl::codec::unit_bytes);
    }
  }
  std::printf("%llu golden and %llu mutated messages checked\n", static_cast<unsigned long long>(replayed),
              static_cast<unsigned long long>(iterations));
  return replayed == 0;
}
