// All-gathers against data that every rank can compute for itself, byte for byte, with guard zones around buffers.
#pragma once

#include <cstdint>
#include <vector>

#include "test/support/backend.hpp"
#include "test/support/data.hpp"

namespace zipccl::test {

struct GatherCase {
  std::size_t count = 0;  // values of one rank
  Data data = Data::normal;
  bool in_place = false;
  std::size_t offset = 0;  // values between an aligned address and the buffers
  std::uint64_t seed = 0;
};

// One all-gather of BF16 from the filling of its buffers to the comparison. Create, enqueue, finish.
class GatherRun {
 public:
  GatherRun(Backend& backend, int ranks, int rank_in_communicator, const GatherCase& shape);
  ~GatherRun();
  GatherRun(const GatherRun&) = delete;
  GatherRun& operator=(const GatherRun&) = delete;

  // Fresh values to send, and none received, for another call. Nothing enqueued may use the buffers.
  void refill(Data data, std::uint64_t seed);
  ncclResult_t call(ncclComm_t communicator, cudaStream_t stream);
  void enqueue(ncclComm_t communicator, cudaStream_t stream);  // a call that must succeed
  // Waits for the stream and compares every byte. Returns 1 and prints the first fault, or 0.
  int finish(cudaStream_t stream);

 private:
  static constexpr std::size_t guard = 256;  // bytes

  void upload();

  Backend& backend_;
  int ranks_;
  int own_;
  GatherCase shape_;
  std::byte* receive_memory_ = nullptr;
  std::byte* send_memory_ = nullptr;
  std::byte* receive_ = nullptr;
  std::byte* send_ = nullptr;
  std::size_t receive_bytes_ = 0;
};

}  // namespace zipccl::test
