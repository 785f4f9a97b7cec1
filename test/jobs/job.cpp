#include "test/jobs/job.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace zipccl::test {

namespace {

constexpr int spins_before_yield = 2000;

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "job: %s\n", message.c_str());
  std::_Exit(1);
}

int environment_number(const char* name, int missing) {
  const char* text = std::getenv(name);
  return text == nullptr ? missing : std::atoi(text);
}

}  // namespace

// A file of zeros is a valid start, so it does not matter which rank makes it.
struct Job::Shared {
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> generation;
  std::array<unsigned char, id_bytes> id;
  std::array<double, max_ranks> values;
};

Job::Job(std::string directory)
    : rank_(environment_number("RANK", 0)),
      local_rank_(environment_number("LOCAL_RANK", rank_)),
      size_(environment_number("WORLD_SIZE", 1)) {
  if (directory.empty()) {
    const char* given = std::getenv("JOB_DIRECTORY");
    directory = given == nullptr ? "" : given;
  }
  if (directory.empty() || rank_ < 0 || rank_ >= size_ || size_ > max_ranks) {
    fail("set RANK, WORLD_SIZE (at most 64) and JOB_DIRECTORY, or start it through `zipccl ranks`");
  }
  const std::string path = directory + "/shared";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) {
    fail("cannot create " + path + ": " + std::strerror(errno));
  }
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) {
    fail("cannot map " + path + ": " + std::strerror(errno));
  }
  shared_ = std::launder(reinterpret_cast<Shared*>(memory));
  barrier();
}

Job::~Job() { munmap(shared_, sizeof(Shared)); }

void Job::barrier() {
  const std::uint32_t generation = shared_->generation.load(std::memory_order_acquire);
  if (shared_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size_)) {
    shared_->arrived.store(0, std::memory_order_relaxed);
    shared_->generation.store(generation + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; shared_->generation.load(std::memory_order_acquire) == generation; ++spins) {
    if (spins > spins_before_yield) {
      sched_yield();
    }
  }
}

void Job::broadcast(void* id, bool is_root) {
  if (is_root) {
    std::memcpy(shared_->id.data(), id, id_bytes);
  }
  barrier();
  std::memcpy(id, shared_->id.data(), id_bytes);
  barrier();
}

double Job::maximum(double value) {
  shared_->values[static_cast<std::size_t>(rank_)] = value;
  barrier();
  const double largest = *std::max_element(shared_->values.begin(), shared_->values.begin() + size_);
  barrier();
  return largest;
}

}  // namespace zipccl::test
