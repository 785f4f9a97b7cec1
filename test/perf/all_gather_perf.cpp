// One rank of the all-gather benchmark. `ncclAllGather` as the linker binds it is what a preloaded zipccl intercepts;
// asked of the loaded library itself it always reaches NCCL. Both run on one communicator, call by call in turn, so
// that clocks, links and neighbours treat them alike. Times are from the call to the end of the stream's work, largest
// of all ranks, median over the iterations; the time until the call returns is kept apart. Run it through `zipccl perf
// all-gather`.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "test/jobs/job.hpp"
#include "test/jobs/recorded.hpp"
#include "test/perf/all_gather_options.hpp"
#include "test/support/backend.hpp"
#include "test/support/data.hpp"

namespace zipccl::test {

namespace {

using Clock = std::chrono::steady_clock;
using AllGather = decltype(&ncclAllGather);
using GroupCall = decltype(&ncclGroupStart);

constexpr std::size_t block_values = std::size_t{4} << 20;  // of generated data, repeated with other beginnings
constexpr std::uint8_t poison = 0xA5;
constexpr int hook_calls = 10000;
constexpr int hook_calls_in_flight = 16;

double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) {
    std::fprintf(stderr, "all-gather-perf: %s failed: %s\n", what, ncclGetErrorString(result));
    std::_Exit(1);
  }
}

// The NCCL library's own function, past anything preloaded.
template <typename Function>
Function native_function(const char* name) {
  void* library = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY);
  void* address = library == nullptr ? nullptr : dlsym(library, name);
  if (address == nullptr) {
    std::fprintf(stderr, "all-gather-perf: no %s in libnccl.so.2\n", name);
    std::_Exit(2);
  }
  return reinterpret_cast<Function>(address);
}

// A block of values to fill inputs from.
std::vector<std::uint16_t> make_block(const AllGatherOptions& options, std::uint64_t seed) {
  if (options.input.rfind("recorded", 0) == 0) {
    const std::size_t colon = options.input.find(':');
    const std::string prefix = colon == std::string::npos ? "weights" : options.input.substr(colon + 1);
    std::vector<std::uint16_t> recorded = read_recorded(options.data, prefix);
    if (!recorded.empty()) {
      return recorded;
    }
    std::fprintf(stderr, "all-gather-perf: no recorded tensors %s*.bf16 in %s\n", prefix.c_str(), options.data.c_str());
    std::_Exit(2);
  }
  for (const Data kind : {Data::normal, Data::random, Data::zeros}) {
    if (options.input == to_string(kind)) {
      return make_data(kind, block_values, seed);
    }
  }
  std::fprintf(stderr, "all-gather-perf: unknown input '%s'\n", options.input.c_str());
  std::_Exit(2);
}

// Times of one way to call, over the iterations.
struct Series {
  std::vector<double> total;  // microseconds to the end of the stream's work
  std::vector<double> call;   // microseconds until the call returned
  int wrong = 0;              // calls of this rank with a wrong byte
};

class Benchmark {
 public:
  Benchmark(const AllGatherOptions& options, Job& job)
      : options_(options), job_(job), backend_(make_backend(job.local_rank())), type_(element_type(options.type)) {
    ncclUniqueId id{};
    static_assert(sizeof(id) == Job::id_bytes);
    if (job.rank() == 0) {
      check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    }
    job.broadcast(&id, job.rank() == 0);
    check(ncclCommInitRank(&communicator_, job.size(), id, job.rank()), "ncclCommInitRank");
    stream_ = backend_->create_stream();
    if (job.rank() == 0) {
      output_ = options.json.empty() ? stdout : std::fopen(options.json.c_str(), "a");
      if (output_ == nullptr) {
        std::perror(options.json.c_str());
        std::_Exit(2);
      }
    }
  }
  ~Benchmark() {
    if (output_ != nullptr && output_ != stdout) {
      std::fclose(output_);
    }
    backend_->destroy_stream(stream_);
    ncclCommDestroy(communicator_);
  }
  Benchmark(const Benchmark&) = delete;
  Benchmark& operator=(const Benchmark&) = delete;

