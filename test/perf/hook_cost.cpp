// Prices interception: the host time of calls that stay native, and of compressed ones, beside NCCL's own.
#include <algorithm>
#include <chrono>
#include <string>

#include "test/perf/benchmark.hpp"

namespace zipccl::test {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int native_calls = 10000;
constexpr std::size_t count = 256;
constexpr std::size_t mebibyte = 1 << 20;
// Of all-gathers' outputs: one chunk, and with two ranks three.
constexpr std::size_t compressed_bytes[] = {16 * mebibyte, 256 * mebibyte};
constexpr int compressed_calls = 64;

}  // namespace

// Host time of a call through zipccl against the same call past it, one by one in turn.
void Benchmark::compare_host_time(const char* name, int calls, const Call& native, const Call& zipccl) {
  constexpr int calls_in_flight = 16;
  std::vector<double> native_us;
  std::vector<double> zipccl_us;
  const auto timed = [](const Call& call, std::vector<double>* times) {
    const auto begin = Clock::now();
    const ncclResult_t result = call();
    times->push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    check(result, "the call");
  };
  for (int number = 0; number < calls; ++number) {
    const bool native_first = number % 2 == 0;
    timed(native_first ? native : zipccl, native_first ? &native_us : &zipccl_us);
    timed(native_first ? zipccl : native, native_first ? &zipccl_us : &native_us);
    if (number % calls_in_flight == calls_in_flight - 1) {
      backend_->synchronize(stream_);
    }
  }
  backend_->synchronize(stream_);
  const double native_median = job_.maximum(median(native_us));
  const double zipccl_median = job_.maximum(median(zipccl_us));
  const double added = job_.maximum(median(zipccl_us) - median(native_us));
  if (output_ != nullptr) {
    std::fprintf(output_,
                 "{\"call\": \"%s\", \"ranks\": %d, \"calls\": %d, \"native_us\": %.4f, \"zipccl_us\": %.4f, "
                 "\"added_us\": %.4f}\n",
                 name, job_.size(), calls, native_median, zipccl_median, added);
    std::fflush(output_);
  }
}

void Benchmark::measure_hook() {
  const auto ranks = static_cast<std::size_t>(job_.size());
  const Buffer send(*backend_, count * sizeof(float) * ranks);
  const Buffer receive(*backend_, count * sizeof(float) * ranks);
  const auto both = [this](const char* name, auto make) {
    compare_host_time(name, native_calls, make(native_nccl()), make(intercepted_nccl()));
  };
  const auto gather = [&](ncclDataType_t type) {
    return [&, type](const NcclFunctions& nccl) {
      return [&, type] { return nccl.all_gather(send.data(), receive.data(), count, type, communicator_, stream_); };
    };
  };
  const auto exchange = [&](ncclDataType_t type) {
    return [&, type](const NcclFunctions& nccl) {
      return [&, type] {
        const int peer = (job_.rank() + 1) % job_.size();
        const int source = (job_.rank() + job_.size() - 1) % job_.size();
        check(nccl.group_start(), "ncclGroupStart");
        check(nccl.send(send.data(), count, type, peer, communicator_, stream_), "ncclSend");
        check(nccl.receive(receive.data(), count, type, source, communicator_, stream_), "ncclRecv");
        return nccl.group_end();
      };
    };
  };
  both("all-gather float", gather(ncclFloat32));
  both("all-gather bfloat16, small", gather(ncclBfloat16));
  both("send and receive float", exchange(ncclFloat32));
  both("send and receive bfloat16, small", exchange(ncclBfloat16));
  both("empty group", [](const NcclFunctions& nccl) {
    return [&nccl] {
      const ncclResult_t result = nccl.group_start();
      return result == ncclSuccess ? nccl.group_end() : result;
    };
  });
  if (count_gpus() > 0) {  // the stand-in's host engine would take minutes
    measure_compressed_calls();
  }
}

// Their host time does not depend on what they send.
void Benchmark::measure_compressed_calls() {
  const auto ranks = static_cast<std::size_t>(job_.size());
  const Buffer gathered(*backend_, *std::max_element(std::begin(compressed_bytes), std::end(compressed_bytes)));
  for (const std::size_t bytes : compressed_bytes) {
    const std::size_t part = bytes / ranks / sizeof(std::uint16_t);
    auto* const own = gathered.data() + static_cast<std::size_t>(job_.rank()) * part * sizeof(std::uint16_t);
    const auto gather = [&](const NcclFunctions& nccl) {
      return [&] { return nccl.all_gather(own, gathered.data(), part, ncclBfloat16, communicator_, stream_); };
    };
    const std::string name = "all-gather bfloat16, " + std::to_string(bytes / mebibyte) + " MiB, compressed";
    compare_host_time(name.c_str(), compressed_calls, gather(native_nccl()), gather(intercepted_nccl()));
  }
}

}  // namespace zipccl::test
