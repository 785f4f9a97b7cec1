// The collectives suite: an ordinary client of NCCL, run with libzipccl.so preloaded (or without: it then tests NCCL).
// Byte for byte comparison on 2 to 8 ranks. With ZIPCCL_REPORT set, the calls that went compressed are counted
// against those that had to.
//
//   collectives-test RANKS [--share-gpu] [--large] [--scenario NAME [--calls N]] [--expect compressed|native]
//
// Without a scenario all kinds of calls are made once. Scenarios: graphs, streams, bits, returns, aborts and lives
// (stress.hpp), many (many.hpp), kills (kills.hpp).
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "test/collectives/all_gather_cases.hpp"
#include "test/collectives/kills.hpp"
#include "test/collectives/many.hpp"
#include "test/collectives/stress.hpp"
#include "test/support/backend.hpp"
#include "test/support/ranks.hpp"
#include "test/support/report.hpp"

namespace zipccl::test {
namespace {

constexpr int compressible_calls = 0;  // shared counter: BF16 all-gathers with values on communicators with sessions
constexpr int finished_checks = 1;

struct Options {
  int ranks = 2;
  bool share_gpu = false;
  bool large = false;
  std::string scenario;
  std::size_t calls = 0;
  std::string expect;
};

class Suite {
 public:
  Suite(const Rank& rank, const Options& options)
      : rank_(rank), options_(options), backend_(make_backend(rank.rank())) {
    for (cudaStream_t& stream : streams_) {
      stream = backend_->create_stream();
    }
  }
  ~Suite() {
    for (cudaStream_t stream : streams_) {
      backend_->destroy_stream(stream);
    }
  }
  Suite(const Suite&) = delete;
  Suite& operator=(const Suite&) = delete;

  int run() {
    world_ = rank_.create_communicator();
    shapes();
    streams();
    coalesced();
    mixed_group();
    other_types();
    two_communicators();
    children();
    check_nccl(ncclCommDestroy(world_), "ncclCommDestroy");
    life_cycles();
    return faults_;
  }

 private:
  void count_call(std::size_t count) {
    if (count > 0) {
      rank_.counter(compressible_calls).fetch_add(1);
    }
  }
  void gather(const GatherCase& shape) {
    GatherRun run(*backend_, rank_.size(), rank_.rank(), shape);
    run.enqueue(world_, streams_[0]);
    count_call(shape.count);
    finish(run.finish(streams_[0]));
  }
  void finish(int faults) {
    faults_ += faults;
    rank_.counter(finished_checks).fetch_add(1);
  }
  std::uint64_t seed() { return ++seed_; }

  // Every count that meets a boundary of the format, every alignment class, every kind of data.
  void shapes() {
    std::vector<std::size_t> counts = {0, 1, 2, 31, 511, 1023, 1024, 1025, 4097, 65536, 100003};
    if (options_.large) {
      counts.insert(counts.end(), {std::size_t{1} << 22, (std::size_t{5} << 20) + 7});
    }
    for (const std::size_t count : counts) {
      for (int kind = 0; kind < data_kinds; ++kind) {
        gather({count, static_cast<Data>(kind), (kind & 1) != 0, static_cast<std::size_t>(kind), seed()});
        gather({count, static_cast<Data>(kind), (kind & 1) == 0, 0, seed()});
      }
    }
    for (std::size_t offset = 1; offset < 9; ++offset) {
      gather({3001, Data::mixture, true, offset, seed()});
      gather({3008, Data::mixture, false, offset, seed()});
    }
  }

  // One communicator from several streams in turn, nothing waited for in between.
  void streams() {
    std::vector<std::unique_ptr<GatherRun>> runs;
    constexpr std::size_t calls = 12;
    for (std::size_t index = 0; index < calls; ++index) {
      const Data kind = index % 4 == 3 ? Data::random : Data::normal;
      runs.push_back(std::make_unique<GatherRun>(*backend_, rank_.size(), rank_.rank(),
                                                 GatherCase{40000 + index, kind, index % 2 == 0, 0, seed()}));
    }
    for (std::size_t index = 0; index < calls; ++index) {
      runs[index]->enqueue(world_, streams_[index % streams_.size()]);
      count_call(1);
    }
    for (std::size_t index = 0; index < calls; ++index) {
      finish(runs[index]->finish(streams_[index % streams_.size()]));
    }
  }

  // As PyTorch's coalescing manager does: one group of several all-gathers of unlike sizes.
  void coalesced() {
    std::vector<std::unique_ptr<GatherRun>> runs;
    for (const std::size_t count : {std::size_t{70000}, std::size_t{1}, std::size_t{0}, std::size_t{20000}}) {
      runs.push_back(std::make_unique<GatherRun>(*backend_, rank_.size(), rank_.rank(),
                                                 GatherCase{count, Data::random, true, 0, seed()}));
      count_call(count);
    }
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (const auto& run : runs) {
      run->enqueue(world_, streams_[0]);
    }
    check_nccl(ncclGroupEnd(), "inner ncclGroupEnd");
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
    for (const auto& run : runs) {
      finish(run->finish(streams_[0]));
    }
  }