  void measure(std::uint64_t bytes);
  void measure_hook();

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(job_.size()); }
  void run(AllGather all_gather, std::size_t count, Series* series);
  void fill_expected(std::uint64_t bytes, std::size_t shard_bytes);
  void report(std::uint64_t bytes, std::size_t count, const Series& native, const Series& hooked);
  template <typename Native, typename Hooked>
  void compare_calls(const char* name, Native native, Hooked hooked);

  const AllGatherOptions& options_;
  Job& job_;
  std::unique_ptr<Backend> backend_;
  ElementType type_;
  AllGather native_all_gather_ = native_function<AllGather>("ncclAllGather");
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::FILE* output_ = nullptr;
  unsigned char* expected_ = nullptr;  // every rank's input, one behind the other
  unsigned char* receive_ = nullptr;
};

// Every rank's shard starts elsewhere in the block, and so does every further repetition of it.
void Benchmark::fill_expected(std::uint64_t bytes, std::size_t shard_bytes) {
  const std::vector<std::uint16_t> block = make_block(options_, bytes);
  const auto* source = reinterpret_cast<const unsigned char*>(block.data());
  const std::size_t block_bytes = block.size() * sizeof(std::uint16_t);
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    std::size_t begin = (bytes + rank * 7919 * 1024 + 2) / 2 * 2 % block_bytes;
    for (std::size_t done = 0; done < shard_bytes;) {
      const std::size_t piece = std::min(shard_bytes - done, block_bytes - begin);
      backend_->upload(expected_ + rank * shard_bytes + done, source + begin, piece);
      done += piece;
      begin = 0;
    }
  }
}

void Benchmark::run(AllGather all_gather, std::size_t count, Series* series) {
  const std::size_t shard_bytes = count * type_.bytes;
  const std::size_t own = static_cast<std::size_t>(job_.rank()) * shard_bytes;
  const unsigned char* send = expected_ + own;
  if (options_.check) {
    backend_->fill(receive_, poison, shard_bytes * ranks());
  }
  if (options_.in_place) {
    backend_->copy(receive_ + own, expected_ + own, shard_bytes);
    send = receive_ + own;
  }
  job_.barrier();
  const auto begin = Clock::now();
  const ncclResult_t result = all_gather(send, receive_, count, type_.nccl, communicator_, stream_);
  const auto returned = Clock::now();
  check(result, "all-gather");
  backend_->synchronize(stream_);
  const auto end = Clock::now();
  series->total.push_back(job_.maximum(microseconds(end - begin)));
  series->call.push_back(job_.maximum(microseconds(returned - begin)));
  if (options_.check && !backend_->equal(receive_, expected_, shard_bytes * ranks())) {
    ++series->wrong;
  }
}

void Benchmark::measure(std::uint64_t bytes) {
  const std::size_t count = bytes / (type_.bytes * ranks());
  const std::size_t total_bytes = count * type_.bytes * ranks();
  expected_ = static_cast<unsigned char*>(backend_->allocate(total_bytes));
  receive_ = static_cast<unsigned char*>(backend_->allocate(total_bytes));
  fill_expected(bytes, count * type_.bytes);
  Series warm_up;
  for (int iteration = 0; iteration < options_.warm_up; ++iteration) {
    run(native_all_gather_, count, &warm_up);
    run(&ncclAllGather, count, &warm_up);
  }
  Series native;
  Series hooked;
  for (int iteration = 0; iteration < options_.iterations; ++iteration) {
    if (iteration % 2 == 0) {
      run(native_all_gather_, count, &native);
      run(&ncclAllGather, count, &hooked);
    } else {
      run(&ncclAllGather, count, &hooked);
      run(native_all_gather_, count, &native);
    }
  }
  native.wrong = static_cast<int>(job_.maximum(native.wrong));
  hooked.wrong = static_cast<int>(job_.maximum(hooked.wrong + warm_up.wrong));
  report(total_bytes, count, native, hooked);
  backend_->release(receive_);
  backend_->release(expected_);
}

