// SplitMix64: the same numbers on every rank and machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zipccl::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567) {}

  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
  }
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(bits() % end); }
  std::size_t between(std::size_t first, std::size_t last) { return first + below(last - first + 1); }
  int number(std::size_t end) { return static_cast<int>(below(end)); }
  bool chance(unsigned percent) { return below(100) < percent; }

  template <typename T>
  void shuffle(std::vector<T>* list) {
    for (std::size_t left = list->size(); left > 1; --left) std::swap((*list)[left - 1], (*list)[below(left)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace zipccl::test
