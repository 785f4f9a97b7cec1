// Forks the ranks of a test as processes that share a barrier, an id exchange and counters.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>

#include "test/support/nccl.hpp"

namespace zipccl::test {

// One rank process's view of the test.
class Rank {
 public:
  static constexpr int counter_count = 16;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void barrier() const;
  // Rank `root` makes a unique id, everybody gets it. All ranks call it, in the same order.
  ncclUniqueId exchange_id(int root = 0) const;
  ncclComm_t create_communicator(int root = 0) const;
  std::atomic<std::uint64_t>& counter(int index) const;  // shared by all ranks and the parent, starts at zero

 private:
  friend class RankGroup;
  struct Shared;
  Shared* shared_ = nullptr;
  int rank_ = 0;
  int size_ = 0;
};

class RankGroup {
 public:
  // share_gpu: every rank gets a NCCL_HOSTID of its own and sockets over loopback, as NCCL needs to put several ranks
  // on one GPU. Must be called before the process touches NCCL or CUDA.
  RankGroup(int size, bool share_gpu);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Runs `body` in `size` processes; 0 when all returned 0, but rank `victim`, if there is one, was ended by SIGKILL.
  // When one ends otherwise, or after `seconds`, the others are killed and the result is not 0.
  int run(const std::function<int(const Rank&)>& body, int seconds, int victim = -1);
  std::uint64_t counter(int index) const;
  int size() const { return size_; }

 private:
  Rank::Shared* shared_;
  int size_;
  bool share_gpu_;
};

void check_nccl(ncclResult_t result, const char* what);  // ends the process with a message

}  // namespace zipccl::test