void Benchmark::report(std::uint64_t bytes, std::size_t count, const Series& native, const Series& hooked) {
  if (output_ == nullptr) {
    return;
  }
  const auto side = [this](const char* name, const Series& series) {
    std::fprintf(output_,
                 "\"%s\": {\"us\": %.2f, \"us_p10\": %.2f, \"us_p90\": %.2f, \"call_us\": %.3f, \"wrong\": %d}", name,
                 median(series.total), quantile(series.total, 0.1), quantile(series.total, 0.9), median(series.call),
                 series.wrong);
  };
  std::fprintf(output_, "{\"bytes\": %llu, \"count\": %zu, \"type\": \"%s\", \"ranks\": %d, \"in_place\": %s, ",
               static_cast<unsigned long long>(bytes), count, options_.type.c_str(), job_.size(),
               options_.in_place ? "true" : "false");
  side("native", native);
  std::fprintf(output_, ", ");
  side("zipccl", hooked);
  std::fprintf(output_, "}\n");
  std::fflush(output_);
}

// Host time of a call through zipccl against the same call past it, one by one in turn.
template <typename Native, typename Hooked>
void Benchmark::compare_calls(const char* name, Native native, Hooked hooked) {
  std::vector<double> native_us;
  std::vector<double> hooked_us;
  const auto timed = [](auto& call, std::vector<double>* times) {
    const auto begin = Clock::now();
    const ncclResult_t result = call();
    times->push_back(microseconds(Clock::now() - begin));
    check(result, "call");
  };
  for (int call = 0; call < hook_calls; ++call) {
    timed(call % 2 == 0 ? native : hooked, call % 2 == 0 ? &native_us : &hooked_us);
    timed(call % 2 == 0 ? hooked : native, call % 2 == 0 ? &hooked_us : &native_us);
    if (call % hook_calls_in_flight == hook_calls_in_flight - 1) {
      backend_->synchronize(stream_);
    }
  }
  backend_->synchronize(stream_);
  const double native_median = job_.maximum(median(native_us));
  const double hooked_median = job_.maximum(median(hooked_us));
  const double added = job_.maximum(median(hooked_us) - median(native_us));
  if (output_ != nullptr) {
    std::fprintf(output_,
                 "{\"call\": \"%s\", \"calls\": %d, \"native_us\": %.4f, \"zipccl_us\": %.4f, \"added_us\": %.4f}\n",
                 name, hook_calls, native_median, hooked_median, added);
    std::fflush(output_);
  }
}

void Benchmark::measure_hook() {
  constexpr std::size_t count = 256;
  auto* buffer = static_cast<unsigned char*>(backend_->allocate(count * sizeof(float) * ranks()));
  const auto gather = [&](AllGather function, ncclDataType_t type) {
    return [this, function, type, buffer] {
      const std::size_t bytes = count * (type == ncclBfloat16 ? 2 : 4);
      return function(buffer + static_cast<std::size_t>(job_.rank()) * bytes, buffer, count, type, communicator_,
                      stream_);
    };
  };
  const auto group = [](GroupCall start, GroupCall end) {
    return [start, end] {
      const ncclResult_t result = start();
      return result == ncclSuccess ? end() : result;
    };
  };
  compare_calls("all-gather float", gather(native_all_gather_, ncclFloat32), gather(&ncclAllGather, ncclFloat32));
  compare_calls("all-gather bfloat16, small", gather(native_all_gather_, ncclBfloat16),
                gather(&ncclAllGather, ncclBfloat16));
  compare_calls("empty group",
                group(native_function<GroupCall>("ncclGroupStart"), native_function<GroupCall>("ncclGroupEnd")),
                group(&ncclGroupStart, &ncclGroupEnd));
  backend_->release(buffer);
}

}  // namespace

}  // namespace zipccl::test

int main(int count, char** arguments) {
  using namespace zipccl::test;
  const AllGatherOptions options = parse_all_gather_options(count, arguments);
  Job job(options.directory);
  Benchmark benchmark(options, job);
  if (options.hook) {
    benchmark.measure_hook();
    return 0;
  }
  for (std::uint64_t bytes = options.smallest; bytes <= options.largest;) {
    benchmark.measure(bytes);
    bytes = options.increment > 0 ? bytes + options.increment : bytes * options.factor;
  }
  return 0;
}
