// Memory that runs out on a helper thread for an instant, wherever it allocates while a communicator is created: the
// creation may fail, but nothing of it stays. And on the calling thread, when a class's first call needs a fence.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "switcher/fences.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/channel_fixture.hpp"
#include "test/unit/failing_memory.hpp"

namespace zipccl::test {
namespace {

using namespace std::chrono_literals;
using namespace zipccl::switcher;

// Most steps wait for an answer that was missed, so several run at the same time: each process has a memory of its own.
constexpr int process_count = 8;

enum class Outcome { spoiled, mended, untouched };

Outcome fail_at(int step) {
  // An answer may still be missed for want of memory, until these; in the second round nothing comes near them.
  const Limits limits{.connect = 2000ms, .answer = 2000ms, .introduction = 1500ms, .stranger = 2000ms};
  const Processes processes(2, limits);
  FailingMemory::fail_at(step, false, "zipccl");
  static_cast<void>(join_all(processes.all(), 2));
  const bool failed = FailingMemory::heal();
  for (Rendezvous* process : processes.all()) {
    if (!eventually([&] { return !process->awaited(); })) {
      std::fprintf(stderr, "step %d: others still wait for a process, as if it were not free to end\n", step);
      return Outcome::spoiled;
    }
  }
  // The second one may still meet a connection that only one end knows to be lost.
  std::vector<Joined> later;
  const auto agreed = [&] {
    return !later.empty() && std::all_of(later.begin(), later.end(), [](const Joined& one) { return one.agreed; });
  };
  for (int attempt = 0; attempt < 3 && !agreed(); ++attempt) {
    later = join_all(processes.all(), 2);
  }
  if (!agreed()) {
    std::fprintf(stderr, "step %d: a later creation fails: '%s', '%s'\n", step, later[0].why.c_str(),
                 later[1].why.c_str());
    return Outcome::spoiled;
  }
  return failed ? Outcome::mended : Outcome::untouched;
}

TEST_CASE("a helper thread that lacks memory for an instant spoils nothing for good") {
  std::vector<pid_t> children;
  for (int first = 0; first < process_count; ++first) {
    children.push_back(fork());
    REQUIRE(children.back() >= 0);
    if (children.back() == 0) {
      Outcome outcome = Outcome::mended;
      for (int step = first; outcome == Outcome::mended; step += process_count) {
        outcome = fail_at(step);
      }
      std::_Exit(outcome == Outcome::untouched ? 0 : 1);
    }
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

// The peer's messages for the class come in any case.
TEST_CASE("a gate for which there is no memory can be asked for again") {
  constexpr FenceClass fence_class{3, 1};
  constexpr const char* caller = "caller";
  const FenceSetting compressed{true, 16, 1 << 20};
  REQUIRE(pthread_setname_np(pthread_self(), caller) == 0);
  bool failed = true;
  for (int step = 0; failed; ++step) {
    const Processes processes(2);
    const std::vector<Joined> joined = join_all(processes.all(), 2);
    std::vector<std::unique_ptr<Fences>> fences;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      fences.push_back(std::make_unique<Fences>(*processes.all()[rank], *joined[rank].channel, rank));
      REQUIRE(fences.back()->start() == Status::ok);
    }
    FailingMemory::fail_at(step, false, caller);
    try {
      fences[0]->gate(fence_class, all_ranks(2), {});
    } catch (const std::bad_alloc&) {
    }
    failed = FailingMemory::heal();
    fences[1]->gate(fence_class, all_ranks(2), {}).wish(compressed);
    std::this_thread::sleep_for(20ms);  // the message is there
    fences[0]->gate(fence_class, all_ranks(2), {}).wish(compressed);
    for (const auto& own : fences) {
      REQUIRE(eventually([&] {
        FenceSetting setting;
        std::uint64_t call = 0;
        return own->gate(fence_class, all_ranks(2), {}).enter(&setting, &call) == Status::ok && setting == compressed;
      }));
    }
  }
}

}  // namespace
}  // namespace zipccl::test
