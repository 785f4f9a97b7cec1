// For the stand-in's own tests: ranks as forked processes. The test process itself never calls the library, so that
// every child starts without threads, and a test may kill a rank and look at how the others end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "test/standin/standin_nccl.h"

namespace standin::test {

using Environment = std::vector<std::pair<std::string, std::string>>;

using RankBody = std::function<void(int rank, const ncclUniqueId& id)>;
using CommunicatorBody = std::function<void(ncclComm_t comm, int rank, cudaStream_t stream)>;

// Runs `body` in `rank_count` processes that share a unique id, made by rank 0, and have RANK set. Returns how each
// ended: 0, the exit status (1 if the body threw, after a message), or 128 + signal. A rank is ended by SIGALRM after
// a minute.
std::vector<int> run_ranks(int rank_count, const Environment& environment, const RankBody& body);
inline std::vector<int> run_ranks(int rank_count, const RankBody& body) { return run_ranks(rank_count, {}, body); }

// The same with a connected communicator, destroyed afterwards, and a stream.
std::vector<int> run_communicators(int rank_count, const Environment& environment, const CommunicatorBody& body);
inline std::vector<int> run_communicators(int rank_count, const CommunicatorBody& body) {
  return run_communicators(rank_count, {}, body);
}

bool all_zero(const std::vector<int>& endings);

void expect(bool condition, const char* text, const char* file, int line);
void expect_result(ncclResult_t actual, ncclResult_t expected, const char* text, const char* file, int line);

// For the ranks: throw with the text and place of what did not hold.
#define EXPECT(condition) standin::test::expect((condition), #condition, __FILE__, __LINE__)
#define EXPECT_RESULT(call, expected) standin::test::expect_result((call), (expected), #call, __FILE__, __LINE__)
#define EXPECT_SUCCESS(call) EXPECT_RESULT(call, ncclSuccess)

// A word between ranks that does not go by the library, so that a test need not guess how long another rank takes. Made
// before the ranks are.
class Word {
 public:
  Word();
  ~Word();
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;

  void give() const;
  void take(int count = 1) const;  // waits until it has been given so often

 private:
  int channel_[2];
};

// RAII over the host runtime.
class ScopedStream {
 public:
  ScopedStream();
  ~ScopedStream();
  ScopedStream(const ScopedStream&) = delete;
  ScopedStream& operator=(const ScopedStream&) = delete;

  cudaStream_t get() const { return stream_; }
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

void synchronize(cudaStream_t stream);

// Waits until the communicator's asynchronous error is no longer ncclSuccess or ncclInProgress, and returns it.
ncclResult_t wait_for_async_error(ncclComm_t comm);

// Whether `attempt` is true on all of the communicator's ranks at once, which all call this, before 40 seconds have
// passed: for what takes its time unless the machine is busy with something else.
bool succeeds_on_all_ranks(const std::function<bool()>& attempt, ncclComm_t comm, cudaStream_t stream);

// Reproducible bytes that differ between ranks and between purposes.
std::vector<std::uint8_t> pattern(std::size_t bytes, int rank, int purpose = 0);

// Entries of a folder of /proc/self: "fd" or "task".
std::size_t count_entries(const char* name);
// Whether their number becomes `expected`: the kernel lists a thread a moment longer than a join lasts.
bool entries_become(const char* name, std::size_t expected);

}  // namespace standin::test
