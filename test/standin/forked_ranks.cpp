#include "test/standin/forked_ranks.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

namespace standin::test {
namespace {

constexpr unsigned rank_seconds = 60;

// Rank 0 writes an id for everybody else; each of the others reads one. Pipes keep 128 bytes together.
ncclUniqueId exchange_id(const int (&channel)[2], int rank, int rank_count) {
  ncclUniqueId id{};
  if (rank == 0) {
    EXPECT_SUCCESS(ncclGetUniqueId(&id));
    for (int other = 1; other < rank_count; ++other) EXPECT(write(channel[1], &id, sizeof(id)) == sizeof(id));
  } else {
    EXPECT(read(channel[0], &id, sizeof(id)) == sizeof(id));
  }
  return id;
}

}  // namespace

std::vector<int> run_ranks(int rank_count, const Environment& environment, const RankBody& body) {
  int channel[2];
  if (pipe(channel) != 0) throw std::runtime_error("pipe");
  std::fflush(nullptr);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < rank_count; ++rank) {
    const pid_t process = fork();
    if (process < 0) throw std::runtime_error("fork");
    if (process == 0) {
      alarm(rank_seconds);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      setenv("RANK", std::to_string(rank).c_str(), 1);
      int status = 0;
      try {
        body(rank, exchange_id(channel, rank, rank_count));
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        status = 1;
      }
      std::fflush(nullptr);
      _exit(status);
    }
    processes.push_back(process);
  }
  close(channel[0]);
  close(channel[1]);
  std::vector<int> endings;
  for (const pid_t process : processes) {
    int status = 0;
    while (waitpid(process, &status, 0) < 0) {
    }
    endings.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return endings;
}

std::vector<int> run_communicators(int rank_count, const Environment& environment, const CommunicatorBody& body) {
  return run_ranks(rank_count, environment, [&](int rank, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    EXPECT_SUCCESS(ncclCommInitRank(&comm, rank_count, id, rank));
    {
      const ScopedStream stream;
      body(comm, rank, stream.get());
    }
    EXPECT_SUCCESS(ncclCommDestroy(comm));
  });
}

bool all_zero(const std::vector<int>& endings) {
  bool zero = true;
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    if (endings[rank] == 0) continue;
    std::fprintf(stderr, "rank %zu ended with %d\n", rank, endings[rank]);
    zero = false;
  }
  return zero;
}

void expect(bool condition, const char* text, const char* file, int line) {
  if (!condition) throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

void expect_result(ncclResult_t actual, ncclResult_t expected, const char* text, const char* file, int line) {
  if (actual == expected) return;
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + text + " gave " +
                           std::to_string(actual) + " instead of " + std::to_string(expected) + " (" +
                           ncclGetLastError(nullptr) + ")");
}

Word::Word() {
  if (pipe(channel_) != 0) throw std::runtime_error("pipe");
}

Word::~Word() {
  close(channel_[0]);
  close(channel_[1]);
}

void Word::give() const { EXPECT(write(channel_[1], "", 1) == 1); }

void Word::take(int count) const {
  char byte = 0;
  for (; count > 0; --count) EXPECT(read(channel_[0], &byte, 1) == 1);
}

ScopedStream::ScopedStream() { EXPECT(zipccl_host_runtime.stream_create(&stream_) == 0); }

ScopedStream::~ScopedStream() { zipccl_host_runtime.stream_destroy(stream_); }

void ScopedStream::synchronize() const { test::synchronize(stream_); }

void synchronize(cudaStream_t stream) { EXPECT(zipccl_host_runtime.stream_synchronize(stream) == 0); }

ncclResult_t wait_for_async_error(ncclComm_t comm) {
  ncclResult_t error = ncclSuccess;
  while (error == ncclSuccess || error == ncclInProgress) {
    EXPECT_SUCCESS(ncclCommGetAsyncError(comm, &error));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return error;
}

bool succeeds_on_all_ranks(const std::function<bool()>& attempt, ncclComm_t comm, cudaStream_t stream) {
  enum : std::uint8_t { succeeded, failed, gives_up };  // what the ranks tell each other by an all-gather
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  int count = 0;
  EXPECT_SUCCESS(ncclCommCount(comm, &count));
  std::vector<std::uint8_t> said(static_cast<std::size_t>(count));
  for (;;) {
    const std::uint8_t own = attempt() ? succeeded : std::chrono::steady_clock::now() < limit ? failed : gives_up;
    EXPECT_SUCCESS(ncclAllGather(&own, said.data(), 1, ncclUint8, comm, stream));
    synchronize(stream);
    const std::uint8_t worst = *std::max_element(said.begin(), said.end());
    if (worst != failed) return worst == succeeded;
  }
}

std::vector<std::uint8_t> pattern(std::size_t bytes, int rank, int purpose) {
  std::vector<std::uint8_t> data(bytes);
  std::uint32_t state = 0x9e3779b9u * static_cast<std::uint32_t>(1 + rank + 1000 * purpose);
  for (std::uint8_t& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  return data;
}

std::size_t count_entries(const char* name) {
  const std::filesystem::directory_iterator folder(std::string("/proc/self/") + name);
  return static_cast<std::size_t>(std::distance(begin(folder), end(folder)));
}

bool entries_become(const char* name, std::size_t expected) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    if (count_entries(name) == expected) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace standin::test
