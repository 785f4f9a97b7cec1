// Jobs whose calls change on the way: what they send, when a rank is late, when one dies. Every output is checked.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "test/integration/preload_job.hpp"
#include "test/support/helper_thread.hpp"

namespace preload {

namespace {

// A tenth of the values lies below the window: tiles need entries of 48 bytes.
std::uint16_t wide_value_of(int rank, std::size_t index) {
  const std::uint16_t value = value_of(rank, index);
  return index % 10 == 0 ? static_cast<std::uint16_t>(value - (10 << 7)) : value;
}

struct Phase {
  std::string kind;  // of values: good, random or wide
  int rank = -1;     // of the only rank that has them, the others' are good; -1: all have
  int calls = 0;
};

std::uint16_t value_in(const Phase& phase, int rank, int call, std::size_t index) {
  const std::size_t moved = index + static_cast<std::size_t>(call) * 977;
  if (phase.rank >= 0 && phase.rank != rank) {
    return value_of(rank, moved);
  }
  return phase.kind == "random" ? random_value_of(rank, moved)
         : phase.kind == "wide" ? wide_value_of(rank, moved)
                                : value_of(rank, moved);
}

struct Options {
  std::vector<Phase> phases;
  std::size_t count = standard_count;
  int ahead = 0;  // calls enqueued before the first is waited for, beside the current one
  int late_rank = -1;
  int simulating_rank = -1;  // which has NCCL simulate every fifth call first
  int dying_rank = -1;
  int dying_call = -1;
  int communicators = 1;
  bool grouped = false;    // calls on all communicators in one group
  int captured_call = -1;  // goes into a graph, which stands in for every seventh good call from there on
};

// good:40 random@3:20 count:1000 ahead:4 late:1 dies@2:7 simulates@0 communicators:24 grouped captures:9
Options parse(int argc, char** argv) {
  Options options;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string name = word.substr(0, word.find_first_of("@:"));
    const std::size_t at = word.find('@');
    const std::size_t colon = word.find(':');
    const int rank = at == std::string::npos ? -1 : std::atoi(word.c_str() + at + 1);
    const int number = colon == std::string::npos ? 0 : std::atoi(word.c_str() + colon + 1);
    if (name == "count") {
      options.count = static_cast<std::size_t>(number);
    } else if (name == "ahead") {
      options.ahead = number;
    } else if (name == "late") {
      options.late_rank = number;
    } else if (name == "simulates") {
      options.simulating_rank = rank;
    } else if (name == "dies") {
      options.dying_rank = rank;
      options.dying_call = number;
    } else if (name == "communicators") {
      options.communicators = number;
    } else if (name == "captures") {
      options.captured_call = number;
    } else if (name == "grouped") {
      options.grouped = true;
    } else {
      options.phases.push_back({name, rank, number});
    }
  }
  return options;
}

struct Buffers {
  std::vector<std::uint16_t> send, receive;
  const Phase* phase = nullptr;
  int call = -1;
};

void check(const Buffers& buffers, std::size_t count) {
  for (std::size_t r = 0; r < buffers.receive.size() / count; ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT(buffers.receive[r * count + i] == value_in(*buffers.phase, static_cast<int>(r), buffers.call, i));
    }
  }
}

// Ends the process well: the job has noticed that it cannot go on.
[[noreturn]] void give_up(ncclComm_t comm, const char* what, ncclResult_t result) {
  std::printf("%s %d\ndone\n", what, result);
  std::fflush(stdout);
  EXPECT(ncclCommAbort(comm) == ncclSuccess);
  std::_Exit(0);
}

