#include "interpose/offspring.hpp"

#include <algorithm>
#include <utility>

namespace zipccl::interpose {

std::uint64_t Offspring::next_split() {
  const std::lock_guard lock(mutex_);
  return splits_++;
}

std::uint64_t Offspring::next_shrink(std::vector<int> excluded) {
  std::ranges::sort(excluded);
  const std::lock_guard lock(mutex_);
  return shrinks_[std::move(excluded)]++;
}

}  // namespace zipccl::interpose
