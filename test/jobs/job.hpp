// A rank of a job whose processes a launcher started apart on one machine (RANK and WORLD_SIZE in the environment):
// barrier, exchange of an id and maximum over ranks, through a file that all map. Failures end the process with a
// message; the launcher then ends the other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace zipccl::test {

class Job {
 public:
  static constexpr int max_ranks = 64;
  static constexpr std::size_t id_bytes = 128;

  // `directory`: a folder that belongs to this run of the job alone; empty: environment variable JOB_DIRECTORY.
  // Returns when all ranks are there.
  explicit Job(std::string directory);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return rank_; }
  int local_rank() const { return local_rank_; }
  int size() const { return size_; }

  void barrier();                          // spins: ranks leave it close together
  void broadcast(void* id, bool is_root);  // id_bytes from the one root to all
  double maximum(double value);            // collective

 private:
  struct Shared;
  Shared* shared_ = nullptr;
  int rank_ = 0;
  int local_rank_ = 0;
  int size_ = 1;
};

}  // namespace zipccl::test
