#include "test/collectives/many.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "test/support/helper_thread.hpp"
#include "test/support/report.hpp"

namespace zipccl::test {

namespace {

constexpr int memory_of_device = 2;  // shared counter: bytes
constexpr std::size_t sets = 2;
constexpr std::size_t settled = 4;     // rounds after which calls that start native have shown what they send
constexpr double allowed_growth = 32;  // MiB

double mebibytes(double bytes) { return bytes / (1 << 20); }
double mebibytes(std::size_t now, std::size_t before) {
  return mebibytes(static_cast<double>(now) - static_cast<double>(before));
}

// README, "Memory".
std::uint64_t cap_of(std::uint64_t device_bytes) { return std::min(std::uint64_t{1} << 30, device_bytes / 50); }

bool alike(const ReportedCommunicator& one, const ReportedCommunicator& other) {
  return one.name == other.name && one.state == other.state && one.compressed_calls == other.compressed_calls &&
         (one.state == "native" || one.staging_bytes == other.staging_bytes);
}

std::string describe(const ReportedCommunicator& communicator) {
  return "communicator " + std::to_string(communicator.number) + " (" + communicator.name + ") is " +
         communicator.state + " with " + std::to_string(communicator.compressed_calls) + " compressed calls and " +
         std::to_string(communicator.staging_bytes) + " bytes of staging in " + communicator.file;
}

void print_staging(const std::map<std::uint64_t, ReportedCommunicator>& known, std::uint64_t cap) {
  double sum = 0;
  std::size_t native = 0;
  std::string reason;
  std::printf("staging of the first set, MiB:");
  for (std::uint64_t number = 0; number < Many::set_size; ++number) {
    const ReportedCommunicator& communicator = known.at(number);
    if (communicator.state == "native") {
      ++native;
      reason = communicator.reason;
      std::printf(" native");
      continue;
    }
    std::printf(" %.1f", mebibytes(static_cast<double>(communicator.staging_bytes)));
    sum += static_cast<double>(communicator.staging_bytes);
  }
  std::printf("\nstaging together %.1f MiB, cap %.1f MiB; %zu of %zu communicators native%s%s\n", mebibytes(sum),
              mebibytes(static_cast<double>(cap)), native, Many::set_size, native > 0 ? ", the last one since " : "",
              reason.c_str());
}

}  // namespace

Many::Many(const Rank& rank, std::size_t rounds)
    : rank_(rank), rounds_(rounds != 0 ? rounds : 30), backend_(make_backend(rank.rank())) {
  for (cudaStream_t& stream : streams_) {
    stream = backend_->create_stream();
  }
  for (std::size_t index = 0; index < set_size; ++index) {
    runs_.push_back(std::make_unique<GatherRun>(*backend_, rank_.size(), rank_.rank(),
                                                GatherCase{40000 + 1001 * index, Data::normal, index % 4 < 2, 0, 1}));
  }
  rank_.counter(memory_of_device).store(backend_->total_memory());
}

Many::~Many() {
  for (cudaStream_t stream : streams_) {
    backend_->destroy_stream(stream);
  }
}

int Many::run() {
  run_set();
  const std::size_t after_first = used_memory();
  run_set();
  check_memory(after_first, used_memory());
  return faults_;
}

std::size_t Many::used_memory() const {
  rank_.barrier();
  const std::size_t bytes = backend_->used_memory();
  rank_.barrier();
  return bytes;
}

ncclComm_t Many::create(std::size_t index, ncclComm_t first) const {
  if (index % 2 == 0) {
    return rank_.create_communicator(static_cast<int>(index) % rank_.size());
  }
  ncclComm_t child = nullptr;
  check_nccl(ncclCommSplit(first, 0, rank_.rank(), &child, nullptr), "ncclCommSplit");
  return child;
}

void Many::run_set() {
  const std::size_t before = used_memory();
  std::vector<ncclComm_t> communicators;
  for (std::size_t index = 0; index < set_size; ++index) {
    communicators.push_back(create(index, index == 0 ? nullptr : communicators.front()));
  }
  const std::size_t created = used_memory();
  for (std::size_t round = 0; round < rounds_ && faults_ == 0; ++round) {
    const auto stream_of = [&](std::size_t index) { return streams_[(index + round) % streams_.size()]; };
    let_helper_work();
    for (std::size_t index = 0; index < set_size; ++index) {
      const bool overflows = round >= settled && (index + round) % 17 == 5;
      runs_[index]->refill(overflows ? Data::random : Data::normal, ++seed_);
    }
    for (std::size_t index = 0; index < set_size; ++index) {
      runs_[index]->enqueue(communicators[index], stream_of(index));
      ++calls_made_;
    }
    for (std::size_t index = 0; index < set_size; ++index) {
      faults_ += runs_[index]->finish(stream_of(index));
      ++checks_;
    }
  }
  const std::size_t used = used_memory();
  for (std::size_t index = set_size; index-- > 0;) {
    check_nccl(ncclCommDestroy(communicators[index]), "ncclCommDestroy");
  }
  const std::size_t ended = used_memory();
  if (rank_.rank() == 0) {
    std::printf(
        "device memory of %zu communicators (of NCCL, too, and of all ranks that share the device): %.1f MiB "
        "when created, %.1f after their calls, %.1f after their end\n",
        set_size, mebibytes(created, before), mebibytes(used, before), mebibytes(ended, before));
  }
}

void Many::check_memory(std::size_t after_first, std::size_t after_second) {
  ++checks_;
  if (const double growth = mebibytes(after_second, after_first); growth > allowed_growth) {
    std::fprintf(stderr, "rank %d: %.1f MiB more device memory in use after the second set than after the first one\n",
                 rank_.rank(), growth);
    ++faults_;
  }
}

int check_many(const RankGroup& group) {
  const char* folder = std::getenv("ZIPCCL_REPORT");
  if (folder == nullptr) {
    return 0;
  }
  int faults = 0;
  const auto fault = [&](const std::string& text) {
    std::fprintf(stderr, "%s\n", text.c_str());
    ++faults;
  };
  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> staging;  // by process and set
  std::map<std::uint64_t, ReportedCommunicator> known;                     // by number, of any rank
  std::size_t found = 0;
  for (const ReportedCommunicator& communicator : reported_communicators(folder)) {
    ++found;
    staging[{communicator.file, communicator.number / Many::set_size}] += communicator.staging_bytes;
    const auto [place, first] = known.try_emplace(communicator.number, communicator);
    if (!first && !alike(place->second, communicator)) {
      fault(describe(place->second) + ", but " + describe(communicator));
    }
  }
  if (known.size() != sets * Many::set_size || found != known.size() * static_cast<std::size_t>(group.size())) {
    fault("the reports show " + std::to_string(found) + " communicators");
    return faults;
  }
  const std::uint64_t cap = cap_of(group.counter(memory_of_device));
  for (const auto& [place, bytes] : staging) {
    if (bytes > cap) {
      fault(place.first + ": set " + std::to_string(place.second) + " took " + std::to_string(bytes) +
            " bytes, above " + std::to_string(cap));
    }
  }
  for (std::uint64_t number = 0; number < Many::set_size; ++number) {
    const ReportedCommunicator& one = known[number];
    if (one.staging_bytes != known[number + Many::set_size].staging_bytes) {
      fault(describe(one) + ", but in the second set " + describe(known[number + Many::set_size]));
    }
  }
  print_staging(known, cap);
  return faults;
}

}  // namespace zipccl::test
