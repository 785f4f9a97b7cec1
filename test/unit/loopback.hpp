// Ranks as threads of one test process: a NcclTable whose all-gather and broadcast copy through shared memory, and a
// Device whose streams are the calling thread. Faults are injected by number.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <vector>

#include "codec/device.hpp"
#include "collectives/nccl_table.hpp"

namespace zipccl::test {

// The ranks of one communicator. One at a time per process: the table's functions are plain functions.
struct LoopbackWorld {
  explicit LoopbackWorld(int rank_count);

  struct Wire {
    const void* send = nullptr;
    std::size_t bytes = 0;
  };
  int rank_count;
  std::barrier<> barrier;
  std::vector<Wire> wires;  // by rank, valid between two barriers

  // The fault: on rank `fault_rank`, the `fault_call`th collective (from 1) returns `fault_result`, or if that is
  // ncclSuccess the byte `fault_byte` of what rank 0 sent arrives inverted.
  int fault_rank = -1;
  int fault_call = 0;
  ncclResult_t fault_result = ncclSuccess;
  std::size_t fault_byte = 0;

  // Counted on rank 0.
  std::atomic<int> gathers = 0;
  int broadcasts = 0;
  int groups = 0;
};

// The handle of this thread's rank; the table's functions find world and rank through it.
struct LoopbackRank {
  LoopbackWorld* world = nullptr;
  int rank = 0;
  int calls = 0;
  ncclComm_t handle() { return reinterpret_cast<ncclComm_t>(this); }
};

const collectives::NcclTable& loopback_table();

// Host memory, everything done before the call returns. A fault: the operation number `fail_at` of the counted ones
// (encode, decode, patch, observe, copy, record, wait) fails with device_error.
class LoopbackDevice final : public codec::Device {
 public:
  int ordinal() const override { return 0; }
  const char* name() const override { return "loopback"; }
  const char* last_error() const override { return "injected"; }
  std::uint64_t total_memory() const override { return std::uint64_t{1} << 32; }
  Status allocate(void** pointer, std::size_t bytes) override;
  void release(void* pointer) override;
  Status allocate_mapped(void** pointer, std::size_t bytes) override;
  void release_mapped(void* pointer) override { release(pointer); }
  Status clear(void* pointer, std::size_t bytes) override;
  Status create_event(codec::Event* event) override;
  void destroy_event(codec::Event event) override;
  Status record(codec::Event, codec::Stream) override { return count(); }
  Status query(codec::Event, bool* done) override;
  Status wait(codec::Event, codec::Stream) override { return count(); }
  Status copy(void* destination, const void* source, std::size_t bytes, codec::Stream) override;
  Status capturing(codec::Stream, bool* active) override;
  Status synchronize() override { return Status::ok; }
  Status encode(const codec::EncodeJob& job, codec::Stream) override;
  Status decode(const codec::DecodeJob& job, codec::Stream) override;
  Status patch(const codec::PatchJob& job, codec::Stream) override;
  Status observe(const codec::ObserveJob& job, codec::Stream) override;

  int fail_at = 0;
  int operations = 0;
  int allocations = 0;  // alive
  bool never_done = false;
  std::uint64_t memory_limit = ~std::uint64_t{0};

 private:
  Status count();
};

}  // namespace zipccl::test
