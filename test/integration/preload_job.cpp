// The library of a job that knows nothing of zipccl: one rank of a scenario, on the stand-in NCCL. Environment: RANK,
// WORLD_SIZE and ID_DIRECTORY, where rank 0 leaves the unique ids. Prints what the test looks at; returns 0 if every
// call did what the scenario expects and all data is right.
#include "test/integration/preload_job.hpp"

#include <dirent.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>

namespace {

using namespace preload;

int all_gather() {
  ncclComm_t comm = create();
  gather_and_check(comm);
  gather_and_check(comm, ncclUint8);
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

int unique_id() {
  ncclUniqueId id{};
  EXPECT(ncclGetUniqueId(&id) == ncclSuccess);
  int stamped = 0;
  for (int i = 64; i < NCCL_UNIQUE_ID_BYTES; ++i) {
    stamped |= id.internal[i];
  }
  std::puts(stamped != 0 ? "stamped" : "plain");
  return 0;
}

// Communicators made inside a group, then groups of unlike calls on both.
int groups() {
  const ncclUniqueId first_id = exchange_id();
  const ncclUniqueId second_id = exchange_id();
  ncclComm_t first = nullptr;
  ncclComm_t second = nullptr;
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclCommInitRank(&first, world_size(), first_id, rank_number()) == ncclSuccess);
  EXPECT(ncclCommInitRank(&second, world_size(), second_id, rank_number()) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  // Another one inside a group that is recorded, because the first two compress.
  const ncclUniqueId third_id = exchange_id();
  ncclComm_t third = nullptr;
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclCommInitRank(&third, world_size(), third_id, rank_number()) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  EXPECT(third != nullptr);

  Gather a(standard_count, everybody());
  Gather b(standard_count + 3, everybody());
  Gather c(standard_count - 7, everybody());
  Gather bytes(1000, everybody());
  std::vector<std::int32_t> sum(100, rank_number());
  std::vector<std::uint8_t> word(10, static_cast<std::uint8_t>(rank_number() + 5));
  const Stream stream;
  const Stream other;
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(a.call(first, stream.stream) == ncclSuccess);
  EXPECT(ncclAllReduce(sum.data(), sum.data(), sum.size(), ncclInt32, ncclSum, first, stream.stream) == ncclSuccess);
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(b.call(second, other.stream) == ncclSuccess);
  EXPECT(bytes.call(second, other.stream, ncclUint8) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  EXPECT(ncclBroadcast(word.data(), word.data(), word.size(), ncclUint8, 0, second, other.stream) == ncclSuccess);
  EXPECT(c.call(third, stream.stream) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  stream.wait();
  other.wait();
  a.check();
  b.check();
  c.check();
  bytes.check();
  EXPECT(sum[99] == world_size() * (world_size() - 1) / 2);
  EXPECT(word[9] == 5);

  // Simulated: nothing runs.
  std::fill(a.receive.begin(), a.receive.end(), std::uint16_t{0});
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(a.call(first, stream.stream) == ncclSuccess);
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT(ncclGroupSimulateEnd(&info) == ncclSuccess);
  stream.wait();
  EXPECT(a.receive == std::vector<std::uint16_t>(a.receive.size()));

  // A group without a start is NCCL's to refuse; and an empty one is fine.
  EXPECT(ncclGroupEnd() != ncclSuccess);
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);

  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclCommDestroy(first) == ncclSuccess);
  EXPECT(ncclCommDestroy(second) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  EXPECT(ncclCommDestroy(third) == ncclSuccess);
  return 0;
}

// Every rank creates the same communicators in groups of its own choice.
int creation_order() {
  constexpr std::size_t count = 4;
  const std::vector<std::vector<std::vector<std::size_t>>> orders = {
      {{0, 1}, {2, 3}}, {{0}, {1, 2, 3}}, {{0}, {1}, {2}, {3}}, {{3, 2, 1, 0}}};
  std::vector<ncclUniqueId> ids(count);
  for (ncclUniqueId& id : ids) {
    id = exchange_id();
  }
  std::vector<ncclComm_t> comms(count);
  for (const auto& group : orders[static_cast<std::size_t>(rank_number()) % orders.size()]) {
    if (group.size() > 1) {
      EXPECT(ncclGroupStart() == ncclSuccess);
    }
    for (const std::size_t number : group) {
      EXPECT(ncclCommInitRank(&comms[number], world_size(), ids[number], rank_number()) == ncclSuccess);
    }
    if (group.size() > 1) {
      EXPECT(ncclGroupEnd() == ncclSuccess);
    }
  }
  for (ncclComm_t comm : comms) {
    gather_and_check(comm);
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }
  return 0;
}

// An operator that is destroyed inside the group that uses it, as PyTorch does.
int operators() {
  ncclComm_t comm = create();
  std::vector<float> halves(64, 2.0f);
  std::vector<float> thirds(64, 2.0f);
  const Stream stream;
  float scale = 0.5f;
  ncclRedOp_t half{};
  ncclRedOp_t triple{};
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclRedOpCreatePreMulSum(&half, &scale, ncclFloat32, ncclScalarHostImmediate, comm) == ncclSuccess);
  EXPECT(ncclAllReduce(halves.data(), halves.data(), halves.size(), ncclFloat32, half, comm, stream.stream) ==
         ncclSuccess);
  EXPECT(ncclRedOpDestroy(half, comm) == ncclSuccess);
  scale = 3.0f;
  EXPECT(ncclRedOpCreatePreMulSum(&triple, &scale, ncclFloat32, ncclScalarHostImmediate, comm) == ncclSuccess);
  EXPECT(ncclAllReduce(thirds.data(), thirds.data(), thirds.size(), ncclFloat32, triple, comm, stream.stream) ==
         ncclSuccess);
  EXPECT(ncclRedOpDestroy(triple, comm) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  stream.wait();
  EXPECT(halves[63] == 1.0f * static_cast<float>(world_size()));
  EXPECT(thirds[63] == 6.0f * static_cast<float>(world_size()));
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

int registered() {
  ncclComm_t comm = create();
  Gather gather(standard_count, everybody());
  const Stream stream;
  void* handle = nullptr;
  EXPECT(ncclCommRegister(comm, gather.receive.data() + 5, 64, &handle) == ncclSuccess);
  EXPECT(gather.call(comm, stream.stream) == ncclSuccess);
  stream.wait();
  gather.check();
  EXPECT(ncclCommDeregister(comm, handle) == ncclSuccess);
  EXPECT(gather.call(comm, stream.stream) == ncclSuccess);
  stream.wait();
  gather.check();
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

void wait_ready(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    EXPECT(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT(state == ncclSuccess);
}

int nonblocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = create(&config);
  wait_ready(comm);
  Gather gather(standard_count, everybody());
  const Stream stream;
  const ncclResult_t result = gather.call(comm, stream.stream);
  EXPECT(result == ncclSuccess || result == ncclInProgress);
  wait_ready(comm);
  stream.wait();
  gather.check();
  const ncclResult_t destroyed = ncclCommDestroy(comm);
  EXPECT(destroyed == ncclSuccess || destroyed == ncclInProgress);
  return 0;
}

// Only as many bytes of a configuration exist as it says.
int short_config() {
  const std::size_t size = offsetof(ncclConfig_t, blocking) + sizeof(int);
  const ncclConfig_t full = NCCL_CONFIG_INITIALIZER;
  std::vector<char> bytes(size);
  std::memcpy(bytes.data(), &full, size);
  std::memcpy(bytes.data(), &size, sizeof(size));
  ncclComm_t comm = create(reinterpret_cast<ncclConfig_t*>(bytes.data()));
  gather_and_check(comm);
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// The last rank dies; the others notice, give up and end.
int killed() {
  ncclComm_t comm = create();
  gather_and_check(comm);
  if (rank_number() == world_size() - 1) {
    raise(SIGKILL);
  }
  Gather gather(standard_count, everybody());
  const Stream stream;
  ncclResult_t result = gather.call(comm, stream.stream);
  ncclResult_t state = ncclSuccess;
  while (result == ncclSuccess && state == ncclSuccess) {
    EXPECT(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::printf("lost %d\n", result != ncclSuccess ? result : state);
  EXPECT(ncclCommAbort(comm) == ncclSuccess);
  return 0;
}

// Another thread aborts while this one waits for a rank that never calls, one rank after the other, and rank 0 at last.
int aborted() {
  ncclComm_t comm = create();
  gather_and_check(comm);
  if (rank_number() != 0) {
    std::atomic<bool> calls = false;
    std::thread aborter([&] {
      while (!calls) {
        std::this_thread::yield();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      if (rank_number() > 1) {
        await("aborted", rank_number() - 1);
      }
      EXPECT(ncclCommAbort(comm) == ncclSuccess);
    });
    Gather gather(standard_count, everybody());
    const Stream stream;
    calls = true;
    std::printf("call %d\n", gather.call(comm, stream.stream));
    aborter.join();
    say("aborted");
    return 0;
  }
  for (int rank = 1; rank < world_size(); ++rank) {
    await("aborted", rank);
  }
  EXPECT(ncclCommAbort(comm) == ncclSuccess);
  return 0;
}

long resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) {
      return std::atol(line.c_str() + 6);
    }
  }
  return 0;
}

int open_files() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) {
    ++count;
  }
  closedir(directory);
  return count;
}

// Communicators made, used and ended in a loop: files and memory must not grow.
int churn(int rounds) {
  int files = 0;
  long memory = 0;
  for (int round = 0; round < rounds; ++round) {
    ncclComm_t comm = create();
    gather_and_check(comm);
    EXPECT((round % 3 == 2 ? ncclCommAbort(comm) : ncclCommDestroy(comm)) == ncclSuccess);
    if (round == rounds / 3) {
      files = open_files();
      memory = resident_kib();
    }
  }
  // The root's end of a session closes a moment after the rank's.
  for (int attempt = 0; attempt < 2000 && open_files() > files; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::printf("files %d memory %ld\n", open_files() - files, resident_kib() - memory);
  return 0;
}

int run_child(const char* how) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::strcmp(how, "exec") == 0) {
      execl("/bin/sh", "sh", "-c", "exit 7", nullptr);
      _exit(1);
    }
    ncclUniqueId id{};
    const bool good = ncclGroupStart() == ncclSuccess && ncclGroupEnd() == ncclSuccess &&
                      ncclGetUniqueId(&id) == ncclSuccess && std::count(id.internal + 64, id.internal + 128, 0) == 64;
    std::exit(good ? 7 : 1);  // with exit handlers, unlike _exit
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int forks() {
  ncclComm_t comm = create();
  gather_and_check(comm);
  EXPECT(run_child("exec") == 7);
  EXPECT(run_child("fork") == 7);
  gather_and_check(comm);
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// A function that an old NCCL lacks: an error at the call, also inside a group, which is then dropped.
int all_to_all() {
  ncclComm_t comm = create();
  std::vector<float> send(64 * static_cast<std::size_t>(world_size()));
  std::vector<float> receive(send.size());
  const Stream stream;
  std::printf("alone %d\n", ncclAlltoAll(send.data(), receive.data(), 64, ncclFloat32, comm, stream.stream));
  Gather gather(standard_count, everybody());
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(gather.call(comm, stream.stream) == ncclSuccess);
  std::printf("grouped %d\n", ncclAlltoAll(send.data(), receive.data(), 64, ncclFloat32, comm, stream.stream));
  std::printf("end %d\n", ncclGroupEnd());
  stream.wait();
  gather_and_check(comm);
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// One process for all devices, of which the stand-in has one.
int init_all() {
  ncclComm_t comm = nullptr;
  EXPECT(ncclCommInitAll(&comm, 1, nullptr) == ncclSuccess);
  gather_and_check(comm);
  EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

// The first all-gather's result, whatever it is.
int first_result(ncclResult_t (*end)(ncclComm_t)) {
  ncclComm_t comm = create();
  Gather gather(standard_count, everybody());
  const Stream stream;
  std::printf("first %d\n", gather.call(comm, stream.stream));
  std::printf("second %d\n", gather.call(comm, stream.stream));
  EXPECT(end(comm) == ncclSuccess);
  return 0;
}

int failed_and_aborted() { return first_result(ncclCommAbort); }
int failed_and_destroyed() { return first_result(ncclCommDestroy); }

// Leaves zipccl's helper thread next to no processor time.
void starve_helper() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != "zipccl") {
      continue;
    }
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &first);
    const auto thread = static_cast<pid_t>(std::stol(task.path().filename()));
    const sched_param none{};
    EXPECT(sched_setscheduler(thread, SCHED_IDLE, &none) == 0);
    EXPECT(sched_setaffinity(thread, sizeof(first), &first) == 0);
    std::atomic<bool> started = false;
    std::thread([first, &started] {
      EXPECT(sched_setaffinity(0, sizeof(first), &first) == 0);
      started = true;
      for (volatile bool spinning = true; spinning;) {
      }
    }).detach();
    while (!started) {
      std::this_thread::yield();
    }
  }
}

// Only rank 0 has what a pool cannot hold; `end` is its first act when its own output is there.
template <typename End>
void last_call(std::size_t count, End end) {
  ncclComm_t comm = create();
  Gather gather(count, everybody());
  for (std::size_t i = 0; i < count && rank_number() == 0; ++i) {
    gather.send[i] = random_value_of(0, i);
  }
  const Stream stream;
  if (rank_number() == 0) {
    starve_helper();
  }
  EXPECT(gather.call(comm, stream.stream) == ncclSuccess);
  stream.wait();
  end(comm);
  bool right = true;
  for (std::size_t i = 0; i < count && rank_number() != 0; ++i) {
    right = right && gather.receive[i] == random_value_of(0, i);
  }
  std::puts(right ? "right" : "wrong");
}

int last_call_then_exit() {
  last_call(standard_count, [](ncclComm_t) {});
  return 0;
}

int last_call_then_destroy() {
  last_call(standard_count, [](ncclComm_t comm) { EXPECT(ncclCommDestroy(comm) == ncclSuccess); });
  return 0;
}

int last_call_then_death() {
  constexpr std::size_t long_to_ship = 4'000'000;
  last_call(long_to_ship, [](ncclComm_t comm) {
    if (rank_number() == 0) {
      raise(SIGKILL);
    }
    ncclCommDestroy(comm);
  });
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int run_job(int argc, char** argv) {
  const std::map<std::string, int (*)()> scenarios = {{"all-gather", all_gather},
                                                      {"unique-id", unique_id},
                                                      {"groups", groups},
                                                      {"creation-order", creation_order},
                                                      {"operators", operators},
                                                      {"registered", registered},
                                                      {"nonblocking", nonblocking},
                                                      {"short-config", short_config},
                                                      {"killed", killed},
                                                      {"aborted", aborted},
                                                      {"forks", forks},
                                                      {"all-to-all", all_to_all},
                                                      {"first-result", failed_and_aborted},
                                                      {"failed-destroyed", failed_and_destroyed},
                                                      {"last-call-exit", last_call_then_exit},
                                                      {"last-call-destroy", last_call_then_destroy},
                                                      {"last-call-death", last_call_then_death},
                                                      {"init-all", init_all}};
  const std::string name = argc > 0 ? argv[0] : "";
  int result = start_scenario(argc, argv);
  result = result == 2 ? children_scenario(argc, argv) : result;
  result = result == 2 ? transfer_scenario(argc, argv) : result;
  result = result == 2 ? group_scenario(argc, argv) : result;
  if (name == "churn" && argc == 2) {
    result = churn(std::atoi(argv[1]));
  } else if (const auto found = scenarios.find(name); found != scenarios.end()) {
    result = found->second();
  }
  if (const char* policy = std::getenv("NCCL_CTA_POLICY")) {
    std::printf("policy %s\n", policy);
  }
  if (result == 0) {
    std::puts("done");
  }
  return result;
}
