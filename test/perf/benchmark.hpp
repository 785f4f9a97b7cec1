// One rank of a benchmark: a communicator, a stream, and two ways to make a call, timed one by one in turn.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "test/jobs/job.hpp"
#include "test/perf/exchange.hpp"
#include "test/perf/nccl_functions.hpp"
#include "test/perf/options.hpp"
#include "test/support/backend.hpp"

namespace zipccl::test {

using Call = std::function<ncclResult_t()>;

// Times of one way to call.
struct Series {
  std::vector<double> total;   // microseconds to the end of the stream's work, largest of all ranks
  std::vector<double> call;    // microseconds until the call returned, largest of all ranks
  std::vector<double> device;  // of graphs: microseconds of the stream from their launch on, largest of all ranks
  int wrong = 0;               // calls with a wrong byte, of this rank
};

struct Comparison {
  Series native;
  Series zipccl;
};

double median(std::vector<double> values);
double quantile(std::vector<double> values, double share);

class Benchmark {
 public:
  Benchmark(const Options& options, Job& job);
  ~Benchmark();
  Benchmark(const Benchmark&) = delete;
  Benchmark& operator=(const Benchmark&) = delete;

  void measure(std::uint64_t bytes);            // native and intercepted
  void measure_hold_back(std::uint64_t bytes);  // which kernels run while either waits
  void measure_hook();                          // host time of calls, past zipccl and through it

 private:
  // Both ways to call, ready to be made on stream_. Valid as long as the exchange and until drop_graphs().
  struct Ways {
    Call native;
    Call zipccl;
  };
  Ways make_ways(Exchange& exchange);
  Call captured(const Call& call);
  void drop_graphs();

  bool is_late() const { return job_.rank() == job_.size() - 1; }
  void run(Exchange& exchange, const Call& call, Series* series);
  Comparison compare(Exchange& exchange, const Ways& ways);
  double native_time(Exchange& exchange, const Ways& ways);
  int run_held(Exchange& exchange, const Call& call);
  void report(const Exchange& exchange, const Comparison& comparison, double late);
  void measure_compressed_calls();
  void compare_host_time(const char* name, int calls, const Call& native, const Call& zipccl);

  const Options& options_;
  Job& job_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceWork> work_;
  std::vector<void*> graphs_;
  double delay_us_ = 0;  // of the late rank, before its call
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::FILE* output_ = nullptr;  // rank 0's
};

}  // namespace zipccl::test