  // Compressed and native operations in one group.
  void mixed_group() {
    constexpr std::size_t count = 5000;
    GatherRun first(*backend_, rank_.size(), rank_.rank(), {count, Data::mixture, false, 0, seed()});
    GatherRun second(*backend_, rank_.size(), rank_.rank(), {count, Data::normal, true, 1, seed()});
    auto* sums = static_cast<float*>(backend_->allocate(count * sizeof(float)));
    const std::vector<float> ones(count, static_cast<float>(rank_.rank() + 1));
    backend_->upload(sums, ones.data(), count * sizeof(float));
    const auto peer = [&](int step) { return (rank_.rank() + step + rank_.size()) % rank_.size(); };
    auto* sent = static_cast<std::uint8_t*>(backend_->allocate(2 * count));
    backend_->fill(sent, static_cast<std::uint8_t>(rank_.rank()), count);
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    check_nccl(ncclSend(sent, count, ncclUint8, peer(1), world_, streams_[0]), "ncclSend");
    first.enqueue(world_, streams_[0]);
    check_nccl(ncclAllReduce(sums, sums, count, ncclFloat32, ncclSum, world_, streams_[0]), "ncclAllReduce");
    check_nccl(ncclRecv(sent + count, count, ncclUint8, peer(-1), world_, streams_[0]), "ncclRecv");
    second.enqueue(world_, streams_[0]);
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
    count_call(1);
    count_call(1);
    finish(first.finish(streams_[0]) + second.finish(streams_[0]));
    std::vector<float> total(count);
    backend_->download(total.data(), sums, count * sizeof(float));
    const int sum_of_ranks = rank_.size() * (rank_.size() + 1) / 2;
    const auto expected = static_cast<float>(sum_of_ranks);
    finish(std::count(total.begin(), total.end(), expected) != static_cast<std::ptrdiff_t>(count));
    std::vector<std::uint8_t> got(count);
    backend_->download(got.data(), sent + count, count);
    finish(std::count(got.begin(), got.end(), peer(-1)) != static_cast<std::ptrdiff_t>(count));
    backend_->release(sums);
    backend_->release(sent);
  }

  // What zipccl does not code passes through and arrives.
  void other_types() {
    constexpr std::size_t shard = 4096;  // bytes
    const auto ranks = static_cast<std::size_t>(rank_.size());
    auto* buffer = static_cast<std::uint8_t*>(backend_->allocate(shard * ranks));
    const std::array<std::pair<ncclDataType_t, std::size_t>, 5> types = {
        {{ncclUint8, 1}, {ncclFloat16, 2}, {ncclFloat32, 4}, {ncclInt64, 8}, {ncclFloat8e4m3, 1}}};
    for (const auto& [type, size] : types) {
      backend_->fill(buffer, 0xEE, shard * ranks);
      std::uint8_t* own = buffer + static_cast<std::size_t>(rank_.rank()) * shard;
      backend_->fill(own, static_cast<std::uint8_t>(rank_.rank() + 1), shard);
      check_nccl(ncclAllGather(own, buffer, shard / size, type, world_, streams_[0]), "ncclAllGather");
      backend_->synchronize(streams_[0]);
      std::vector<std::uint8_t> got(shard * ranks);
      backend_->download(got.data(), buffer, got.size());
      bool right = true;
      for (std::size_t index = 0; index < got.size(); ++index) {
        right = right && got[index] == index / shard + 1;
      }
      finish(right ? 0 : 1);
    }
    backend_->release(buffer);
  }

  // Two communicators in one group, named in another order on odd ranks.
  void two_communicators() {
    ncclComm_t second = rank_.create_communicator(rank_.size() - 1);
    const bool swap = rank_.rank() % 2 == 1;
    const std::array<ncclComm_t, 2> communicators = {world_, second};
    for (const std::size_t count : {std::size_t{3000}, std::size_t{200000}}) {
      std::array<std::unique_ptr<GatherRun>, 2> runs;
      for (auto& run : runs) {
        run = std::make_unique<GatherRun>(*backend_, rank_.size(), rank_.rank(),
                                          GatherCase{count, Data::random, true, 0, seed()});
      }
      check_nccl(ncclGroupStart(), "ncclGroupStart");
      for (const std::size_t index : {swap ? 1U : 0U, swap ? 0U : 1U}) {
        runs[index]->enqueue(communicators[index], streams_[index]);
        count_call(1);
      }
      check_nccl(ncclGroupEnd(), "ncclGroupEnd");
      finish(runs[0]->finish(streams_[0]) + runs[1]->finish(streams_[1]));
    }
    check_nccl(ncclCommDestroy(second), "ncclCommDestroy");
  }

