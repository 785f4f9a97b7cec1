// Both ranks of two communicators in one process, on a NCCL that prints what it is asked to end: aborted in one group,
// then made again and destroyed one by one.
#include <array>
#include <cstdio>

#include "collectives/nccl_api.hpp"

extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
}

namespace {

using Communicators = std::array<ncclComm_t, 2>;

Communicators create() {
  ncclUniqueId id{};
  Communicators made{};
  bool good = ncclGetUniqueId(&id) == ncclSuccess && ncclGroupStart() == ncclSuccess;
  for (int rank = 0; rank < 2; ++rank) {
    good = good && ncclCommInitRank(&made[static_cast<std::size_t>(rank)], 2, id, rank) == ncclSuccess;
  }
  if (!good || ncclGroupEnd() != ncclSuccess) {
    std::puts("failed");
  }
  std::puts("created");
  return made;
}

}  // namespace

int main() {
  Communicators made = create();
  bool good = ncclGroupStart() == ncclSuccess;
  for (ncclComm_t comm : made) {
    good = good && ncclCommAbort(comm) == ncclSuccess;
  }
  good = good && ncclGroupEnd() == ncclSuccess;
  std::puts("all aborted");
  made = create();
  for (ncclComm_t comm : made) {
    good = good && ncclCommDestroy(comm) == ncclSuccess;
  }
  return good ? 0 : 1;
}
