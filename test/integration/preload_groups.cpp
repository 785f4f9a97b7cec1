// Scenarios of groups: NCCL joins the streams that one communicator's calls of a group name.
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "test/integration/preload_job.hpp"
#include "test/support/helper_thread.hpp"

namespace preload {

namespace {

using Values = std::vector<std::uint16_t>;

void enqueue(const Stream& stream, void (*function)(void*), void* argument) {
  EXPECT(zipccl_host_runtime.stream_enqueue(stream.stream, function, argument) == 0);
}

// A call of a group, all of whose sends are written late on one stream, and whose output is read on every stream.
struct JoinedCall {
  std::function<void(JoinedCall&, ncclComm_t, cudaStream_t)> call;
  Values send;
  Values receive;
  Values expected;
  std::array<Values, 2> seen;  // by stream
};

JoinedCall gather_call() {
  const auto ranks = static_cast<std::size_t>(world_size());
  JoinedCall made;
  made.send.resize(standard_count);
  made.receive.resize(standard_count * ranks);
  for (std::size_t i = 0; i < made.receive.size(); ++i) {
    made.expected.push_back(value_of(static_cast<int>(i / standard_count), i % standard_count));
  }
  made.call = [](JoinedCall& own, ncclComm_t comm, cudaStream_t stream) {
    EXPECT(ncclAllGather(own.send.data(), own.receive.data(), own.send.size(), ncclBfloat16, comm, stream) ==
           ncclSuccess);
  };
  return made;
}

JoinedCall ring_call() {
  JoinedCall made;
  made.send.resize(standard_count);
  made.receive.resize(standard_count);
  const int before = (rank_number() + world_size() - 1) % world_size();
  for (std::size_t i = 0; i < standard_count; ++i) {
    made.expected.push_back(value_of(before, i));
  }
  made.call = [=](JoinedCall& own, ncclComm_t comm, cudaStream_t stream) {
    const int next = (rank_number() + 1) % world_size();
    EXPECT(ncclSend(own.send.data(), own.send.size(), ncclBfloat16, next, comm, stream) == ncclSuccess);
    EXPECT(ncclRecv(own.receive.data(), own.receive.size(), ncclBfloat16, before, comm, stream) == ncclSuccess);
  };
  return made;
}

JoinedCall exchange_call() {
  const auto ranks = static_cast<std::size_t>(world_size());
  JoinedCall made;
  made.send.resize(standard_count * ranks);
  made.receive.resize(standard_count * ranks);
  for (std::size_t i = 0; i < made.receive.size(); ++i) {
    const std::size_t place = static_cast<std::size_t>(rank_number()) * standard_count + i % standard_count;
    made.expected.push_back(value_of(static_cast<int>(i / standard_count), place));
  }
  made.call = [](JoinedCall& own, ncclComm_t comm, cudaStream_t stream) {
    EXPECT(ncclAlltoAll(own.send.data(), own.receive.data(), standard_count, ncclBfloat16, comm, stream) ==
           ncclSuccess);
  };
  return made;
}

// Always native.
JoinedCall native_call() {
  JoinedCall made = gather_call();
  made.call = [](JoinedCall& own, ncclComm_t comm, cudaStream_t stream) {
    EXPECT(ncclAllGather(own.send.data(), own.receive.data(), own.send.size() * 2, ncclUint8, comm, stream) ==
           ncclSuccess);
  };
  return made;
}

// One group of two calls on two streams, of which `slow` writes what both send, some time after the group's end.
void joined(std::vector<JoinedCall> calls, ncclComm_t comm, std::size_t slow, const std::function<void()>& also) {
  const std::array<Stream, 2> streams;
  enqueue(
      streams[slow],
      [](void* argument) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        for (JoinedCall& call : *static_cast<std::vector<JoinedCall>*>(argument)) {
          for (std::size_t i = 0; i < call.send.size(); ++i) {
            call.send[i] = value_of(rank_number(), i);
          }
        }
      },
      &calls);
  EXPECT(ncclGroupStart() == ncclSuccess);
  for (std::size_t index = 0; index < calls.size(); ++index) {
    calls[index].call(calls[index], comm, streams[index].stream);
  }
  also();
  EXPECT(ncclGroupEnd() == ncclSuccess);
  struct Look {
    std::vector<JoinedCall>& calls;
    std::size_t stream;
  };
  std::array<Look, 2> looks = {{{calls, 0}, {calls, 1}}};
  for (Look& look : looks) {
    enqueue(
        streams[look.stream],
        [](void* argument) {
          const Look& own = *static_cast<Look*>(argument);
          for (JoinedCall& call : own.calls) {
            call.seen[own.stream] = call.receive;
          }
        },
        &look);
  }
  for (const Stream& stream : streams) {
    stream.wait();
  }
  for (const JoinedCall& call : calls) {
    EXPECT(call.seen[0] == call.expected);
    EXPECT(call.seen[1] == call.expected);
  }
}

// Whatever goes compressed, alone in its group or beside another communicator's call.
int joined_streams() {
  ncclComm_t comm = create();
  ncclComm_t other = create();
  using Make = JoinedCall (*)();
  constexpr std::array<Make, 3> makes = {gather_call, ring_call, native_call};
  for (const bool beside : {false, true}) {
    for (const Make one : makes) {
      for (const Make two : makes) {
        for (const std::size_t slow : {0u, 1u}) {
          Gather gather(standard_count, everybody());
          const Stream stream;
          joined({one(), two()}, comm, slow, [&] {
            if (beside) {
              EXPECT(gather.call(other, stream.stream) == ncclSuccess);
            }
          });
        }
      }
    }
  }
  EXPECT(ncclCommDestroy(other) == ncclSuccess);
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// NCCL leaves collectives of nothing out of a group: nothing waits for their stream.
int empty_collectives() {
  ncclComm_t comm = create();
  Gather gather(standard_count, everybody());
  std::atomic<bool> free = false;
  const Stream stream;
  const Stream held;
  enqueue(
      held, [](void* argument) { static_cast<std::atomic<bool>*>(argument)->wait(false); }, &free);
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(gather.call(comm, stream.stream) == ncclSuccess);
  EXPECT(ncclAllGather(nullptr, nullptr, 0, ncclBfloat16, comm, held.stream) == ncclSuccess);
  EXPECT(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, held.stream) == ncclSuccess);
  EXPECT(ncclAlltoAll(nullptr, nullptr, 0, ncclBfloat16, comm, held.stream) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  stream.wait();
  gather.check();
  free = true;
  free.notify_all();
  held.wait();
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Rank 0 makes calls that NCCL refuses, alone and outside any group: messages, from the given one on, whose type there
// is not. Nothing is ever wrong, and a rank that cannot go on says so.
int refused(int first) {
  ncclComm_t comm = create();
  const bool sends = rank_number() == 0;
  for (int round = 0; round < 60; ++round) {
    zipccl::test::let_helper_work();
    Values values(standard_count);
    const Stream stream;
    if (sends && round >= first) {
      EXPECT(ncclSend(values.data(), values.size(), ncclNumTypes, 1, comm, stream.stream) == ncclInvalidArgument);
    }
    for (std::size_t i = 0; sends && i < values.size(); ++i) {
      values[i] = value_of(round, i);
    }
    const ncclResult_t result = sends ? ncclSend(values.data(), values.size(), ncclBfloat16, 1, comm, stream.stream)
                                      : ncclRecv(values.data(), values.size(), ncclBfloat16, 0, comm, stream.stream);
    ncclResult_t state = ncclSuccess;
    if (result == ncclSuccess) {
      stream.wait();  // it ends when the peer gives up, too
      EXPECT(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    }
    if (result != ncclSuccess || state != ncclSuccess) {
      std::printf("gave up %d\ndone\n", result);
      std::fflush(stdout);
      EXPECT(ncclCommAbort(comm) == ncclSuccess);
      std::_Exit(0);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT(values[i] == value_of(round, i));
    }
  }
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// What rank 0 sends does not compress, and the all-gathers between do.
int unlike_classes() {
  ncclComm_t comm = create();
  for (int round = 0; round < 40; ++round) {
    zipccl::test::let_helper_work();
    Values values(standard_count);
    const Stream stream;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = random_value_of(round, i);
    }
    gather_and_check(comm);
    EXPECT((rank_number() == 0
                ? ncclSend(values.data(), values.size(), ncclBfloat16, 1, comm, stream.stream)
                : ncclRecv(values.data(), values.size(), ncclBfloat16, 0, comm, stream.stream)) == ncclSuccess);
    stream.wait();
  }
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// Captures that cannot become graphs, and groups of whose streams only one is captured: NCCL refuses what is called
// there, and goes on afterwards.
int spoilt_captures() {
  ncclComm_t comm = create();
  for (const auto make : {gather_call, ring_call, exchange_call}) {
    for (const bool first : {false, true}) {
      JoinedCall one = make();
      JoinedCall two = make();
      const Stream captured;
      const Stream eager;
      void* graph = nullptr;
      const auto begin = [&] { EXPECT(zipccl_host_runtime.stream_capture_begin(captured.stream) == 0); };
      const auto group = [&] {
        EXPECT(ncclGroupStart() == ncclSuccess);
        one.call(one, comm, first ? captured.stream : eager.stream);
        two.call(two, comm, first ? eager.stream : captured.stream);
        return ncclGroupEnd();
      };
      begin();
      EXPECT(group() == ncclInvalidUsage);
      EXPECT(zipccl_host_runtime.stream_capture_end(captured.stream, &graph) == 0);
      EXPECT(zipccl_host_runtime.graph_destroy(graph) == 0);
      begin();
      EXPECT(zipccl_host_runtime.stream_synchronize(captured.stream) != 0);
      EXPECT(group() != ncclSuccess);
      EXPECT(ncclGroupStart() == ncclSuccess);
      one.call(one, comm, captured.stream);
      static_cast<void>(ncclGroupEnd());
      EXPECT(zipccl_host_runtime.stream_capture_end(captured.stream, &graph) != 0);
      joined({one, two}, comm, 0, [] {});
    }
  }
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

}  // namespace

int group_scenario(int argc, char** argv) {
  const std::map<std::string, int (*)()> scenarios = {{"groups-joined-streams", joined_streams},
                                                      {"groups-empty-collectives", empty_collectives},
                                                      {"groups-spoilt-captures", spoilt_captures},
                                                      {"groups-unlike-classes", unlike_classes}};
  if (argc == 2 && std::string(argv[0]) == "groups-refused") {
    return refused(std::atoi(argv[1]));
  }
  const auto found = scenarios.find(argc > 0 ? argv[0] : "");
  return found == scenarios.end() ? 2 : found->second();
}

}  // namespace preload
