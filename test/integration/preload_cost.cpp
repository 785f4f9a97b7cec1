// Nanoseconds of calls that are not compressed, on a NCCL that does nothing: run it with and without libzipccl.so
// preloaded, the difference is what zipccl adds. Prints "NAME NANOSECONDS" lines, medians of many batches.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "collectives/nccl_api.hpp"

extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
}

namespace {

template <typename Call>
void measure(const char* name, Call call) {
  constexpr int batches = 101;
  constexpr int calls = 2000;
  std::array<double, batches> times{};
  for (double& time : times) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) {
      call();
    }
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    time = spent.count() / calls;
  }
  std::nth_element(times.begin(), times.begin() + batches / 2, times.end());
  std::printf("%s %.1f\n", name, times[batches / 2]);
}

}  // namespace

int main() {
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&comm, 1, id, 0) != ncclSuccess) {
    return 1;
  }
  measure("all_gather", [&] { ncclAllGather(nullptr, nullptr, 0, ncclFloat32, comm, nullptr); });
  measure("all_reduce", [&] { ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, nullptr); });
  measure("group", [&] {
    ncclGroupStart();
    ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, nullptr);
    ncclGroupEnd();
  });
  return ncclCommDestroy(comm) == ncclSuccess ? 0 : 1;
}
