#include "switcher/descriptors.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace zipccl::switcher::descriptors {
namespace {

constexpr std::size_t word_bits = 64;
constexpr std::size_t limit = std::size_t{1} << 20;

constinit std::array<std::atomic<std::uint64_t>, limit / word_bits> remembered{};  // untouched pages take no memory

std::uint64_t bit_of(std::size_t descriptor) { return std::uint64_t{1} << (descriptor % word_bits); }

}  // namespace

void remember(int descriptor) {
  const auto index = static_cast<std::size_t>(descriptor);
  if (descriptor >= 0 && index < limit) remembered[index / word_bits].fetch_or(bit_of(index));
}

bool forget(int descriptor) {
  const auto index = static_cast<std::size_t>(descriptor);
  if (descriptor < 0) return false;
  return index >= limit || (remembered[index / word_bits].fetch_and(~bit_of(index)) & bit_of(index)) != 0;
}

void close_all() {
  for (std::size_t word = 0; word < remembered.size(); ++word) {
    if (remembered[word].load() == 0) continue;  // the exchange would make the page the child's own
    for (std::uint64_t bits = remembered[word].exchange(0); bits != 0; bits &= bits - 1) {
      close(static_cast<int>(word * word_bits) + std::countr_zero(bits));
    }
  }
}

}  // namespace zipccl::switcher::descriptors
