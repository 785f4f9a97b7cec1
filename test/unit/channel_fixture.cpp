#include "test/unit/channel_fixture.hpp"

#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <cstdio>
#include <exception>
#include <random>
#include <stdexcept>

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;
using Clock = std::chrono::steady_clock;

struct Shared {
  UniqueId id{};
  pthread_barrier_t barrier;
  std::array<std::atomic<std::uint64_t>, 16> counters{};
};

int run_forked(Shared* shared, std::uint32_t rank, std::uint32_t rank_count,
               const std::function<int(const ForkedRank&)>& body) {
  const auto barrier = [shared] { pthread_barrier_wait(&shared->barrier); };
  const auto rendezvous = Rendezvous::create("lo");
  if (rank == 0) shared->id = stamped_id(*rendezvous);
  barrier();
  const Joined joined = join(*rendezvous, shared->id, rank, rank_count, barrier);
  if (!joined.agreed) {
    std::fprintf(stderr, "rank %u: %s, %s\n", rank, describe(joined.status), joined.why.c_str());
    return 98;
  }
  return body({rank, rank_count, rendezvous.get(), joined.channel.get(), shared->id, barrier, shared->counters.data()});
}

}  // namespace

Joined join(Rendezvous& rendezvous, const UniqueId& id, std::uint32_t rank, std::uint32_t rank_count,
            const std::function<void()>& real_init) {
  Joined joined;
  std::unique_ptr<Session> session;
  joined.status = rendezvous.hello(invited(id), make_hello(rank, rank_count), &session, &joined.why);
  real_init();
  if (joined.status != Status::ok) return joined;
  Verdict verdict;
  joined.status = session->verdict(&verdict);
  joined.why = verdict.reason;
  if (joined.status != Status::ok || !verdict.compressed) return joined;
  joined.status = session->connect(&joined.channel, &joined.agreed, &joined.why);
  joined.parent = session->parent();
  return joined;
}

std::vector<Joined> join_all(const std::vector<Rendezvous*>& processes, std::uint32_t rank_count) {
  raise_descriptor_limit();
  const UniqueId id = stamped_id(*processes.front());
  std::vector<Joined> joined(rank_count);
  std::barrier real_init(static_cast<std::ptrdiff_t>(rank_count));
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < rank_count; ++rank) {
    threads.emplace_back([&, rank] {
      joined[rank] =
          join(*processes[rank % processes.size()], id, rank, rank_count, [&] { real_init.arrive_and_wait(); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

Processes::Processes(std::size_t count, const Limits& limits) {
  for (std::size_t i = 0; i < count; ++i) owned.push_back(create_rendezvous("lo", limits));
}

std::vector<Rendezvous*> Processes::all() const {
  std::vector<Rendezvous*> pointers;
  for (const auto& rendezvous : owned) pointers.push_back(rendezvous.get());
  return pointers;
}

std::vector<int> fork_ranks(std::uint32_t rank_count, const std::function<int(const ForkedRank&)>& body) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
  auto* const shared = new (memory) Shared;
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, rank_count);
  std::vector<pid_t> processes;
  for (std::uint32_t rank = 0; rank < rank_count; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      int status = 99;
      try {
        status = run_forked(shared, rank, rank_count, body);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %u: %s\n", rank, error.what());
      }
      _exit(status);
    }
    processes.push_back(process);
  }
  std::vector<int> statuses;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
  }
  munmap(memory, sizeof(Shared));
  return statuses;
}

switcher::Bytes make_record(const RecordKey& key, std::uint32_t receiver, std::size_t bytes) {
  std::vector<std::byte> record(bytes);
  std::uint64_t state = key.sender * 0x9e3779b97f4a7c15u + key.sequence * 0xbf58476d1ce4e5b9u + key.chunk * 977u +
                        receiver * 0x94d049bb133111ebu + 1;
  for (std::byte& value : record) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<std::byte>(state >> 56);
  }
  return std::make_shared<const std::vector<std::byte>>(std::move(record));
}

switcher::Bytes await_record(Channel& channel, const RecordKey& key) {
  switcher::Bytes record;
  Arrival arrival = Arrival::awaited;
  eventually(
      [&] {
        arrival = channel.find(key, &record);
        return arrival != Arrival::awaited;
      },
      std::chrono::seconds(60));
  return record;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::size_t open_descriptor_count() {
  std::size_t count = 0;
  DIR* const entries = opendir("/proc/self/fd");
  while (readdir(entries) != nullptr) ++count;
  closedir(entries);
  return count;
}

}  // namespace zipccl::test