  // Children compress like their parent, if they have another rank to send to.
  void children() {
    const int color = rank_.rank() % 2;
    ncclComm_t child = nullptr;
    check_nccl(ncclCommSplit(world_, color, rank_.rank(), &child, nullptr), "ncclCommSplit");
    int ranks = 0;
    int own = 0;
    check_nccl(ncclCommCount(child, &ranks), "ncclCommCount");
    check_nccl(ncclCommUserRank(child, &own), "ncclCommUserRank");
    GatherRun run(*backend_, ranks, own, {30001, Data::normal, true, 0, seed()});
    run.enqueue(child, streams_[0]);
    count_call(ranks > 1 ? 1 : 0);
    finish(run.finish(streams_[0]));
    check_nccl(ncclCommFinalize(child), "ncclCommFinalize");
    check_nccl(ncclCommDestroy(child), "ncclCommDestroy");
  }

  // Made, used once, destroyed or aborted.
  void life_cycles() {
    for (int cycle = 0; cycle < 6; ++cycle) {
      ncclComm_t communicator = rank_.create_communicator(cycle % rank_.size());
      GatherRun run(*backend_, rank_.size(), rank_.rank(), {2048, Data::normal, cycle % 2 == 0, 0, seed()});
      run.enqueue(communicator, streams_[0]);
      count_call(1);
      finish(run.finish(streams_[0]));
      rank_.barrier();
      if (cycle % 3 == 2) {
        check_nccl(ncclCommAbort(communicator), "ncclCommAbort");
      } else {
        check_nccl(ncclCommDestroy(communicator), "ncclCommDestroy");
      }
    }
  }

  const Rank& rank_;
  const Options& options_;
  std::unique_ptr<Backend> backend_;
  std::array<cudaStream_t, 3> streams_{};
  ncclComm_t world_ = nullptr;
  std::uint64_t seed_ = 0;
  int faults_ = 0;
};

int check_report(const RankGroup& group, const std::string& expect) {
  const char* folder = std::getenv("ZIPCCL_REPORT");
  if (expect.empty() || folder == nullptr) {
    return 0;
  }
  const std::uint64_t wanted = expect == "compressed" ? group.counter(compressible_calls) : 0;
  const std::uint64_t compressed = reported_calls(folder, "compressed");
  std::printf("compressed calls: %llu, expected %llu\n", static_cast<unsigned long long>(compressed),
              static_cast<unsigned long long>(wanted));
  return compressed == wanted ? 0 : 1;
}

int run(const Options& options) {
  if (const char* folder = std::getenv("ZIPCCL_REPORT"); folder != nullptr) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  if (options.scenario == "kills") {
    return run_kills(options.ranks, options.share_gpu, options.calls != 0 ? options.calls : 6) == 0 ? 0 : 1;
  }
  RankGroup group(options.ranks, options.share_gpu);
  const auto count = [](const Rank& rank, const auto& scenario) {
    rank.counter(compressible_calls).fetch_add(scenario.calls_made());
    rank.counter(finished_checks).fetch_add(scenario.checks());
  };
  const auto body = [&](const Rank& rank) {
    int faults = 0;
    if (options.scenario.empty()) {
      faults = Suite(rank, options).run();
    } else if (options.scenario == "many") {
      Many many(rank, options.calls);
      faults = many.run();
      count(rank, many);
    } else {
      Stress stress(rank, options.calls);
      faults = stress.run(options.scenario);
      count(rank, stress);
    }
    return faults == 0 ? 0 : 1;
  };
  int failed = group.run(body, 500);
  if (failed == 0 && options.scenario == "many") {
    failed = check_many(group);
  }
  std::printf("%d ranks: %llu checks, %d ranks failed\n", options.ranks,
              static_cast<unsigned long long>(group.counter(finished_checks)), failed);
  return failed != 0 || check_report(group, options.expect) != 0 ? 1 : 0;
}

}  // namespace
}  // namespace zipccl::test

int main(int argc, char** argv) {
  zipccl::test::Options options;
  for (int index = 1; index < argc; ++index) {
    const std::string argument = argv[index];
    if (argument == "--share-gpu") {
      options.share_gpu = true;
    } else if (argument == "--large") {
      options.large = true;
    } else if (argument == "--scenario" && index + 1 < argc) {
      options.scenario = argv[++index];
    } else if (argument == "--calls" && index + 1 < argc) {
      options.calls = static_cast<std::size_t>(std::atoll(argv[++index]));
    } else if (argument == "--expect" && index + 1 < argc) {
      options.expect = argv[++index];
    } else {
      options.ranks = std::atoi(argument.c_str());
    }
  }
  const bool known = options.scenario.empty() || options.scenario == "kills" || options.scenario == "many" ||
                     zipccl::test::Stress::known(options.scenario);
  if (options.ranks < 2 || options.ranks > 64 || !known) {
    std::fprintf(
        stderr,
        "usage: collectives-test RANKS [--share-gpu] [--large] [--expect compressed|native]\n"
        "                        [--scenario graphs|streams|bits|returns|aborts|lives|many|kills [--calls N]]\n");
    return 2;
  }
  return zipccl::test::run(options);
}
