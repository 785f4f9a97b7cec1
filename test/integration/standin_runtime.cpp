// The stand-in NCCL: streams and events of its host runtime.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "test/standin/forked_ranks.hpp"
#include "test/unit/catch.hpp"

namespace standin::test {
namespace {

const zipccl_host_runtime_v1& runtime = zipccl_host_runtime;

// Work that a test holds back and releases.
struct Gate {
  std::atomic<bool> open = false;
  static void wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

void increment(void* counter) { ++*static_cast<int*>(counter); }

void run_in_process(const std::function<void()>& body) {
  REQUIRE(all_zero(run_ranks(1, [&](int, const ncclUniqueId&) { body(); })));
}

}  // namespace

TEST_CASE("the table says what it is") {
  REQUIRE(runtime.version == ZIPCCL_HOST_RUNTIME_VERSION);
  REQUIRE(runtime.size == sizeof(zipccl_host_runtime_v1));
}

TEST_CASE("streams run work in order and independently of each other") {
  run_in_process([] {
    const ScopedStream held;
    const ScopedStream free;
    Gate gate;
    int held_count = 0;
    int free_count = 0;
    int default_count = 0;
    EXPECT(runtime.stream_enqueue(held.get(), Gate::wait, &gate) == 0);
    for (int i = 0; i < 100; ++i) EXPECT(runtime.stream_enqueue(held.get(), increment, &held_count) == 0);
    EXPECT(runtime.stream_enqueue(free.get(), increment, &free_count) == 0);
    EXPECT(runtime.stream_enqueue(nullptr, increment, &default_count) == 0);
    free.synchronize();
    synchronize(nullptr);
    EXPECT(free_count == 1);
    EXPECT(default_count == 1);
    gate.open = true;
    EXPECT(runtime.device_synchronize() == 0);
    EXPECT(held_count == 100);
  });
}

TEST_CASE("events order streams and follow their latest record") {
  run_in_process([] {
    const ScopedStream first;
    const ScopedStream second;
    void* event = nullptr;
    EXPECT(runtime.event_create(&event) == 0);
    int done = 0;
    EXPECT(runtime.event_query(event, &done) == 0);
    EXPECT(done == 1);
    EXPECT(runtime.stream_wait_event(second.get(), event) == 0);  // never recorded: does not wait
    second.synchronize();
    Gate gate;
    int counter = 0;
    EXPECT(runtime.stream_enqueue(first.get(), Gate::wait, &gate) == 0);
    EXPECT(runtime.event_record(event, first.get()) == 0);
    EXPECT(runtime.stream_wait_event(second.get(), event) == 0);
    EXPECT(runtime.stream_enqueue(second.get(), increment, &counter) == 0);
    EXPECT(runtime.event_query(event, &done) == 0);
    EXPECT(done == 0);
    void* other = nullptr;
    EXPECT(runtime.event_create(&other) == 0);
    EXPECT(runtime.event_record(event, nullptr) == 0);  // does not change what `second` waits for
    EXPECT(runtime.event_synchronize(event) == 0);
    EXPECT(counter == 0);
    EXPECT(runtime.event_destroy(event) == 0);  // in use, which does no harm
    gate.open = true;
    EXPECT(runtime.event_record(other, second.get()) == 0);
    EXPECT(runtime.event_synchronize(other) == 0);
    EXPECT(counter == 1);
    EXPECT(runtime.event_destroy(other) == 0);
  });
}

TEST_CASE("destroying a stream waits for its work and ends its thread") {
  run_in_process([] {
    const ScopedStream first;  // sanitizers start a thread of their own with the first one
    int counter = 0;
    EXPECT(runtime.stream_enqueue(first.get(), increment, &counter) == 0);
    first.synchronize();
    const std::size_t threads = count_entries("task");
    cudaStream_t stream = nullptr;
    EXPECT(runtime.stream_create(&stream) == 0);
    EXPECT(count_entries("task") == threads);  // lazily
    for (int i = 0; i < 10; ++i) EXPECT(runtime.stream_enqueue(stream, increment, &counter) == 0);
    EXPECT(runtime.stream_destroy(stream) == 0);
    EXPECT(counter == 11);
    EXPECT(entries_become("task", threads));
    EXPECT(runtime.stream_synchronize(stream) != 0);
    EXPECT(runtime.stream_destroy(nullptr) != 0);
  });
}

TEST_CASE("memory is aligned to 256 bytes") {
  run_in_process([] {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{70000}}) {
      void* memory = nullptr;
      EXPECT(runtime.allocate(&memory, bytes) == 0);
      EXPECT(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
      EXPECT(runtime.release(memory) == 0);
    }
  });
}

TEST_CASE("a forked child and a process with a busy stream exit normally") {
  run_in_process([] {
    ncclComm_t comm = nullptr;
    EXPECT_SUCCESS(ncclCommInitAll(&comm, 1, nullptr));
    int data = 1;
    EXPECT_SUCCESS(ncclAllGather(&data, &data, 1, ncclInt32, comm, nullptr));
    synchronize(nullptr);
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) std::exit(0);
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(status == 0);
    static Gate never_opened;
    EXPECT(runtime.stream_enqueue(nullptr, Gate::wait, &never_opened) == 0);
    std::exit(0);
  });
}

}  // namespace standin::test
