#include "test/support/ranks.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace zipccl::test {

struct Rank::Shared {
  pthread_barrier_t barrier;
  ncclUniqueId id;
  std::array<std::atomic<std::uint64_t>, counter_count> counters;
};

void check_nccl(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) {
    std::fprintf(stderr, "%s failed: %s\n", what, ncclGetErrorString(result));
    std::_Exit(1);
  }
}

void Rank::barrier() const { pthread_barrier_wait(&shared_->barrier); }

ncclUniqueId Rank::exchange_id(int root) const {
  if (rank_ == root) {
    check_nccl(ncclGetUniqueId(&shared_->id), "ncclGetUniqueId");
  }
  barrier();
  const ncclUniqueId id = shared_->id;
  barrier();
  return id;
}

ncclComm_t Rank::create_communicator(int root) const {
  const ncclUniqueId id = exchange_id(root);
  ncclComm_t communicator = nullptr;
  check_nccl(ncclCommInitRank(&communicator, size_, id, rank_), "ncclCommInitRank");
  return communicator;
}

std::atomic<std::uint64_t>& Rank::counter(int index) const {
  return shared_->counters[static_cast<std::size_t>(index)];
}

RankGroup::RankGroup(int size, bool share_gpu) : size_(size), share_gpu_(share_gpu) {
  void* memory = mmap(nullptr, sizeof(Rank::Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::_Exit(1);
  }
  shared_ = new (memory) Rank::Shared();
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared_->barrier, &attributes, static_cast<unsigned>(size));
  pthread_barrierattr_destroy(&attributes);
}

RankGroup::~RankGroup() { munmap(shared_, sizeof(Rank::Shared)); }

std::uint64_t RankGroup::counter(int index) const { return shared_->counters[static_cast<std::size_t>(index)].load(); }

int RankGroup::run(const std::function<int(const Rank&)>& body, int seconds, int victim) {
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int index = 0; index < size_; ++index) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setenv("LOCAL_RANK", std::to_string(index).c_str(), 1);
      if (share_gpu_) {
        setenv("NCCL_HOSTID", ("test-rank-" + std::to_string(index)).c_str(), 1);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
      }
      Rank rank;
      rank.shared_ = shared_;
      rank.rank_ = index;
      rank.size_ = size_;
      const int result = body(rank);
      std::exit(result);  // as a program ends: exit handlers run
    }
    children.push_back(child);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  int failures = 0;
  std::size_t running = children.size();
  while (running > 0) {
    for (std::size_t index = 0; index < children.size(); ++index) {
      int state = 0;
      if (children[index] <= 0 || waitpid(children[index], &state, WNOHANG) != children[index]) {
        continue;
      }
      children[index] = 0;
      --running;
      const bool dies = victim >= 0 && index == static_cast<std::size_t>(victim);
      if (dies ? !WIFSIGNALED(state) || WTERMSIG(state) != SIGKILL : !WIFEXITED(state) || WEXITSTATUS(state) != 0) {
        std::fprintf(stderr, "rank %zu ended with %s %d\n", index, WIFEXITED(state) ? "status" : "signal",
                     WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
        ++failures;
      }
    }
    if (failures > 0 || std::chrono::steady_clock::now() > deadline) {
      if (failures == 0) {
        std::fprintf(stderr, "ranks did not end within %d s\n", seconds);
        ++failures;
      }
      for (const pid_t child : children) {
        if (child > 0) {
          kill(child, SIGKILL);
        }
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return failures;
}

}  // namespace zipccl::test
