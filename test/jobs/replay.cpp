// Replays the all-gathers of a sharded training job on the stand-in NCCL: every step gathers the layers' BF16 weights,
// recorded ones, first to last for the forward pass and last to first for the backward pass, in place and one layer
// ahead of the "computation", a check sum. Prints what test/jobs/fsdp2.py prints.
//
//   zipccl ranks 4 -- build/test/jobs/replay --data test/recorded
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "test/jobs/job.hpp"
#include "test/jobs/recorded.hpp"
#include "test/standin/standin_nccl.h"

namespace {

using zipccl::test::Job;
using zipccl::test::read_recorded;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string data = "test/recorded";
  std::string directory;
  std::size_t layers = 3;
  std::size_t layer_values = std::size_t{4} << 20;
  int steps = 5;
};

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "replay: %s\n", message.c_str());
  std::_Exit(1);
}

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) {
    fail(std::string(what) + " failed: " + ncclGetErrorString(result));
  }
}

void check(int result, const char* what) {
  if (result != 0) {
    fail(std::string(what) + " failed with " + std::to_string(result));
  }
}

Options parse(int count, char** arguments) {
  Options options;
  for (int index = 1; index < count; index += 2) {
    const std::string_view name = arguments[index];
    if (index + 1 == count) {
      fail("no value for " + std::string(name));
    }
    const char* value = arguments[index + 1];
    if (name == "--data") {
      options.data = value;
    } else if (name == "--directory") {
      options.directory = value;
    } else if (name == "--layers") {
      options.layers = std::strtoull(value, nullptr, 10);
    } else if (name == "--layer-values") {
      options.layer_values = std::strtoull(value, nullptr, 10);
    } else if (name == "--steps") {
      options.steps = std::atoi(value);
    } else {
      fail("unknown option " + std::string(name) +
           "; known: --data, --directory, --layers, --layer-values (of a whole layer), --steps");
    }
  }
  return options;
}

// 64-bit multiplicative hash over whole words; the tail counts as zero-padded.
std::uint64_t hash_bytes(std::uint64_t seed, const void* data, std::size_t bytes) {
  constexpr std::uint64_t factor = 0x9FB21C651E98DF25u;
  std::uint64_t hash = seed;
  const auto* byte = static_cast<const unsigned char*>(data);
  for (std::size_t done = 0; done < bytes; done += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, byte + done, std::min(sizeof(word), bytes - done));
    hash = (hash ^ word) * factor;
    hash ^= hash >> 29;
  }
  return hash;
}

// The layers' weights, sharded over the ranks, gathered layer by layer through two buffers in turn.
class Replay {
 public:
  Replay(const Options& options, Job& job)
      : job_(job),
        recorded_(read_recorded(options.data, "weights")),
        layers_(options.layers),
        shard_values_((options.layer_values + static_cast<std::size_t>(job.size()) - 1) /
                      static_cast<std::size_t>(job.size())) {
    if (recorded_.empty()) {
      fail("no recorded weights in " + options.data);
    }
    ncclUniqueId id{};
    if (job.rank() == 0) {
      check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    }
    job.broadcast(&id, job.rank() == 0);
    check(ncclCommInitRank(&communicator_, job.size(), id, job.rank()), "ncclCommInitRank");
    check(zipccl_host_runtime.stream_create(&stream_), "stream_create");
    for (Buffer& buffer : buffers_) {
      check(zipccl_host_runtime.allocate(&buffer.values, gathered_bytes()), "allocate");
      check(zipccl_host_runtime.event_create(&buffer.ready), "event_create");
    }
  }
  ~Replay() {
    for (Buffer& buffer : buffers_) {
      zipccl_host_runtime.event_destroy(buffer.ready);
      zipccl_host_runtime.release(buffer.values);
    }
    zipccl_host_runtime.stream_destroy(stream_);
    ncclCommDestroy(communicator_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // One step's gathers; the hash of all that was gathered.
  std::uint64_t step(int number) {
    const std::size_t calls = 2 * layers_;
    std::uint64_t hash = static_cast<std::uint64_t>(number);
    gather(number, 0);
    for (std::size_t call = 0; call < calls; ++call) {
      if (call + 1 < calls) {
        gather(number, call + 1);
      }
      const Buffer& buffer = buffers_[call % 2];
      check(zipccl_host_runtime.event_synchronize(buffer.ready), "event_synchronize");
      hash = hash_bytes(hash, buffer.values, gathered_bytes());
    }
    return hash;
  }

 private:
  struct Buffer {
    void* values = nullptr;
    void* ready = nullptr;
  };

  std::size_t shard_bytes() const { return shard_values_ * sizeof(std::uint16_t); }
  std::size_t gathered_bytes() const { return shard_bytes() * static_cast<std::size_t>(job_.size()); }

  void gather(int number, std::size_t call) {
    const std::size_t layer = call < layers_ ? call : 2 * layers_ - 1 - call;
    Buffer& buffer = buffers_[call % 2];
    std::memset(buffer.values, 0xA5, gathered_bytes());
    auto* shard = static_cast<std::uint16_t*>(buffer.values) + static_cast<std::size_t>(job_.rank()) * shard_values_;
    fill_shard(shard, number, layer);
    check(ncclAllGather(shard, buffer.values, shard_values_, ncclBfloat16, communicator_, stream_), "ncclAllGather");
    check(zipccl_host_runtime.event_record(buffer.ready, stream_), "event_record");
  }

  // Another part of the recorded weights for every step, layer and rank, repeated as often as it takes.
  void fill_shard(std::uint16_t* shard, int number, std::size_t layer) const {
    const std::size_t part =
        (static_cast<std::size_t>(number) * layers_ + layer) * static_cast<std::size_t>(job_.size()) +
        static_cast<std::size_t>(job_.rank());
    std::size_t source = part * 104729 % recorded_.size();
    for (std::size_t done = 0; done < shard_values_;) {
      const std::size_t piece = std::min(shard_values_ - done, recorded_.size() - source);
      std::memcpy(shard + done, recorded_.data() + source, piece * sizeof(std::uint16_t));
      done += piece;
      source = 0;
    }
  }

  Job& job_;
  std::vector<std::uint16_t> recorded_;
  std::size_t layers_;
  std::size_t shard_values_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  Buffer buffers_[2];
};

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  Job job(options.directory);
  std::uint64_t hash = 0;
  {
    Replay replay(options, job);
    for (int step = 1; step <= options.steps; ++step) {
      job.barrier();
      const auto started = Clock::now();
      hash = hash * 31 + replay.step(step);
      const double milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - started).count();
      const double slowest = job.maximum(milliseconds);
      if (job.rank() == 0) {
        // The hash's high half as a number between 0 and 16 stands in for the loss.
        std::printf("step %d loss %.17g time_ms %.3f\n", step, static_cast<double>(hash >> 32) / 0x1p28, slowest);
        std::fflush(stdout);
      }
    }
  }
  std::printf("rank %d gathered hash %016llx\nrank %d done\n", job.rank(), static_cast<unsigned long long>(hash),
              job.rank());
  return 0;
}
