#include "test/collectives/kills.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "test/collectives/all_gather_cases.hpp"
#include "test/collectives/stress.hpp"
#include "test/support/backend.hpp"
#include "test/support/ranks.hpp"
#include "test/support/report.hpp"

namespace {

std::atomic<bool> records_held{false};

// In a victim, zipccl's helper thread stops for good where it would send a record, so that the record never leaves.
// What lies in the message goes by NCCL, whose threads have other names.
void hold_record() {
  if (!records_held.load()) {
    return;
  }
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  while (std::strcmp(name.data(), "zipccl") == 0) {
    pause();
  }
}

}  // namespace

// The C library's own functions for sending, of all that this process has loaded.
extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  using Function = ssize_t (*)(int, const msghdr*, int);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "sendmsg"));
  hold_record();
  return next(socket, message, flags);
}

extern "C" ssize_t send(int socket, const void* data, std::size_t bytes, int flags) {
  using Function = ssize_t (*)(int, const void*, std::size_t, int);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "send"));
  hold_record();
  return next(socket, data, bytes, flags);
}

namespace zipccl::test {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int killed_at = 0;  // shared counter: the clock's count
constexpr auto settling = milliseconds(300);
constexpr auto timeout = milliseconds(5000);  // of a survivor's watchdog
constexpr auto longest_end = milliseconds(10000);

// When the victim dies. Every kind of kill comes in turn.
enum class Moment : std::uint8_t {
  record,      // the others have its message, but not the record with the rest, which their decodes wait for
  collective,  // the others' NCCL waits for it in a call that it has not made
  anywhere     // in a stream of calls, some with records
};

const char* to_string(Moment moment) {
  constexpr std::array names = {"before its record is sent", "before a call", "in a stream of calls"};
  return names[static_cast<std::size_t>(moment)];
}

double seconds_since_kill(const Rank& rank) {
  const Clock::time_point killed{Clock::duration(static_cast<Clock::rep>(rank.counter(killed_at).load()))};
  return std::chrono::duration<double>(Clock::now() - killed).count();
}

class Kill {
 public:
  Kill(const Rank& rank, std::size_t number)
      : rank_(rank),
        number_(number),
        moment_(static_cast<Moment>(number % 3)),
        victim_(static_cast<int>(number / 3) % rank.size()),
        backend_(make_backend(rank.rank())) {
    for (cudaStream_t& stream : streams_) {
      stream = backend_->create_stream();
    }
    for (std::size_t index = 0; index < calls_in_flight; ++index) {
      runs_.push_back(std::make_unique<GatherRun>(*backend_, rank_.size(), rank_.rank(),
                                                  GatherCase{8000 + 3001 * index, Data::normal, index % 2 == 0, 0, 1}));
    }
    meeting_ = backend_->allocate(sizeof(float));
  }
  ~Kill() {
    backend_->release(meeting_);
    for (cudaStream_t stream : streams_) {
      backend_->destroy_stream(stream);
    }
  }
  Kill(const Kill&) = delete;
  Kill& operator=(const Kill&) = delete;

  static int victim_of(std::size_t number, int ranks) { return static_cast<int>(number / 3) % ranks; }

  int run() {
    communicator_ = rank_.create_communicator();
    for (int round = 0; round < 3; ++round) {
      refill();
      for (std::size_t index = 0; index < runs_.size(); ++index) {
        runs_[index]->enqueue(communicator_, stream_of(index));
      }
      meet(streams_[1]);  // NCCL connects in the first, which it might not while a decode waits for ever
      faults_ += finish();
    }
    rank_.barrier();
    if (rank_.rank() == victim_) {
      die();
    }
    survive();
    return faults_;
  }

 private:
  static constexpr std::size_t calls_in_flight = 6;

  cudaStream_t stream_of(std::size_t index) const { return streams_[index % streams_.size()]; }

