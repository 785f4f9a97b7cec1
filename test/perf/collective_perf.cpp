// One rank of a benchmark of NCCL calls, native against what a preloaded zipccl makes of them. Times are from the call
// to the end of the stream's work, largest of all ranks, median over the iterations; the time until the call returns is
// kept apart. Run it through `zipccl perf all-gather`, `all-to-all` or `send-recv`.
#include "test/perf/benchmark.hpp"

int main(int count, char** arguments) {
  using namespace zipccl::test;
  const Options options = parse_options(count, arguments);
  Job job(options.directory);
  Benchmark benchmark(options, job);
  if (options.hook) {
    benchmark.measure_hook();
    return 0;
  }
  if (options.hold_back) {
    benchmark.measure_hold_back(options.smallest);
    return 0;
  }
  for (std::uint64_t bytes = options.smallest; bytes <= options.largest;) {
    benchmark.measure(bytes);
    bytes = options.increment > 0 ? bytes + options.increment : bytes * options.factor;
  }
  return 0;
}
