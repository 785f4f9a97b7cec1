// Memory that runs out on a helper thread for an instant, wherever it allocates while a communicator is created: the
// creation may fail, but nothing of it stays.
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "test/unit/catch.hpp"
#include "test/unit/channel_fixture.hpp"

namespace {

std::atomic<int> left = -1;  // allocations of helper threads until one fails; negative: none does

bool fails() {
  if (left.load() < 0) {
    return false;
  }
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return std::strcmp(name.data(), "zipccl") == 0 && left.fetch_sub(1) == 0;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace zipccl::test {
namespace {

using namespace std::chrono_literals;
using namespace zipccl::switcher;

TEST_CASE("a helper thread that lacks memory for an instant spoils nothing for good") {
  // An answer may still be missed for want of memory, until these; in the second round nothing comes near them.
  const Limits limits{.connect = 2000ms, .answer = 2000ms, .introduction = 1500ms, .stranger = 2000ms};
  bool failed = true;
  for (int step = 0; failed; ++step) {
    CAPTURE(step);
    const Processes processes(2, limits);
    left = step;
    static_cast<void>(join_all(processes.all(), 2));
    failed = left.exchange(-1) < 0;
    for (Rendezvous* process : processes.all()) {
      CHECK(eventually([&] { return !process->awaited(); }));
    }
    // The second one may still meet a connection that only one end knows to be lost.
    std::vector<Joined> later;
    for (int attempt = 0; attempt < 3 && (later.empty() || !later[0].agreed || !later[1].agreed); ++attempt) {
      later = join_all(processes.all(), 2);
    }
    for (const Joined& joined : later) {
      CAPTURE(joined.why);
      CHECK(joined.agreed);
    }
  }
}

}  // namespace
}  // namespace zipccl::test
