// Many communicators side by side, as a job with several kinds of parallelism has them.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "test/collectives/all_gather_cases.hpp"
#include "test/support/backend.hpp"
#include "test/support/ranks.hpp"

namespace zipccl::test {

// Two sets of 24 communicators, one set after the other. In each, every other communicator is a child of the first one.
// All make all-gathers in turn, on three streams, compared byte by byte. The second set must not leave more device
// memory in use than the first one did.
class Many {
 public:
  static constexpr std::size_t set_size = 24;

  Many(const Rank& rank, std::size_t rounds);  // calls of each communicator; 0: a standard number
  ~Many();
  Many(const Many&) = delete;
  Many& operator=(const Many&) = delete;

  int run();  // the number of faults, printed one by one
  std::size_t calls_made() const { return calls_made_; }
  std::size_t checks() const { return checks_; }

 private:
  std::size_t used_memory() const;  // of the device when all ranks have come here; before any goes on
  ncclComm_t create(std::size_t index, ncclComm_t first) const;
  void run_set();
  void check_memory(std::size_t after_first, std::size_t after_second);

  const Rank& rank_;
  std::size_t rounds_;
  std::unique_ptr<Backend> backend_;
  std::array<cudaStream_t, 3> streams_{};
  std::vector<std::unique_ptr<GatherRun>> runs_;
  std::uint64_t seed_ = 0;
  std::size_t calls_made_ = 0;
  std::size_t checks_ = 0;
  int faults_ = 0;
};

// After the ranks have ended, by the reports in ZIPCCL_REPORT, if that is set: prints what staging each communicator
// had. All of a set together must keep to the cap for a device, those that are native must be so on all ranks, and both
// sets must have fared alike. Returns the number of faults.
int check_many(const RankGroup& group);

}  // namespace zipccl::test
