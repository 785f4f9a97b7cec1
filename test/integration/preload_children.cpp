// Scenarios of ncclCommSplit and ncclCommShrink.
#include <algorithm>
#include <csignal>
#include <cstring>

#include "test/integration/preload_job.hpp"

namespace preload {

namespace {

int children() {
  ncclComm_t comm = create();
  ncclComm_t half = nullptr;
  const int color = rank_number() % 2;
  EXPECT(ncclCommSplit(comm, color, rank_number(), &half, nullptr) == ncclSuccess);
  std::vector<int> members;
  for (int r = color; r < world_size(); r += 2) {
    members.push_back(r);
  }
  Gather gather(standard_count, members);
  const Stream stream;
  EXPECT(gather.call(half, stream.stream) == ncclSuccess);
  stream.wait();
  gather.check();
  EXPECT(ncclCommDestroy(half) == ncclSuccess);

  if (rank_number() != 0) {
    int excluded = 0;
    ncclComm_t rest = nullptr;
    EXPECT(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT) == ncclSuccess);
    std::vector<int> remaining = everybody();
    remaining.erase(remaining.begin());
    Gather after(standard_count, remaining);
    EXPECT(after.call(rest, stream.stream) == ncclSuccess);
    stream.wait();
    after.check();
    EXPECT(ncclCommDestroy(rest) == ncclSuccess);
  }
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Eight ranks: two splits in one group, one of them in reverse order; a grandchild of which only half the ranks are;
// the parent ends first.
int families() {
  ncclComm_t parent = create();
  const int rank = rank_number();
  const int count = world_size();
  ncclComm_t parity = nullptr;
  ncclComm_t half = nullptr;
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclCommSplit(parent, rank % 2, -rank, &parity, nullptr) == ncclSuccess);
  EXPECT(ncclCommSplit(parent, 7 * (2 * rank / count), 0, &half, nullptr) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  std::vector<int> same_parity;
  std::vector<int> same_half;
  for (int other = 0; other < count; ++other) {
    if (other % 2 == rank % 2) {
      same_parity.insert(same_parity.begin(), other);
    }
    if (2 * other / count == 2 * rank / count) {
      same_half.push_back(other);
    }
  }
  gather_among(parity, same_parity);
  gather_among(half, same_half);

  const std::vector<int> upper(same_parity.begin(), same_parity.begin() + static_cast<int>(same_parity.size() / 2));
  const bool in_upper = std::find(upper.begin(), upper.end(), rank) != upper.end();
  ncclComm_t grandchild = parity;
  EXPECT(ncclCommSplit(parity, in_upper ? 3 : NCCL_SPLIT_NOCOLOR, 0, &grandchild, nullptr) == ncclSuccess);
  EXPECT((grandchild != nullptr) == in_upper);
  EXPECT(ncclCommDestroy(parent) == ncclSuccess);
  gather_among(parity, same_parity);
  if (in_upper) {
    gather_among(grandchild, upper);
  }
  EXPECT(ncclCommDestroy(half) == ncclSuccess);
  EXPECT(ncclCommDestroy(parity) == ncclSuccess);
  if (in_upper) {
    gather_among(grandchild, upper);
    EXPECT(ncclCommDestroy(grandchild) == ncclSuccess);
  }
  return 0;
}

// Every rank ends as soon as its own child is there; the root's process is a member of one only.
int split_and_end() {
  ncclComm_t parent = create();
  ncclComm_t child = nullptr;
  const int color = rank_number() == 0 ? NCCL_SPLIT_NOCOLOR : 1;
  EXPECT(ncclCommSplit(parent, color, 0, &child, nullptr) == ncclSuccess);
  if (color == 1) {
    std::vector<int> others = everybody();
    others.erase(others.begin());
    gather_among(child, others);
    EXPECT(ncclCommDestroy(child) == ncclSuccess);
  }
  return 0;
}

// One rank dies, the others go on without it, and make a child of what is left.
int shrink_after_death(int dead) {
  ncclComm_t parent = create();
  gather_and_check(parent);
  if (rank_number() == dead) {
    raise(SIGKILL);
  }
  std::vector<int> left = everybody();
  left.erase(left.begin() + dead);
  ncclComm_t child = nullptr;
  EXPECT(ncclCommShrink(parent, &dead, 1, &child, nullptr, NCCL_SHRINK_ABORT) == ncclSuccess);
  EXPECT(ncclCommAbort(parent) == ncclSuccess);
  gather_among(child, left);
  ncclComm_t grandchild = nullptr;
  EXPECT(ncclCommSplit(child, 0, rank_number(), &grandchild, nullptr) == ncclSuccess);
  gather_among(grandchild, left);
  EXPECT(ncclCommDestroy(grandchild) == ncclSuccess);
  EXPECT(ncclCommDestroy(child) == ncclSuccess);
  return 0;
}

}  // namespace

int children_scenario(int argc, char** argv) {
  const std::string name = argc > 0 ? argv[0] : "";
  if (name == "children") {
    return children();
  }
  if (name == "families") {
    return families();
  }
  if (name == "split-and-end") {
    return split_and_end();
  }
  return name == "shrink-after-death" && argc == 2 ? shrink_after_death(std::atoi(argv[1])) : 2;
}

}  // namespace preload
