#include "test/perf/benchmark.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace zipccl::test {

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

Benchmark::Benchmark(const Options& options, Job& job)
    : options_(options), job_(job), backend_(make_backend(job.local_rank())), work_(make_device_work()) {
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

Benchmark::~Benchmark() {
  if (output_ != nullptr && output_ != stdout) {
    std::fclose(output_);
  }
  backend_->destroy_stream(stream_);
  ncclCommDestroy(communicator_);
}

void Benchmark::run(Exchange& exchange, const Call& call, Series* series) {
  exchange.prepare(options_.check);
  job_.barrier();
  const auto begin = Clock::now();
  if (delay_us_ > 0 && is_late()) {
    work_->delay(stream_, delay_us_);
  }
  if (options_.graph) {
    work_->begin_span(stream_);
  }
  const auto called = Clock::now();
  const ncclResult_t result = call();
  const auto returned = Clock::now();
  if (options_.graph) {
    work_->end_span(stream_);
  }
  check(result, "the call");
  backend_->synchronize(stream_);
  const auto end = Clock::now();
  series->total.push_back(job_.maximum(microseconds(end - begin)));
  series->call.push_back(job_.maximum(microseconds(returned - called)));
  if (options_.graph) {
    series->device.push_back(job_.maximum(work_->elapsed()));
  }
  if (options_.check && !exchange.correct()) {
    ++series->wrong;
  }
}

Comparison Benchmark::compare(Exchange& exchange, const Ways& ways) {
  Comparison warm_up;
  for (int iteration = 0; iteration < options_.warm_up; ++iteration) {
    run(exchange, ways.native, &warm_up.native);
    run(exchange, ways.zipccl, &warm_up.zipccl);
  }
  Comparison comparison;
  for (int iteration = 0; iteration < options_.iterations; ++iteration) {
    if (iteration % 2 == 0) {
      run(exchange, ways.native, &comparison.native);
      run(exchange, ways.zipccl, &comparison.zipccl);
    } else {
      run(exchange, ways.zipccl, &comparison.zipccl);
      run(exchange, ways.native, &comparison.native);
    }
  }
  comparison.native.wrong = static_cast<int>(job_.maximum(comparison.native.wrong + warm_up.native.wrong));
  comparison.zipccl.wrong = static_cast<int>(job_.maximum(comparison.zipccl.wrong + warm_up.zipccl.wrong));
  return comparison;
}

double Benchmark::native_time(Exchange& exchange, const Ways& ways) {
  Series series;
  for (int iteration = 0; iteration < options_.warm_up + options_.iterations; ++iteration) {
    run(exchange, ways.native, &series);
  }
  series.total.erase(series.total.begin(), series.total.begin() + options_.warm_up);
  return median(series.total);
}

Call Benchmark::captured(const Call& call) {
  void* graph = work_->capture(stream_, [&] { check(call(), "the call"); });
  graphs_.push_back(graph);
  return [this, graph] {
    work_->launch(graph, stream_);
    return ncclSuccess;
  };
}

void Benchmark::drop_graphs() {
  for (void* graph : graphs_) {
    work_->destroy(graph);
  }
  graphs_.clear();
}

Benchmark::Ways Benchmark::make_ways(Exchange& exchange) {
  const auto call = [&](const NcclFunctions& nccl) {
    return [this, &exchange, &nccl] { return exchange.call(nccl, communicator_, stream_); };
  };
  Ways ways = {call(native_nccl()), call(intercepted_nccl())};
  if (options_.in_two > 0) {
    ways.zipccl = [this, &exchange] {
      return exchange.call_in_two(native_nccl(), communicator_, stream_, *work_, options_.in_two);
    };
  }
  if (options_.graph) {
    // Eager calls first: what is set up at the first call cannot be set up within a capture.
    Series eager;
    run(exchange, ways.native, &eager);
    run(exchange, ways.zipccl, &eager);
    ways = {captured(ways.native), captured(ways.zipccl)};
  }
  return ways;
}

void Benchmark::measure(std::uint64_t bytes) {
  const std::unique_ptr<Exchange> exchange = make_exchange(options_, job_, *backend_, bytes);
  const Ways ways = make_ways(*exchange);
  double in_step = 0;
  for (const double late : options_.late) {
    if (late > 0 && in_step == 0) {
      in_step = native_time(*exchange, ways);
    }
    delay_us_ = late * in_step;
    const Comparison comparison = compare(*exchange, ways);
    if (late == 0) {
      in_step = median(comparison.native.total);
    }
    report(*exchange, comparison, late);
    delay_us_ = 0;
  }
  drop_graphs();
}

void Benchmark::report(const Exchange& exchange, const Comparison& comparison, double late) {
  if (output_ == nullptr) {
    return;
  }
  const auto side = [this](const char* name, const Series& series) {
    std::fprintf(output_,
                 ", \"%s\": {\"us\": %.2f, \"us_p10\": %.2f, \"us_p90\": %.2f, \"call_us\": %.3f, \"wrong\": %d", name,
                 median(series.total), quantile(series.total, 0.1), quantile(series.total, 0.9), median(series.call),
                 series.wrong);
    if (!series.device.empty()) {
      std::fprintf(output_, ", \"device_us\": %.2f", median(series.device));
    }
    std::fprintf(output_, "}");
  };
  std::fprintf(output_,
               "{\"collective\": \"%s\", \"bytes\": %llu, \"count\": %zu, \"bus_bytes\": %llu, \"type\": \"%s\", "
               "\"ranks\": %d, \"late\": %g",
               options_.collective.c_str(), static_cast<unsigned long long>(exchange.bytes()), exchange.count(),
               static_cast<unsigned long long>(exchange.bus_bytes()), options_.type.c_str(), job_.size(), late);
  const char* separator = ", \"operations\": [";
  for (const std::uint64_t operation : exchange.operations()) {
    std::fprintf(output_, "%s%llu", separator, static_cast<unsigned long long>(operation));
    separator = ", ";
  }
  std::fprintf(output_, "]");
  side("native", comparison.native);
  side("zipccl", comparison.zipccl);
  std::fprintf(output_, "}\n");
  std::fflush(output_);
}

}  // namespace zipccl::test
