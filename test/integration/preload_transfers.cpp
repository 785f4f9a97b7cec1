// Scenarios of point to point and all-to-all: errors, aborts, deaths, children, memory.
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>

#include "test/integration/preload_job.hpp"
#include "test/support/helper_thread.hpp"

namespace preload {

namespace {

using Value = std::uint16_t (*)(int rank, std::size_t index);

// What a rank sends to the next one of its communicator and gets from the one before; `members` are the communicator's
// ranks as we count them.
struct Ring {
  std::vector<std::uint16_t> send, receive;
  int next = 0;
  int before = 0;
  int sender = 0;
  Value value;

  Ring(std::size_t count, const std::vector<int>& members, Value of = value_of)
      : send(count), receive(count), value(of) {
    const auto size = static_cast<int>(members.size());
    const auto own = static_cast<int>(std::ranges::find(members, rank_number()) - members.begin());
    next = (own + 1) % size;
    before = (own + size - 1) % size;
    sender = members[static_cast<std::size_t>(before)];
    for (std::size_t i = 0; i < count; ++i) {
      send[i] = value(rank_number(), i);
    }
  }
  explicit Ring(std::size_t count) : Ring(count, everybody()) {}

  // Within a group.
  void calls(ncclComm_t comm, cudaStream_t stream) {
    EXPECT(ncclSend(send.data(), send.size(), ncclBfloat16, next, comm, stream) == ncclSuccess);
    EXPECT(ncclRecv(receive.data(), receive.size(), ncclBfloat16, before, comm, stream) == ncclSuccess);
  }
  ncclResult_t group(ncclComm_t comm, cudaStream_t stream) {
    EXPECT(ncclGroupStart() == ncclSuccess);
    calls(comm, stream);
    return ncclGroupEnd();
  }
  void clear() { std::ranges::fill(receive, std::uint16_t{0}); }
  bool untouched() const {
    return std::ranges::all_of(receive, [](std::uint16_t one) { return one == 0; });
  }
  bool right() const {
    for (std::size_t i = 0; i < receive.size(); ++i) {
      if (receive[i] != value(sender, i)) {
        return false;
      }
    }
    return true;
  }
};

void ring_among(ncclComm_t comm, const std::vector<int>& members) {
  Ring ring(standard_count, members);
  const Stream stream;
  EXPECT(ring.group(comm, stream.stream) == ncclSuccess);
  stream.wait();
  EXPECT(ring.right());
}

// Whether it was so just before.
bool done(const Stream& stream) {
  void* event = nullptr;
  int is_done = 0;
  EXPECT(zipccl_host_runtime.event_create(&event) == 0);
  EXPECT(zipccl_host_runtime.event_record(event, stream.stream) == 0);
  EXPECT(zipccl_host_runtime.event_query(event, &is_done) == 0);
  EXPECT(zipccl_host_runtime.event_destroy(event) == 0);
  return is_done != 0;
}

// By the name of libraries that follow RCCL.
int other_name() {
  using Function = ncclResult_t (*)(const void*, void*, std::size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
  const auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "ncclAllToAll"));
  EXPECT(function != nullptr);
  ncclComm_t comm = create();
  const auto ranks = static_cast<std::size_t>(world_size());
  std::vector<std::uint16_t> send(standard_count * ranks);
  std::vector<std::uint16_t> receive(send.size());
  for (std::size_t i = 0; i < send.size(); ++i) {
    send[i] = value_of(rank_number(), i);
  }
  const Stream stream;
  EXPECT(function(send.data(), receive.data(), standard_count, ncclBfloat16, comm, stream.stream) == ncclSuccess);
  stream.wait();
  for (std::size_t i = 0; i < receive.size(); ++i) {
    const std::size_t place = static_cast<std::size_t>(rank_number()) * standard_count + i % standard_count;
    EXPECT(receive[i] == value_of(static_cast<int>(i / standard_count), place));
  }
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Rank 0 has every second group simulated first: nothing runs, and no rank counts it.
int simulated() {
  ncclComm_t comm = create();
  const Stream stream;
  for (int round = 0; round < 40; ++round) {
    zipccl::test::let_helper_work();
    Ring ring(standard_count);
    if (rank_number() == 0 && round % 2 == 0) {
      ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
      EXPECT(ncclGroupStart() == ncclSuccess);
      ring.calls(comm, stream.stream);
      EXPECT(ncclGroupSimulateEnd(&info) == ncclSuccess);
      stream.wait();
      EXPECT(ring.untouched());
    }
    EXPECT(ring.group(comm, stream.stream) == ncclSuccess);
    stream.wait();
    EXPECT(ring.right());
  }
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Groups with something wrong in the middle, on all ranks or (`everywhere` false) on rank 0 alone, and good ones
// between: NCCL drops the bad ones as a whole and goes on. With two communicators both are in every group.
int dropped(bool everywhere, std::size_t communicators = 1) {
  std::vector<ncclComm_t> comms;
  for (std::size_t index = 0; index < communicators; ++index) {
    comms.push_back(create());
  }
  const ncclComm_t comm = comms.front();
  const Stream stream;
  std::vector<float> word(64);
  const auto bad_peer = [&](Ring& ring) {
    return ncclSend(ring.send.data(), 4096, ncclBfloat16, world_size(), comm, stream.stream);
  };
  const auto no_buffer = [&](Ring&) {
    return ncclRecv(nullptr, standard_count, ncclBfloat16, (rank_number() + 1) % world_size(), comm, stream.stream);
  };
  const auto bad_root = [&](Ring&) {  // which only the real NCCL sees
    const ncclResult_t result =
        ncclBroadcast(word.data(), word.data(), word.size(), ncclFloat32, world_size(), comm, stream.stream);
    return result == ncclSuccess ? ncclInvalidArgument : result;
  };
  const std::vector<std::function<ncclResult_t(Ring&)>> faults = {bad_root, bad_peer, no_buffer};
  for (std::size_t round = 0; round < 60; ++round) {
    std::vector<Ring> rings(communicators, Ring(standard_count));
    const auto calls = [&] {
      EXPECT(ncclGroupStart() == ncclSuccess);
      for (std::size_t index = 0; index < communicators; ++index) {
        rings[index].calls(comms[index], stream.stream);
      }
    };
    if (round % 5 == 2 && (everywhere || rank_number() == 0)) {
      calls();
      Ring& ring = rings.front();
      EXPECT(faults[round / 5 % faults.size()](ring) == ncclInvalidArgument);
      ncclSend(ring.send.data(), ring.send.size(), ncclBfloat16, ring.next, comm, stream.stream);
      EXPECT(ncclGroupEnd() == ncclInvalidArgument);
      stream.wait();
      EXPECT(std::ranges::all_of(rings, &Ring::untouched));
    }
    calls();
    EXPECT(ncclGroupEnd() == ncclSuccess);
    stream.wait();
    EXPECT(std::ranges::all_of(rings, &Ring::right));
  }
  for (const ncclComm_t one : comms) {
    ncclResult_t state = ncclInternalError;
    EXPECT(ncclCommGetAsyncError(one, &state) == ncclSuccess && state == ncclSuccess);
    EXPECT(ncclCommDestroy(one) == ncclSuccess);
  }
  return 0;
}
int dropped_everywhere() { return dropped(true); }
int dropped_on_one() { return dropped(false); }
int dropped_of_two() { return dropped(true, 2); }
int dropped_on_one_of_two() { return dropped(false, 2); }

// Ends a rank that cannot go on.
void give_up(ncclComm_t comm, ncclResult_t result) {
  std::printf("gave up %d\ndone\n", result);
  std::fflush(stdout);
  EXPECT(ncclCommAbort(comm) == ncclSuccess);
  std::_Exit(0);
}

// Rank 0 alone has a group dropped that holds an all-gather, and makes it once more. Nothing is ever wrong, and a rank
// that cannot go on says so.
int dropped_gather() {
  ncclComm_t comm = create();
  const Stream stream;
  for (std::uint16_t round = 0; round < 10; ++round) {
    Gather gather(standard_count, everybody());
    std::ranges::fill(gather.send, round);
    if (round == 3 && rank_number() == 0) {
      EXPECT(ncclGroupStart() == ncclSuccess);
      EXPECT(gather.call(comm, stream.stream) == ncclSuccess);
      ncclBroadcast(gather.send.data(), gather.send.data(), 1, ncclUint8, world_size(), comm, stream.stream);
      EXPECT(ncclGroupEnd() == ncclInvalidArgument);
    }
    if (const ncclResult_t result = gather.call(comm, stream.stream); result != ncclSuccess) {
      give_up(comm, result);
    }
    stream.wait();  // it ends when the peer gives up, too
    ncclResult_t state = ncclSuccess;
    EXPECT(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    if (state != ncclSuccess) {
      give_up(comm, state);
    }
    EXPECT(std::ranges::all_of(gather.receive, [&](std::uint16_t one) { return one == round; }));
  }
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Ten groups' results, of which those are right that are 0.
int results() {
  ncclComm_t comm = create();
  const Stream stream;
  for (int round = 0; round < 10; ++round) {
    Ring ring(standard_count);
    const ncclResult_t result = ring.group(comm, stream.stream);
    stream.wait();
    EXPECT(result == ncclSuccess ? ring.right() : ring.untouched());
    std::printf("%d ", result);
  }
  std::puts("");
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Rank 0 alone has a group dropped before every round from `first` on that is a multiple of 8. If that comes while the
// ranks are about to change what is compressed, its calls fail; but nothing is ever wrong.
int dropped_late(int first) {
  ncclComm_t comm = create();
  const Stream stream;
  for (int round = 0; round < 60; ++round) {
    Ring ring(standard_count);
    if (rank_number() == 0 && round >= first && (round - first) % 8 == 0) {
      EXPECT(ncclGroupStart() == ncclSuccess);
      ring.calls(comm, stream.stream);
      ncclBroadcast(ring.send.data(), ring.send.data(), 1, ncclUint8, world_size(), comm, stream.stream);
      EXPECT(ncclGroupEnd() == ncclInvalidArgument);
    }
    if (const ncclResult_t result = ring.group(comm, stream.stream); result != ncclSuccess) {
      give_up(comm, result);
    }
    stream.wait();  // it ends when the peer gives up, too
    for (ncclResult_t state = ncclSuccess; !ring.right() && state == ncclSuccess;) {
      EXPECT(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
      if (state != ncclSuccess) {
        give_up(comm, state);
      }
    }
  }
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Nothing is sent without a buffer, as some programs do to be in step.
int empty() {
  ncclComm_t comm = create();
  const Stream stream;
  Ring ring(standard_count);
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclSend(nullptr, 0, ncclBfloat16, ring.next, comm, stream.stream) == ncclSuccess);
  EXPECT(ncclRecv(nullptr, 0, ncclBfloat16, ring.before, comm, stream.stream) == ncclSuccess);
  ring.calls(comm, stream.stream);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  stream.wait();
  EXPECT(ring.right());
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Two communicators whose calls odd ranks name in the other order, in a group and in groups of their own.
int orders() {
  std::vector<ncclComm_t> comms = {create(), create()};
  if (rank_number() % 2 == 1) {
    std::ranges::reverse(comms);
  }
  const Stream one;
  const Stream other;
  for (int round = 0; round < 30; ++round) {
    zipccl::test::let_helper_work();
    std::vector<Ring> rings(2, Ring(standard_count, everybody(), round % 4 == 3 ? random_value_of : value_of));
    const Stream& second = round % 2 == 0 ? one : other;
    EXPECT(ncclGroupStart() == ncclSuccess);
    rings[0].calls(comms[0], one.stream);
    rings[1].calls(comms[1], second.stream);
    EXPECT(ncclGroupEnd() == ncclSuccess);
    if (round % 2 == 1) {  // as NCCL demands of groups of their own: on streams of their own
      for (Ring& ring : rings) {
        EXPECT(ring.group(comms[&ring == &rings[1]], &ring == &rings[1] ? other.stream : one.stream) == ncclSuccess);
      }
    }
    one.wait();
    other.wait();
    EXPECT(rings[0].right() && rings[1].right());
  }
  for (ncclComm_t comm : comms) {
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }
  return 0;
}

// Rank 0 stops while its record is on the way: rank 1's decode waits for it, and an abort ends that, before rank 0 goes
// on.
int aborted_decode() {
  ncclComm_t comm = create();
  constexpr std::size_t long_to_ship = 16'000'000;
  Ring ring(long_to_ship, everybody(), random_value_of);
  const Stream stream;
  if (rank_number() == 0) {
    const std::string until_ended = "until [ -e " + word_path("ended", 1) + " ]; do sleep 0.1; done; ";
    const std::string go_on = "while kill -CONT " + std::to_string(getpid()) + "; do sleep 0.5; done";
    EXPECT(std::system(("(" + until_ended + go_on + ") >/dev/null 2>&1 &").c_str()) == 0);
    EXPECT(ncclSend(ring.send.data(), ring.send.size(), ncclBfloat16, 1, comm, stream.stream) == ncclSuccess);
    stream.wait();
    say("stops");
    raise(SIGSTOP);
    EXPECT(ncclCommAbort(comm) == ncclSuccess);
    return 0;
  }
  EXPECT(ncclRecv(ring.receive.data(), ring.receive.size(), ncclBfloat16, 0, comm, stream.stream) == ncclSuccess);
  await("stops", 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2000));
  std::puts(done(stream) ? "did not wait" : "waited");
  EXPECT(ncclCommAbort(comm) == ncclSuccess);
  stream.wait();
  say("ended");
  return 0;
}

// The last rank dies on the way; the others notice, give up and end.
int killed_peer() {
  ncclComm_t comm = create();
  const Stream stream;
  Ring ring(standard_count, everybody(), random_value_of);
  ncclResult_t result = ncclSuccess;
  ncclResult_t state = ncclSuccess;
  for (int round = 0; round < 1000 && result == ncclSuccess && state == ncclSuccess; ++round) {
    if (round == 20 && rank_number() == world_size() - 1) {
      raise(SIGKILL);
    }
    result = ring.group(comm, stream.stream);
    while (result == ncclSuccess && state == ncclSuccess && !done(stream)) {
      EXPECT(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  std::printf("lost %d\n", result != ncclSuccess ? result : state);
  EXPECT(ncclCommAbort(comm) == ncclSuccess);
  return 0;
}

int children() {
  ncclComm_t comm = create();
  ncclComm_t half = nullptr;
  const int color = rank_number() % 2;
  EXPECT(ncclCommSplit(comm, color, -rank_number(), &half, nullptr) == ncclSuccess);
  std::vector<int> members;
  for (int rank = color; rank < world_size(); rank += 2) {
    members.insert(members.begin(), rank);
  }
  ring_among(half, members);
  ring_among(comm, everybody());
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  ring_among(half, members);
  EXPECT(ncclCommDestroy(half) == ncclSuccess);
  return 0;
}

// The first group of all goes into a graph.
int captured_first() {
  ncclComm_t comm = create();
  const Stream stream;
  Ring ring(standard_count);
  void* graph = nullptr;
  EXPECT(zipccl_host_runtime.stream_capture_begin(stream.stream) == 0);
  EXPECT(ring.group(comm, stream.stream) == ncclSuccess);
  EXPECT(zipccl_host_runtime.stream_capture_end(stream.stream, &graph) == 0);
  EXPECT(zipccl_host_runtime.graph_launch(graph, stream.stream) == 0);
  stream.wait();
  EXPECT(ring.right());
  EXPECT(zipccl_host_runtime.graph_destroy(graph) == 0);
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Rank 1 aborts when a call of rank 0's waits for it: rank 0 hears of the loss, makes another call ("call") or none,
// and ends the communicator. Its decode finds no message, or that of a call before, whose overflow nobody has any more.
int lost_then(const std::string& end) {
  ncclComm_t comm = create();
  const Stream stream;
  Ring ring(standard_count, everybody(), random_value_of);
  if (end != "call") {
    EXPECT(ring.group(comm, stream.stream) == ncclSuccess);
    stream.wait();
    EXPECT(ring.right());
  }
  if (rank_number() != 0) {
    await("called", 0);
    EXPECT(ncclCommAbort(comm) == ncclSuccess);
    await("ended", 0);  // a process that is gone would be missed
    return 0;
  }
  EXPECT(ring.group(comm, stream.stream) == ncclSuccess);
  say("called");
  for (ncclResult_t error = ncclSuccess; error == ncclSuccess;) {
    EXPECT(ncclCommGetAsyncError(comm, &error) == ncclSuccess);
  }
  if (end == "call") {
    stream.wait();
    EXPECT(ncclSend(ring.send.data(), ring.send.size(), ncclBfloat16, ring.next, comm, stream.stream) ==
           ncclRemoteError);
  } else if (end == "finalize") {
    EXPECT(ncclCommFinalize(comm) == ncclRemoteError);
  }
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  stream.wait();
  say("ended");
  return 0;
}

// No address space is left for staging.
int no_memory() {
  ncclComm_t comm = create();
  const Stream stream;
  Ring small(standard_count);
  EXPECT(small.group(comm, stream.stream) == ncclSuccess);
  stream.wait();
  EXPECT(small.right());
  Ring large(100'000'000);
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages;
  rlimit limit{};
  EXPECT(getrlimit(RLIMIT_AS, &limit) == 0);
  limit.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + (std::size_t{100} << 20);
  EXPECT(setrlimit(RLIMIT_AS, &limit) == 0);
  std::printf("large %d\n", large.group(comm, stream.stream));
  std::printf("small %d\n", small.group(comm, stream.stream));
  EXPECT(large.untouched());
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

}  // namespace

int transfer_scenario(int argc, char** argv) {
  const std::map<std::string, int (*)()> scenarios = {{"transfers-other-name", other_name},
                                                      {"transfers-simulated", simulated},
                                                      {"transfers-dropped", dropped_everywhere},
                                                      {"transfers-dropped-on-one", dropped_on_one},
                                                      {"transfers-dropped-of-two", dropped_of_two},
                                                      {"transfers-dropped-on-one-of-two", dropped_on_one_of_two},
                                                      {"transfers-dropped-gather", dropped_gather},
                                                      {"transfers-empty", empty},
                                                      {"transfers-results", results},
                                                      {"transfers-orders", orders},
                                                      {"transfers-aborted", aborted_decode},
                                                      {"transfers-killed", killed_peer},
                                                      {"transfers-children", children},
                                                      {"transfers-captured", captured_first},
                                                      {"transfers-no-memory", no_memory}};
  if (argc == 2 && std::strcmp(argv[0], "transfers-dropped-late") == 0) {
    return dropped_late(std::atoi(argv[1]));
  }
  if (argc == 2 && std::strcmp(argv[0], "transfers-lost") == 0) {
    return lost_then(argv[1]);
  }
  const auto found = scenarios.find(argc > 0 ? argv[0] : "");
  return found == scenarios.end() ? 2 : found->second();
}

}  // namespace preload
