// Runs a rank's part of programs and compares what they leave in its memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "test/model/program.hpp"
#include "test/model/random.hpp"
#include "test/model/reference.hpp"
#include "test/support/backend.hpp"
#include "test/support/ranks.hpp"

namespace zipccl::test {

class Runner {
 public:
  Runner(const Rank& rank, const World& world);  // creates the communicators
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // The text says what is wrong; empty if nothing is.
  std::string run(const Program& program);

 private:
  void connect(ncclComm_t communicator, std::size_t ranks);
  void issue(const Program& program);
  void issue(const Launch& launch);
  void issue(const Action& action);
  std::byte* place(const Action& action, std::size_t offset) const;
  void dawdle();
  std::string compare(const WorldMemory& expected);

  const Rank& rank_;
  const World& world_;
  std::unique_ptr<Backend> backend_;
  std::vector<ncclComm_t> communicators_;
  std::vector<cudaStream_t> streams_;
  std::vector<std::byte*> arenas_;
  WorldMemory memory_;
  Random delays_;  // of this rank
};

}  // namespace zipccl::test
