// Both ranks of two communicators in one process, on a NCCL that prints what it is asked to end: aborted in one group,
// then made again and destroyed one by one. With arguments: a communicator is ended by one thread ("destroy" or
// "finalize"), which waits for work that never ends, and aborted by another ("alone" or "grouped").
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives/nccl_api.hpp"

extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
int null_nccl_questions();
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

int abort_while_ending(bool destroys, bool grouped) {
  const Communicators made = create();
  constexpr std::size_t count = 40000;
  const std::vector<std::uint16_t> send(count);
  std::vector<std::uint16_t> receive(2 * count);
  bool good = ncclAllGather(send.data(), receive.data(), count, ncclBfloat16, made[0], nullptr) == ncclSuccess;
  ncclResult_t ended = ncclInternalError;
  std::thread thread([&] { ended = destroys ? ncclCommDestroy(made[0]) : ncclCommFinalize(made[0]); });
  while (null_nccl_questions() == 0) {  // until it waits; the test has a limit
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::puts("aborting");
  std::fflush(stdout);
  good = good && (!grouped || ncclGroupStart() == ncclSuccess);
  good = good && ncclCommAbort(made[0]) == ncclSuccess;
  thread.join();  // whoever waits comes out before a group ends
  good = good && (!grouped || ncclGroupEnd() == ncclSuccess);
  std::puts("ended");
  return good && ended == ncclSuccess ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    return abort_while_ending(argv[1] == std::string_view("destroy"), argv[2] == std::string_view("grouped"));
  }
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
