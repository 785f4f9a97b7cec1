// Many calls of one kind, each scenario on its own: what only shows after a while, or side by side.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "test/collectives/all_gather_cases.hpp"
#include "test/support/backend.hpp"
#include "test/support/ranks.hpp"

namespace zipccl::test {

class Stress {
 public:
  // `calls` replays or calls; 0: as many as the scenario takes by default.
  Stress(const Rank& rank, std::size_t calls);
  ~Stress();
  Stress(const Stress&) = delete;
  Stress& operator=(const Stress&) = delete;

  static bool known(const std::string& scenario);
  // Returns the number of faults, printed one by one.
  int run(const std::string& scenario);
  std::size_t calls_made() const { return calls_made_; }  // all-gathers with values; a replay is none
  std::size_t checks() const { return checks_; }

 private:
  using Run = std::unique_ptr<GatherRun>;

  void
  graphs();  // two graphs of one communicator, replayed with fresh data, eager calls between, all in flight at once
  void streams();  // three streams in turn, every hundredth call overflowing
  void bits();     // calls of all sizes whose every value overflows
  void returns();  // calls come back while the last rank has yet to make them (exchange mode static)
  void aborts();   // an abort while records are under way: the call returns, and so does the process
  void lives();    // created, used, destroyed: neither device nor host memory grows

  Run make(std::size_t count, bool in_place);
  void enqueue(const Run& run, std::size_t stream);
  void finish(const Run& run, std::size_t stream);
  std::size_t calls_or(std::size_t standard) const { return calls_ != 0 ? calls_ : standard; }

  const Rank& rank_;
  std::size_t calls_;
  std::unique_ptr<Backend> backend_;
  std::vector<cudaStream_t> streams_;
  ncclComm_t communicator_ = nullptr;
  std::uint64_t seed_ = 0;
  std::size_t calls_made_ = 0;
  std::size_t checks_ = 0;
  int faults_ = 0;
};

}  // namespace zipccl::test
