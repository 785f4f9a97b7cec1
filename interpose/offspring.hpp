// What a communicator's children need of it: the agreement that theirs derive from, and their numbers.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "switcher/session.hpp"

namespace zipccl::interpose {

// Counts alike on all ranks, since NCCL demands that they make children in the same order. A call counts whether it
// succeeds or not. Thread-safe, but for admit().
class Offspring {
 public:
  // Before the communicator enters the table, if its ranks agreed. Without it children are native.
  void admit(switcher::ParentPointer parent) { parent_ = std::move(parent); }
  const switcher::ParentPointer& parent() const { return parent_; }

  std::uint64_t next_split();
  // Ranks that were left out of an earlier shrink have not counted it, hence a count for every set of them.
  std::uint64_t next_shrink(std::vector<int> excluded);

 private:
  switcher::ParentPointer parent_;
  std::mutex mutex_;
  std::uint64_t splits_ = 0;
  std::map<std::vector<int>, std::uint64_t> shrinks_;
};

}  // namespace zipccl::interpose
