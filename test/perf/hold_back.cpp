// Counts the kernels of other streams that run while a call waits for a late rank. With few hardware queues
// (CUDA_DEVICE_MAX_CONNECTIONS) a kernel that waits behind NCCL's holds back what is launched after it on any stream.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "test/perf/benchmark.hpp"

namespace zipccl::test {

namespace {

constexpr auto late_by = std::chrono::milliseconds(160);
constexpr auto counted_after = std::chrono::milliseconds(80);
constexpr int returned_late = -1;

}  // namespace

// Kernels that ran while the call waited, of the rank for which there were fewest; returned_late if the call did not
// return before the late rank came, so that nothing could be launched.
int Benchmark::run_held(Exchange& exchange, const Call& call) {
  exchange.prepare(options_.check);
  job_.barrier();
  const auto begin = std::chrono::steady_clock::now();
  int ran = DeviceWork::marker_streams;
  if (is_late()) {
    std::this_thread::sleep_until(begin + late_by);
    check(call(), "the call");
  } else {
    check(call(), "the call");
    const bool in_time = std::chrono::steady_clock::now() < begin + counted_after;
    work_->launch_markers();
    std::this_thread::sleep_until(begin + counted_after);
    ran = !in_time || work_->is_done(stream_) ? returned_late : work_->count_markers();
  }
  backend_->synchronize(stream_);
  work_->await_markers();
  if (options_.check && !exchange.correct()) {
    fail("a wrong byte in the output");
  }
  return -static_cast<int>(job_.maximum(-ran));
}

void Benchmark::measure_hold_back(std::uint64_t bytes) {
  const std::unique_ptr<Exchange> exchange = make_exchange(options_, job_, *backend_, bytes);
  const Ways ways = make_ways(*exchange);
  Series warm_up;
  run(*exchange, ways.native, &warm_up);
  run(*exchange, ways.zipccl, &warm_up);
  int native = DeviceWork::marker_streams;
  int zipccl = DeviceWork::marker_streams;
  for (int iteration = 0; iteration < options_.iterations; ++iteration) {
    native = std::min(native, run_held(*exchange, ways.native));
    zipccl = std::min(zipccl, run_held(*exchange, ways.zipccl));
  }
  if (output_ != nullptr) {
    std::fprintf(output_, "{\"bytes\": %llu, \"ranks\": %d, \"of\": %d, \"operations\": [%llu], ",
                 static_cast<unsigned long long>(exchange->bytes()), job_.size(), DeviceWork::marker_streams,
                 static_cast<unsigned long long>(exchange->operations().front()));
    std::fprintf(output_, "\"native_ran\": %d, \"zipccl_ran\": %d}\n", native, zipccl);
    std::fflush(output_);
  }
  drop_graphs();
}

}  // namespace zipccl::test