  // Fresh data, the same on all ranks; one call overflows.
  void refill() {
    for (std::size_t index = 0; index < runs_.size(); ++index) {
      runs_[index]->refill(index == 3 ? Data::random : Data::mixture, ++seed_);
    }
  }

  // A native call, which NCCL begins behind the calls before it: its end says that all ranks have the messages of
  // those.
  void meet(cudaStream_t stream) {
    check_nccl(ncclAllReduce(meeting_, meeting_, 1, ncclFloat32, ncclSum, communicator_, stream), "ncclAllReduce");
  }

  int finish() {
    int faults = 0;
    for (std::size_t index = 0; index < runs_.size(); ++index) {
      faults += runs_[index]->finish(stream_of(index));
    }
    return faults;
  }

  [[noreturn]] void die_now() const {
    rank_.counter(killed_at).store(static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()));
    raise(SIGKILL);
    std::abort();
  }

  [[noreturn]] void die() {
    if (moment_ == Moment::anywhere) {
      std::thread([this] {
        std::this_thread::sleep_for(std::chrono::microseconds(2000 + number_ * 7919 % 60000));
        die_now();
      }).detach();
      for (;;) {
        refill();
        for (std::size_t index = 0; index < runs_.size(); ++index) {
          static_cast<void>(runs_[index]->call(communicator_, stream_of(index)));
        }
        backend_->synchronize(streams_[0]);
        backend_->synchronize(streams_[1]);
      }
    }
    if (moment_ == Moment::record) {
      records_held.store(true);
      runs_[0]->refill(Data::random, ++seed_);
      runs_[0]->enqueue(communicator_, streams_[0]);
      meet(streams_[1]);
      backend_->synchronize(streams_[1]);
    }
    std::this_thread::sleep_for(settling);
    die_now();
  }

  // As PyTorch does: one thread makes calls and waits for them, another one watches and aborts.
  void survive() {
    last_progress_.store(Clock::now());
    std::thread watchdog([this] { watch(); });
    do {
      if (moment_ == Moment::record) {
        runs_[0]->refill(Data::random, ++seed_);
      } else {
        refill();
      }
      for (std::size_t index = 0; index < (moment_ == Moment::anywhere ? runs_.size() : 1); ++index) {
        call(index);
      }
      if (moment_ == Moment::record) {
        meet(streams_[1]);
      }
      for (cudaStream_t stream : streams_) {
        backend_->synchronize(stream);
      }
      // A call that ended well before anything was known to be wrong must have the right result.
      if (healthy()) {
        faults_ += moment_ == Moment::anywhere ? finish() : runs_[0]->finish(streams_[0]);
      }
      last_progress_.store(Clock::now());
    } while (!noticed_.load() && moment_ == Moment::anywhere);
    watchdog.join();
    const double ended = seconds_since_kill(rank_);
    std::printf("rank %d: rank %d died %s; %s after %.3f s, all ended after %.3f s\n", rank_.rank(), victim_,
                to_string(moment_), how_.c_str(), noticed_after_, ended);
    if (moment_ == Moment::record && !by_error_) {
      std::fprintf(stderr, "rank %d: no error told of the lost record\n", rank_.rank());
      ++faults_;
    }
  }

  void call(std::size_t index) {
    const std::lock_guard lock(calling_);
    if (noticed_.load()) {
      return;  // the communicator may be gone
    }
    if (const ncclResult_t result = runs_[index]->call(communicator_, stream_of(index)); result != ncclSuccess) {
      failed_call_.store(result);
    }
  }

  bool healthy() {
    const std::lock_guard lock(calling_);
    ncclResult_t error = ncclSuccess;
    return !noticed_.load() && failed_call_.load() == ncclSuccess &&
           ncclCommGetAsyncError(communicator_, &error) == ncclSuccess && error == ncclSuccess;
  }

