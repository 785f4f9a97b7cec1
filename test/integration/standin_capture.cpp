// The stand-in NCCL: what streams enqueue while they capture, and the graphs that this makes.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "test/standin/forked_ranks.hpp"
#include "test/unit/catch.hpp"

namespace standin::test {
namespace {

const zipccl_host_runtime_v1& runtime = zipccl_host_runtime;

void increment(void* counter) { ++*static_cast<int*>(counter); }
void ignore(void*) {}

struct Gate {
  std::atomic<bool> open = false;
  static void wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

// Appends a number to a list that streams share in an order which the test makes sure of.
struct Note {
  std::vector<int>* list;
  int number;
  static void write(void* note) { static_cast<Note*>(note)->list->push_back(static_cast<Note*>(note)->number); }
};

class ScopedEvent {
 public:
  ScopedEvent() { EXPECT(runtime.event_create(&event_) == 0); }
  ~ScopedEvent() { runtime.event_destroy(event_); }
  ScopedEvent(const ScopedEvent&) = delete;
  ScopedEvent& operator=(const ScopedEvent&) = delete;
  void* get() const { return event_; }

 private:
  void* event_ = nullptr;
};

int status_of(cudaStream_t stream) {
  int status = -1;
  EXPECT(runtime.stream_capture_status(stream, &status) == 0);
  return status;
}

void begin(const ScopedStream& stream) { EXPECT(runtime.stream_capture_begin(stream.get()) == 0); }

void* end(const ScopedStream& stream) {
  void* graph = nullptr;
  EXPECT(runtime.stream_capture_end(stream.get(), &graph) == 0);
  EXPECT(graph != nullptr);
  EXPECT(status_of(stream.get()) == ZIPCCL_CAPTURE_NONE);
  return graph;
}

void end_fails(const ScopedStream& stream) {
  void* graph = nullptr;
  EXPECT(runtime.stream_capture_end(stream.get(), &graph) != 0);
  EXPECT(graph == nullptr);
  EXPECT(status_of(stream.get()) == ZIPCCL_CAPTURE_NONE);
}

void enqueue(const ScopedStream& stream, void (*function)(void*), void* argument) {
  EXPECT(runtime.stream_enqueue(stream.get(), function, argument) == 0);
}
void record(const ScopedEvent& event, const ScopedStream& stream) {
  EXPECT(runtime.event_record(event.get(), stream.get()) == 0);
}
void wait(const ScopedStream& stream, const ScopedEvent& event) {
  EXPECT(runtime.stream_wait_event(stream.get(), event.get()) == 0);
}

void run_in_process(const std::function<void()>& body) {
  REQUIRE(all_zero(run_ranks(1, [&](int, const ncclUniqueId&) { body(); })));
}

}  // namespace

TEST_CASE("captured work runs with each launch and not before") {
  run_in_process([] {
    const ScopedStream stream;
    const ScopedStream other;
    int count = 0;
    int outside = 0;
    EXPECT(status_of(stream.get()) == ZIPCCL_CAPTURE_NONE);
    begin(stream);
    EXPECT(status_of(stream.get()) == ZIPCCL_CAPTURE_ACTIVE);
    EXPECT(status_of(other.get()) == ZIPCCL_CAPTURE_NONE);
    for (int i = 0; i < 3; ++i) enqueue(stream, increment, &count);
    enqueue(other, increment, &outside);
    EXPECT(runtime.device_synchronize() == 0);
    EXPECT(outside == 1);
    void* graph = end(stream);
    EXPECT(runtime.device_synchronize() == 0);
    EXPECT(count == 0);
    for (int launch = 0; launch < 2; ++launch) EXPECT(runtime.graph_launch(graph, stream.get()) == 0);
    stream.synchronize();
    EXPECT(count == 6);
    EXPECT(runtime.graph_launch(graph, other.get()) == 0);
    enqueue(other, increment, &outside);
    EXPECT(runtime.graph_launch(graph, nullptr) == 0);  // behind the launch on the other stream
    synchronize(nullptr);
    other.synchronize();
    EXPECT(count == 12);
    EXPECT(outside == 2);
    EXPECT(runtime.graph_destroy(graph) == 0);
  });
}

TEST_CASE("a stream joins a capture, runs beside the first one and is joined again") {
  run_in_process([] {
    const ScopedStream stream;
    const ScopedStream side;
    const ScopedEvent fork;
    const ScopedEvent join;
    std::vector<int> list;
    Note first{&list, 1};
    Note second{&list, 2};
    Note third{&list, 3};
    Gate gate;
    int beside = 0;
    begin(stream);
    enqueue(stream, Note::write, &first);
    record(fork, stream);
    wait(side, fork);
    EXPECT(status_of(side.get()) == ZIPCCL_CAPTURE_ACTIVE);
    enqueue(side, Gate::wait, &gate);
    enqueue(side, Note::write, &second);
    record(join, side);
    enqueue(stream, increment, &beside);
    const ScopedEvent reached;
    EXPECT(runtime.event_record_external(reached.get(), stream.get()) == 0);
    wait(stream, join);
    enqueue(stream, Note::write, &third);
    void* graph = end(stream);
    EXPECT(status_of(side.get()) == ZIPCCL_CAPTURE_NONE);
    for (int launch = 1; launch <= 3; ++launch) {
      gate.open = false;
      EXPECT(runtime.graph_launch(graph, stream.get()) == 0);
      EXPECT(runtime.event_synchronize(reached.get()) == 0);
      EXPECT(beside == launch);  // although the side stream is held
      gate.open = true;
      stream.synchronize();
    }
    EXPECT(list == std::vector<int>({1, 2, 3, 1, 2, 3, 1, 2, 3}));
    EXPECT(runtime.graph_destroy(graph) == 0);
  });
}

TEST_CASE("external events connect launches with what runs outside") {
  run_in_process([] {
    const ScopedStream stream;
    const ScopedStream outside;
    const ScopedEvent ready;
    const ScopedEvent done;
    std::vector<int> list;
    Note inner{&list, 1};
    Note outer{&list, 2};
    begin(stream);
    EXPECT(runtime.stream_wait_event_external(stream.get(), ready.get()) == 0);
    EXPECT(status_of(stream.get()) == ZIPCCL_CAPTURE_ACTIVE);
    enqueue(stream, Note::write, &inner);
    EXPECT(runtime.event_record_external(done.get(), stream.get()) == 0);
    void* graph = end(stream);
    int passed = 0;
    EXPECT(runtime.event_query(done.get(), &passed) == 0);
    EXPECT(passed == 1);                                     // never recorded: the capture has recorded nothing
    EXPECT(runtime.graph_launch(graph, stream.get()) == 0);  // `ready` was never recorded
    stream.synchronize();
    EXPECT(list == std::vector<int>({1}));
    for (int launch = 0; launch < 20; ++launch) {
      Gate gate;
      enqueue(outside, Gate::wait, &gate);
      enqueue(outside, Note::write, &outer);
      record(ready, outside);
      EXPECT(runtime.graph_launch(graph, stream.get()) == 0);
      wait(outside, done);  // this launch's record
      enqueue(outside, Note::write, &outer);
      EXPECT(runtime.event_query(done.get(), &passed) == 0);
      EXPECT(passed == 0);
      const std::size_t before = list.size();
      gate.open = true;
      outside.synchronize();
      EXPECT(list.size() == before + 3);
      EXPECT(std::vector<int>(list.end() - 3, list.end()) == std::vector<int>({2, 1, 2}));
    }
    EXPECT(runtime.graph_destroy(graph) == 0);
    // Outside a capture they are the ordinary ones.
    Gate gate;
    int count = 0;
    enqueue(outside, Gate::wait, &gate);
    EXPECT(runtime.event_record_external(ready.get(), outside.get()) == 0);
    EXPECT(runtime.stream_wait_event_external(stream.get(), ready.get()) == 0);
    enqueue(stream, increment, &count);
    EXPECT(runtime.event_query(ready.get(), &passed) == 0);
    EXPECT(passed == 0);
    gate.open = true;
    stream.synchronize();
    EXPECT(count == 1);
  });
}

TEST_CASE("two graphs that share a resource through one external event run in turn") {
  run_in_process([] {
    const ScopedStream streams[2];
    const ScopedEvent free;
    void* graphs[2] = {};
    int count = 0;  // not atomic: the event orders all access
    for (int index = 0; index < 2; ++index) {
      begin(streams[index]);
      EXPECT(runtime.stream_wait_event_external(streams[index].get(), free.get()) == 0);
      for (int i = 0; i < 10; ++i) enqueue(streams[index], increment, &count);
      EXPECT(runtime.event_record_external(free.get(), streams[index].get()) == 0);
      graphs[index] = end(streams[index]);
    }
    for (int launch = 0; launch < 50; ++launch) {
      for (int index = 0; index < 2; ++index) {
        EXPECT(runtime.graph_launch(graphs[index], streams[index].get()) == 0);
        EXPECT(runtime.stream_wait_event_external(streams[index].get(), free.get()) == 0);
        enqueue(streams[index], increment, &count);
        EXPECT(runtime.event_record_external(free.get(), streams[index].get()) == 0);
      }
    }
    EXPECT(runtime.device_synchronize() == 0);
    EXPECT(count == 50 * 2 * 11);
    for (void* graph : graphs) EXPECT(runtime.graph_destroy(graph) == 0);
  });
}

TEST_CASE("what CUDA does not allow within a capture spoils it") {
  run_in_process([] {
    const ScopedStream stream;
    const ScopedStream other;
    const ScopedEvent event;
    EXPECT(runtime.stream_capture_begin(nullptr) != 0);
    void* graph = nullptr;
    EXPECT(runtime.stream_capture_end(stream.get(), &graph) != 0);

    begin(stream);
    EXPECT(runtime.stream_capture_begin(stream.get()) != 0);
    EXPECT(runtime.stream_synchronize(stream.get()) != 0);
    EXPECT(status_of(stream.get()) == ZIPCCL_CAPTURE_INVALIDATED);
    end_fails(stream);

    record(event, other);  // outside
    begin(stream);
    EXPECT(runtime.stream_wait_event(stream.get(), event.get()) != 0);
    end_fails(stream);

    begin(stream);
    record(event, stream);
    int done = 0;
    EXPECT(runtime.event_query(event.get(), &done) != 0);
    end_fails(stream);
    EXPECT(runtime.event_synchronize(event.get()) != 0);
    EXPECT(runtime.stream_wait_event(other.get(), event.get()) != 0);  // its capture has ended
    record(event, other);
    EXPECT(runtime.event_synchronize(event.get()) == 0);

    begin(stream);
    begin(other);
    record(event, stream);
    EXPECT(runtime.stream_wait_event(other.get(), event.get()) != 0);
    end_fails(stream);
    end_fails(other);

    int count = 0;
    begin(stream);
    record(event, stream);
    wait(other, event);
    enqueue(other, increment, &count);
    EXPECT(runtime.stream_capture_end(other.get(), &graph) != 0);  // not its own
    EXPECT(status_of(stream.get()) == ZIPCCL_CAPTURE_INVALIDATED);
    end_fails(stream);

    begin(stream);
    record(event, stream);
    wait(other, event);
    enqueue(other, increment, &count);
    end_fails(stream);  // not joined
    EXPECT(status_of(other.get()) == ZIPCCL_CAPTURE_NONE);

    begin(stream);
    record(event, stream);
    wait(other, event);  // joins without work
    graph = end(stream);
    begin(stream);
    EXPECT(runtime.graph_launch(graph, stream.get()) != 0);
    EXPECT(runtime.graph_destroy(graph) == 0);
    EXPECT(runtime.graph_destroy(end(stream)) == 0);
    EXPECT(runtime.device_synchronize() == 0);
    EXPECT(count == 0);
  });
}

TEST_CASE("owned arguments are released once, when nothing can run any more") {
  run_in_process([] {
    static int released;
    const auto release = [](void* argument) {
      ++*static_cast<int*>(argument);
      ++released;
    };
    const ScopedStream stream;
    int argument = 0;
    released = 0;
    EXPECT(runtime.stream_enqueue_owned(stream.get(), increment, release, &argument) == 0);
    EXPECT(runtime.stream_enqueue(stream.get(), ignore, nullptr) == 0);
    stream.synchronize();
    EXPECT(argument == 2);
    EXPECT(released == 1);

    begin(stream);
    EXPECT(runtime.stream_enqueue_owned(stream.get(), increment, release, &argument) == 0);
    void* graph = end(stream);
    for (int launch = 0; launch < 3; ++launch) EXPECT(runtime.graph_launch(graph, stream.get()) == 0);
    stream.synchronize();
    EXPECT(argument == 5);
    EXPECT(released == 1);
    EXPECT(runtime.graph_launch(graph, stream.get()) == 0);
    EXPECT(runtime.graph_destroy(graph) == 0);  // waits for the launch
    EXPECT(argument == 7);
    EXPECT(released == 2);

    const auto not_a_stream = reinterpret_cast<cudaStream_t>(&argument);
    EXPECT(runtime.stream_enqueue_owned(not_a_stream, increment, release, &argument) != 0);
    EXPECT(released == 2);

    cudaStream_t short_lived = nullptr;
    EXPECT(runtime.stream_create(&short_lived) == 0);
    EXPECT(runtime.stream_capture_begin(short_lived) == 0);
    EXPECT(runtime.stream_enqueue_owned(short_lived, increment, release, &argument) == 0);
    EXPECT(runtime.stream_destroy(short_lived) == 0);  // and with it the capture
    EXPECT(argument == 8);
    EXPECT(released == 3);
  });
}

TEST_CASE("collectives and messages are captured, and keep their order among eager ones") {
  REQUIRE(all_zero(run_communicators(3, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    const ScopedStream side;
    const ScopedEvent fork;
    const ScopedEvent join;
    const int next = (rank + 1) % 3;
    const int previous = (rank + 2) % 3;
    std::vector<int> own(1000, rank);
    std::vector<int> all(3000, -1);
    std::vector<int> sum(3000, -1);
    std::vector<int> received(3000, -1);
    EXPECT(runtime.stream_capture_begin(stream) == 0);
    EXPECT_SUCCESS(ncclAllGather(own.data(), all.data(), own.size(), ncclInt32, comm, stream));
    EXPECT(runtime.event_record(fork.get(), stream) == 0);
    wait(side, fork);
    EXPECT_SUCCESS(ncclAllReduce(all.data(), sum.data(), all.size(), ncclInt32, ncclSum, comm, side.get()));
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(ncclSend(sum.data(), sum.size(), ncclInt32, next, comm, side.get()));
    EXPECT_SUCCESS(ncclRecv(received.data(), received.size(), ncclInt32, previous, comm, side.get()));
    EXPECT_SUCCESS(ncclGroupEnd());
    record(join, side);
    EXPECT(runtime.stream_wait_event(stream, join.get()) == 0);
    void* graph = nullptr;
    EXPECT(runtime.stream_capture_end(stream, &graph) == 0);
    EXPECT(all[0] == -1);
    for (int round = 0; round < 10; ++round) {
      synchronize(stream);
      own.assign(own.size(), rank + round);
      int eager = rank;
      int eager_sum = 0;
      // The same order on all ranks, on different streams.
      EXPECT_SUCCESS(ncclAllReduce(&eager, &eager_sum, 1, ncclInt32, ncclSum, comm, rank == 0 ? side.get() : nullptr));
      EXPECT(runtime.graph_launch(graph, stream) == 0);
      synchronize(stream);
      EXPECT(runtime.device_synchronize() == 0);
      EXPECT(eager_sum == 3);
      for (int from = 0; from < 3; ++from) {
        EXPECT(all[static_cast<std::size_t>(from) * 1000 + 999] == from + round);
        EXPECT(received[static_cast<std::size_t>(from) * 1000] == 3 * (from + round));
      }
    }
    EXPECT(runtime.graph_destroy(graph) == 0);
  })));
}

TEST_CASE("a group's streams are captured together or not at all") {
  REQUIRE(all_zero(run_communicators(2, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    const ScopedStream other;
    int out = rank;
    int in = -1;
    EXPECT(runtime.stream_capture_begin(stream) == 0);
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(ncclSend(&out, 1, ncclInt32, 1 - rank, comm, stream));
    EXPECT_SUCCESS(ncclRecv(&in, 1, ncclInt32, 1 - rank, comm, other.get()));
    EXPECT_RESULT(ncclGroupEnd(), ncclInvalidUsage);
    void* graph = nullptr;
    EXPECT(runtime.stream_capture_end(stream, &graph) == 0);
    EXPECT(runtime.graph_launch(graph, stream) == 0);  // empty
    synchronize(stream);
    EXPECT(in == -1);
    EXPECT(runtime.graph_destroy(graph) == 0);
  })));
}

TEST_CASE("a graph on a communicator that is finalized cannot be launched, and an abort ends a launch") {
  std::vector<int> endings = run_ranks(2, [](int rank, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    EXPECT_SUCCESS(ncclCommInitRank(&comm, 2, id, rank));
    const ScopedStream stream;
    int value = rank;
    int values[2] = {};
    begin(stream);
    EXPECT_SUCCESS(ncclAllGather(&value, values, 1, ncclInt32, comm, stream.get()));
    void* graph = end(stream);
    EXPECT(runtime.graph_launch(graph, stream.get()) == 0);
    stream.synchronize();
    EXPECT(values[1] == 1);
    if (rank == 0) {
      EXPECT(runtime.graph_launch(graph, stream.get()) == 0);  // the other rank never does
      EXPECT_SUCCESS(ncclCommAbort(comm));
      stream.synchronize();
    } else {
      EXPECT_SUCCESS(ncclCommDestroy(comm));
      EXPECT(runtime.graph_launch(graph, stream.get()) != 0);
      stream.synchronize();
    }
    EXPECT(runtime.graph_destroy(graph) == 0);
  });
  REQUIRE(all_zero(endings));
}

}  // namespace standin::test
