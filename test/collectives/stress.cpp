#include "test/collectives/stress.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

namespace zipccl::test {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int calls_returned = 3;       // shared counter: of `returns`
constexpr std::size_t small = 20000;    // values of a rank: one chunk
constexpr std::size_t large = 1500007;  // several chunks if staging is small

// Every tenth set of data overflows, the others are all kinds.
Data kind_of(std::size_t round) {
  constexpr std::array<Data, 4> ordinary = {Data::normal, Data::mixture, Data::patterns, Data::zeros};
  return round % 10 == 3 ? Data::random : ordinary[round % ordinary.size()];
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

double mebibytes(std::size_t now, std::size_t before) {
  return (static_cast<double>(now) - static_cast<double>(before)) / (1 << 20);
}

}  // namespace

Stress::Stress(const Rank& rank, std::size_t calls)
    : rank_(rank), calls_(calls), backend_(make_backend(rank.rank())), streams_(3) {
  for (cudaStream_t& stream : streams_) {
    stream = backend_->create_stream();
  }
}

Stress::~Stress() {
  for (cudaStream_t stream : streams_) {
    backend_->destroy_stream(stream);
  }
}

bool Stress::known(const std::string& scenario) {
  constexpr std::array names = {"graphs", "streams", "bits", "returns", "aborts", "lives"};
  return std::find(names.begin(), names.end(), scenario) != names.end();
}

int Stress::run(const std::string& scenario) {
  if (scenario == "lives") {
    lives();
    return faults_;
  }
  communicator_ = rank_.create_communicator();
  if (scenario == "aborts") {
    aborts();
    return faults_;
  }
  if (scenario == "graphs") {
    graphs();
  } else if (scenario == "streams") {
    streams();
  } else if (scenario == "returns") {
    returns();
  } else {
    bits();
  }
  check_nccl(ncclCommDestroy(communicator_), "ncclCommDestroy");
  return faults_;
}

Stress::Run Stress::make(std::size_t count, bool in_place) {
  return std::make_unique<GatherRun>(*backend_, rank_.size(), rank_.rank(),
                                     GatherCase{count, Data::normal, in_place, 0, ++seed_});
}

void Stress::enqueue(const Run& run, std::size_t stream) {
  run->enqueue(communicator_, streams_[stream]);
  ++calls_made_;
}

void Stress::finish(const Run& run, std::size_t stream) {
  faults_ += run->finish(streams_[stream]);
  ++checks_;
}

void Stress::graphs() {
  const std::array<Run, 3> first = {make(small, true), make(small + 7, false), make(1, true)};
  const Run second = make(small, false);
  const Run large_run = make(large, false);
  const Run eager = make(small, true);
  const Run large_eager = make(large, true);

  const auto capture = [&](std::size_t stream, const auto& body) {
    backend_->begin_capture(streams_[stream]);
    body();
    return backend_->end_capture(streams_[stream]);
  };
  enqueue(eager, 2);  // before any capture
  finish(eager, 2);
  void* one = capture(0, [&] {
    for (const Run& run : first) {
      enqueue(run, 0);
    }
  });
  void* other = capture(1, [&] { enqueue(second, 1); });
  void* large_graph = capture(1, [&] { enqueue(large_run, 1); });

  const std::size_t replays = calls_or(1000);
  for (std::size_t replay = 0; replay < replays && faults_ == 0; ++replay) {
    const bool with_large = replay % 50 == 49;
    for (const Run& run : first) {
      run->refill(kind_of(replay), ++seed_);
    }
    second->refill(kind_of(replay + 5), ++seed_);
    eager->refill(kind_of(replay + 7), ++seed_);
    backend_->launch(one, streams_[0]);
    if (replay % 4 == 0) {
      enqueue(eager, 2);
    }
    backend_->launch(other, streams_[replay % 2]);
    if (with_large) {
      large_run->refill(kind_of(replay / 50), ++seed_);
      large_eager->refill(kind_of(replay / 50 + 3), ++seed_);
      enqueue(large_eager, 2);
      backend_->launch(large_graph, streams_[1]);
      finish(large_eager, 2);
      finish(large_run, 1);
    }
    for (const Run& run : first) {
      finish(run, 0);
    }
    finish(second, replay % 2);
    if (replay % 4 == 0) {
      finish(eager, 2);
    }
  }
  for (void* graph : {one, other, large_graph}) {
    backend_->destroy_graph(graph);
  }
}

void Stress::streams() {
  constexpr std::size_t in_flight = 50;
  std::vector<Run> runs;
  for (std::size_t index = 0; index < in_flight; ++index) {
    runs.push_back(make(index % 10 == 9 ? 300000 : 8000 + index, index % 3 != 0));
  }
  const std::size_t calls = calls_or(2000);
  for (std::size_t call = 0; call < calls && faults_ == 0; call += in_flight) {
    for (std::size_t index = 0; index < in_flight; ++index) {
      const bool overflows = (call + index) % 100 == 57;
      runs[index]->refill(overflows ? Data::random : Data::normal, ++seed_);
    }
    for (std::size_t index = 0; index < in_flight; ++index) {
      enqueue(runs[index], index % streams_.size());
    }
    for (std::size_t index = 0; index < in_flight; ++index) {
      finish(runs[index], index % streams_.size());
    }
  }
}

void Stress::bits() {
  const std::size_t calls = calls_or(60);
  for (std::size_t call = 0; call < calls && faults_ == 0; ++call) {
    const std::size_t count = call % 20 == 19 ? large : 1 + call * 3 * 1024 / 2;
    const Run run = make(count, call % 2 == 0);
    run->refill(Data::random, ++seed_);
    enqueue(run, call % streams_.size());
    finish(run, call % streams_.size());
  }
}

void Stress::returns() {
  constexpr auto limit = std::chrono::seconds(60);  // so long only a call that waits for the last rank takes
  std::vector<Run> runs;
  for (const std::size_t count : {small, large, small, std::size_t{1}, large}) {
    runs.push_back(make(count, count != small));
  }
  const std::size_t rounds = calls_or(3);
  for (std::size_t round = 0; round < rounds && faults_ == 0; ++round) {
    for (const Run& run : runs) {
      run->refill(kind_of(round), ++seed_);
    }
    rank_.barrier();
    const bool last = rank_.rank() == rank_.size() - 1;
    const auto expected = round * static_cast<std::size_t>(rank_.size() - 1);
    if (last && round > 0) {  // NCCL connects in its first call, and waits for that
      const auto start = Clock::now();
      while (rank_.counter(calls_returned).load() < expected && Clock::now() - start < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (const std::uint64_t returned = rank_.counter(calls_returned).load(); returned < expected) {
        std::fprintf(stderr, "calls of only %llu ranks returned before the last rank made them\n",
                     static_cast<unsigned long long>(returned + expected / round - expected));
        ++faults_;
      }
    }
    for (std::size_t index = 0; index < runs.size(); ++index) {
      enqueue(runs[index], index % streams_.size());
    }
    if (!last && round > 0) {
      ++rank_.counter(calls_returned);
    }
    for (std::size_t index = 0; index < runs.size(); ++index) {
      finish(runs[index], index % streams_.size());
    }
  }
}

// Several hundred MB of records are under way when the first rank aborts, so that its decodes wait for them, and the
// others' for its own. What arrives is undefined.
void Stress::aborts() {
  const std::size_t calls = calls_or(40);
  std::vector<Run> runs;
  for (std::size_t call = 0; call < calls; ++call) {
    runs.push_back(make(large, true));
  }
  const auto enqueue_all = [&] {
    for (const Run& run : runs) {
      run->refill(Data::random, ++seed_);
    }
    rank_.barrier();
    for (std::size_t call = 0; call < calls; ++call) {
      enqueue(runs[call], call % streams_.size());
    }
  };
  // What is under way must end no later than it would have without an abort on a machine as slow as this one is.
  auto start = Clock::now();
  enqueue_all();
  for (std::size_t call = 0; call < calls; ++call) {
    finish(runs[call], call % streams_.size());
  }
  const auto patience = std::chrono::seconds(5) + (Clock::now() - start);
  enqueue_all();
  rank_.barrier();  // none has a call to make when the first aborts
  std::this_thread::sleep_for(std::chrono::milliseconds(rank_.rank() == 0 ? 50 : 300));
  start = Clock::now();
  check_nccl(ncclCommAbort(communicator_), "ncclCommAbort");
  for (cudaStream_t stream : streams_) {
    backend_->synchronize(stream);
  }
  const auto taken = Clock::now() - start;
  ++checks_;
  if (taken > patience) {
    std::fprintf(stderr, "rank %d: abort and streams took %.1f s\n", rank_.rank(),
                 std::chrono::duration<double>(taken).count());
    ++faults_;
  }
}

void Stress::lives() {
  constexpr std::size_t settled = 10;   // lives after which everything has its working size
  constexpr double device_growth = 16;  // MiB
  constexpr double host_growth = 48;
  const std::size_t lives = std::max(calls_or(50), settled + 1);
  std::size_t host_bytes = 0;
  std::size_t device_bytes = 0;
  for (std::size_t life = 0; life < lives; ++life) {
    communicator_ = rank_.create_communicator(static_cast<int>(life) % rank_.size());
    const Run run = make(small + life, life % 2 == 0);
    run->refill(kind_of(life), ++seed_);
    enqueue(run, life % streams_.size());
    finish(run, life % streams_.size());
    check_nccl(ncclCommDestroy(communicator_), "ncclCommDestroy");
    rank_.barrier();
    if (life + 1 == settled) {
      host_bytes = resident_bytes();
      device_bytes = backend_->used_memory();
    }
  }
  const double host = mebibytes(resident_bytes(), host_bytes);
  const double device = mebibytes(backend_->used_memory(), device_bytes);
  ++checks_;
  std::printf("rank %d: %zu lives, device memory grew by %.1f MiB, host memory by %.1f MiB\n", rank_.rank(),
              lives - settled, device, host);
  if (device > device_growth || host > host_growth) {
    std::fprintf(stderr, "rank %d: at most %.0f and %.0f MiB are allowed\n", rank_.rank(), device_growth, host_growth);
    ++faults_;
  }
}

}  // namespace zipccl::test