  void watch() {
    for (;;) {
      ncclResult_t error = ncclSuccess;
      if (const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &error); asked != ncclSuccess) {
        error = asked;
      }
      if (error != ncclSuccess && error != ncclInProgress) {
        by_error_ = true;
        how_ = std::string("ncclCommGetAsyncError said '") + ncclGetErrorString(error) + "'";
        break;
      }
      if (const ncclResult_t result = failed_call_.load(); result != ncclSuccess) {
        by_error_ = true;
        how_ = std::string("a call said '") + ncclGetErrorString(result) + "'";
        break;
      }
      if (Clock::now() - last_progress_.load() > timeout) {
        how_ = "the watchdog timed out";
        break;
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    noticed_.store(true);
    noticed_after_ = seconds_since_kill(rank_);
    // A call that another thread is inside of comes out by the abort at the latest.
    std::unique_lock lock(calling_, std::try_to_lock);
    for (int attempt = 0; attempt < 500 && !lock.owns_lock(); ++attempt) {
      std::this_thread::sleep_for(milliseconds(1));
      static_cast<void>(lock.try_lock());
    }
    if (const ncclResult_t result = ncclCommAbort(communicator_); result != ncclSuccess) {
      how_ += std::string(" (ncclCommAbort: '") + ncclGetErrorString(result) + "')";
    }
  }

  const Rank& rank_;
  const std::size_t number_;
  const Moment moment_;
  const int victim_;
  std::unique_ptr<Backend> backend_;
  std::array<cudaStream_t, 2> streams_{};
  std::vector<std::unique_ptr<GatherRun>> runs_;
  void* meeting_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  std::uint64_t seed_ = 0;
  int faults_ = 0;
  std::mutex calling_;
  std::atomic<bool> noticed_{false};
  std::atomic<ncclResult_t> failed_call_{ncclSuccess};
  std::atomic<Clock::time_point> last_progress_{Clock::time_point{}};
  // The watchdog's, until it has ended.
  bool by_error_ = false;
  std::string how_;
  double noticed_after_ = 0;
};

int kill_one(int ranks, bool share_gpu, std::size_t number) {
  RankGroup group(ranks, share_gpu);
  const int failed = group.run([&](const Rank& rank) { return Kill(rank, number).run() == 0 ? 0 : 1; }, 90,
                               Kill::victim_of(number, ranks));
  const Clock::time_point killed{Clock::duration(static_cast<Clock::rep>(group.counter(killed_at)))};
  const auto taken = Clock::now() - killed;
  if (failed == 0 && taken > longest_end) {
    std::fprintf(stderr, "kill %zu: the last rank ended after %.1f s\n", number,
                 std::chrono::duration<double>(taken).count());
    return 1;
  }
  return failed;
}

int run_healthy(int ranks, bool share_gpu) {
  RankGroup group(ranks, share_gpu);
  return group.run([](const Rank& rank) { return Stress(rank, 50).run("streams") == 0 ? 0 : 1; }, 120);
}

// Of the ranks that outlived a victim whose record they had waited for, every report must say so.
int check_reports(int ranks, std::size_t kills) {
  const char* folder = std::getenv("ZIPCCL_REPORT");
  if (folder == nullptr) {
    return 0;
  }
  std::size_t lost = 0;
  for (const ReportedCommunicator& communicator : reported_communicators(folder)) {
    lost += communicator.error == "connection lost" ? 1 : 0;
  }
  const std::size_t wanted = (kills + 2) / 3 * static_cast<std::size_t>(ranks - 1);
  std::printf("%zu communicators with lost records in the reports, at least %zu expected\n", lost, wanted);
  return lost < wanted ? 1 : 0;
}

}  // namespace

int run_kills(int ranks, bool share_gpu, std::size_t kills) {
  int faults = 0;
  for (std::size_t number = 0; number < kills && faults == 0; ++number) {
    faults = kill_one(ranks, share_gpu, number);
  }
  if (faults == 0) {
    faults = run_healthy(ranks, share_gpu) + check_reports(ranks, kills);
  }
  std::printf("%d ranks: %zu kills, %d faults\n", ranks, kills, faults);
  return faults;
}

}  // namespace zipccl::test