void wait(const Stream& stream, ncclComm_t comm, bool peers_die) {
  void* event = nullptr;
  EXPECT(zipccl_host_runtime.event_create(&event) == 0);
  EXPECT(zipccl_host_runtime.event_record(event, stream.stream) == 0);
  for (int done = 0; done == 0;) {
    EXPECT(zipccl_host_runtime.event_query(event, &done) == 0);
    ncclResult_t state = ncclSuccess;
    EXPECT(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    if (state != ncclSuccess) {
      EXPECT(peers_die);
      give_up(comm, "lost", state);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  EXPECT(zipccl_host_runtime.event_destroy(event) == 0);
}

int changing(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::vector<ncclComm_t> comms;
  for (int i = 0; i < options.communicators; ++i) {
    comms.push_back(create());
  }
  const auto slots = static_cast<std::size_t>(options.ahead + 1) * comms.size();
  std::vector<Buffers> buffers(slots);
  for (Buffers& one : buffers) {
    one.send.resize(options.count);
    one.receive.resize(options.count * static_cast<std::size_t>(world_size()));
  }
  const Stream stream;
  const bool peers_die = options.dying_rank >= 0;
  void* graph = nullptr;
  int call = 0;
  std::size_t slot = 0;
  for (const Phase& phase : options.phases) {
    for (int i = 0; i < phase.calls; ++i, ++call) {
      zipccl::test::let_helper_work();
      if (rank_number() == options.late_rank && call % 10 == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      if (rank_number() == options.dying_rank && call == options.dying_call) {
        raise(SIGKILL);
      }
      if (rank_number() == options.simulating_rank && call % 5 == 0) {
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        EXPECT(ncclGroupStart() == ncclSuccess);
        EXPECT(ncclAllGather(buffers[slot].send.data(), buffers[slot].receive.data(), options.count, ncclBfloat16,
                             comms.front(), stream.stream) == ncclSuccess);
        EXPECT(ncclGroupSimulateEnd(&info) == ncclSuccess);
      }
      if (options.grouped) {
        EXPECT(ncclGroupStart() == ncclSuccess);
      }
      for (const ncclComm_t comm : comms) {
        Buffers& one = buffers[slot];
        if (slot == 0) {
          wait(stream, comm, peers_die);
        }
        if (one.call >= 0) {
          check(one, options.count);
        }
        one.phase = &phase;
        one.call = call;
        for (std::size_t j = 0; j < options.count; ++j) {
          one.send[j] = value_in(phase, rank_number(), call, j);
        }
        const bool by_graph = options.captured_call >= 0 && call >= options.captured_call &&
                              (call - options.captured_call) % 7 == 0 && phase.kind == "good";
        if (call == options.captured_call) {
          EXPECT(zipccl_host_runtime.stream_capture_begin(stream.stream) == 0);
        }
        const ncclResult_t result =
            by_graph && call != options.captured_call
                ? ncclSuccess
                : ncclAllGather(one.send.data(), one.receive.data(), options.count, ncclBfloat16, comm, stream.stream);
        if (call == options.captured_call) {
          EXPECT(zipccl_host_runtime.stream_capture_end(stream.stream, &graph) == 0);
        }
        if (by_graph) {
          EXPECT(zipccl_host_runtime.graph_launch(graph, stream.stream) == 0);
        }
        if (result != ncclSuccess) {
          EXPECT(peers_die);
          give_up(comm, "refused", result);
        }
        slot = (slot + 1) % slots;
      }
      if (options.grouped) {
        EXPECT(ncclGroupEnd() == ncclSuccess);
      }
    }
  }
  wait(stream, comms.front(), peers_die);
  for (const Buffers& one : buffers) {
    check(one, options.count);
  }
  if (graph != nullptr) {
    EXPECT(zipccl_host_runtime.graph_destroy(graph) == 0);
  }
  for (const ncclComm_t comm : comms) {
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }
  return 0;
}

// The last rank stops `microseconds` after it was the last to be ready, so that the others wait for its answer at the
// fence; then they abort. Now and then the answer is faster.
int stopped_at_fence(int microseconds) {
  ncclComm_t comm = create();
  const bool stops = rank_number() == world_size() - 1;
  constexpr int ready_call = 2;  // of a rank that has waited for each call
  constexpr int last_call = 30;
  std::vector<std::unique_ptr<Gather>> gathers;
  const Stream stream;
  for (int call = 0; call <= ready_call; ++call) {
    gathers.push_back(std::make_unique<Gather>(standard_count, everybody()));
    stream.wait();
    if (stops && call == ready_call) {
      EXPECT(std::system(("(sleep 2; kill -9 " + std::to_string(getpid()) + ") &").c_str()) == 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT(gathers.back()->call(comm, stream.stream) == ncclSuccess);
  }
  if (stops) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(microseconds)) {
    }
    raise(SIGSTOP);
    return 1;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  std::atomic<bool> aborted = false;
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    aborted = true;
    EXPECT(ncclCommAbort(comm) == ncclSuccess);
  });
  int call = ready_call + 1;
  ncclResult_t result = ncclSuccess;
  for (; call <= last_call && result == ncclSuccess && !aborted; ++call) {
    gathers.push_back(std::make_unique<Gather>(standard_count, everybody()));
    result = gathers.back()->call(comm, stream.stream);
  }
  std::printf("%s after call %d: %d\n", aborted ? "waited" : "did not wait", call - 1, result);
  aborter.join();
  return 0;
}

}  // namespace

int start_scenario(int argc, char** argv) {
  const std::string name = argc > 0 ? argv[0] : "";
  return name == "changing"                        ? changing(argc - 1, argv + 1)
         : name == "stopped-at-fence" && argc == 2 ? stopped_at_fence(std::atoi(argv[1]))
                                                   : 2;
}

}  // namespace preload
