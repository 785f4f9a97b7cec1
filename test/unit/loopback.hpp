// Ranks as threads of one test process: a NcclTable whose all-gather, broadcast, send and receive copy through shared
// memory, and a Device whose streams are the calling thread. Faults are injected by number.
#pragma once

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "codec/device.hpp"
#include "collectives/nccl_table.hpp"
#include "test/unit/stream_order.hpp"

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

  static constexpr int every_rank = -2;

  // The fault: on rank `fault_rank`, or on every_rank, the `fault_call`th call (from 1) returns `fault_result`, and
  // fails the group that it is in; or if that is ncclSuccess the byte `fault_byte` of what rank `fault_sender`, or with
  // every_rank any other, sent arrives inverted. A call is a collective, a send, a receive, or the end of a group of
  // sends and receives.
  int fault_rank = -1;
  int fault_call = 0;
  ncclResult_t fault_result = ncclSuccess;
  std::size_t fault_byte = 0;
  int fault_sender = 0;

  // Counted on rank 0.
  std::atomic<int> gathers = 0;
  std::atomic<int> gathers_on_default_stream = 0;
  int broadcasts = 0;
  int groups = 0;

  // Point to point: what is under way, by sender and receiver, in order.
  using Message = std::vector<std::byte>;
  void put(int sender, int receiver, Message message);
  Message take(int sender, int receiver);  // waits for it
  std::size_t in_flight();

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, int>, std::deque<Message>> messages_;
};

class LoopbackDevice;

// The handle of this thread's rank; the table's functions find world and rank through it.
struct LoopbackRank {
  LoopbackDevice* device = nullptr;
  LoopbackWorld* world = nullptr;
  int rank = 0;
  int calls = 0;
  ncclComm_t handle() { return reinterpret_cast<ncclComm_t>(this); }
};

const collectives::NcclTable& loopback_table();

// Host memory, everything done before the call returns; `order` says whether it would have been right on streams, too.
// A stream can be captured; as in CUDA, work that would tie a graph to the outside other than by external events is
// refused. A fault: the operation number `fail_at` of the counted ones (encode, decode, receive, encode_and_receive,
// observe, pause, copy, record, wait, clear_async, allocate_async) fails with device_error, or out_of_memory, and does
// nothing. Memory released in stream order is never used again, and any later use of it is a fault of `order`.
class LoopbackDevice final : public codec::Device {
 public:
  LoopbackDevice() = default;
  ~LoopbackDevice() override;
  LoopbackDevice(const LoopbackDevice&) = delete;
  LoopbackDevice& operator=(const LoopbackDevice&) = delete;
  int ordinal() const override { return 0; }
  const char* name() const override { return "loopback"; }
  const char* last_error() const override { return "injected"; }
  std::uint64_t total_memory() const override { return std::uint64_t{1} << 32; }
  Status allocate(void** pointer, std::size_t bytes) override;
  void release(void* pointer) override;
  Status allocate_mapped(void** pointer, std::size_t bytes) override;
  void release_mapped(void* pointer) override { release(pointer); }
  Status clear(void* pointer, std::size_t bytes) override;
  Status priority(codec::Stream, int* priority) override {
    *priority = 0;
    return Status::ok;
  }
  Status create_stream(codec::Stream* stream, int priority) override;
  void destroy_stream(codec::Stream stream) override { release(stream); }
  Status allocate_async(void** pointer, std::size_t bytes, codec::Stream) override;
  void release_async(void* pointer, codec::Stream) override;
  Status clear_async(void* pointer, std::size_t bytes, codec::Stream) override;
  codec::Stream own_stream() override { return nullptr; }
  Status create_event(codec::Event* event) override;
  void destroy_event(codec::Event event) override { release(event); }
  Status record(codec::Event event, codec::Stream stream) override;
  Status record_external(codec::Event event, codec::Stream stream) override;
  Status wait_external(codec::Event event, codec::Stream stream) override;
  Status query(codec::Event, bool* done) override;
  Status wait(codec::Event event, codec::Stream stream) override;
  Status copy(void* destination, const void* source, std::size_t bytes, codec::Stream) override;
  Status capture(codec::Stream stream, std::uint64_t* id) override;
  Status synchronize() override { return Status::ok; }
  Status encode(const codec::EncodeJob& job, codec::Stream) override;
  Status decode(const codec::DecodeJob& job, codec::Stream) override;
  Status receive(const codec::ReceiveJob& job, codec::Stream) override;
  Status encode_and_receive(const codec::EncodeJob& encode, const codec::ReceiveJob& receive, codec::Stream) override;
  Status observe(const codec::ObserveJob& job, codec::Stream) override;
  Status pause(std::uint32_t, codec::Stream stream) override;

  using Work = std::function<Status(codec::Stream)>;
  struct Node {
    codec::Stream stream = nullptr;  // as captured; each launch has streams of its own
    Work work;
  };
  using Graph = std::vector<Node>;

  void begin_capture(codec::Stream stream);                 // also while others go on
  Graph end_capture(codec::Stream stream);                  // of the capture that the stream takes part in
  Status launch(const Graph& graph, codec::Stream stream);  // the first error of the work
  Status submit(codec::Stream stream, Work work);           // runs it, or captures it

  StreamOrder order;  // what everything enqueued would be ordered by, were it not done at once
  int fail_at = 0;
  int operations = 0;
  int allocations = 0;  // alive
  int decodes = 0;      // enqueued
  int pauses = 0;
  int together = 0;  // encodes and decodes in one launch
  bool never_done = false;
  std::uint64_t memory_limit = ~std::uint64_t{0};

 private:
  Status count();
  std::uint64_t capture_of(codec::Stream stream) const;  // 0 for none
  bool captured(codec::Stream stream) const { return capture_of(stream) != 0; }
  void note(const codec::EncodeJob& job, codec::Stream stream);
  void note(const codec::DecodeJob& job, const codec::MessageHeader* own_header, codec::Stream stream);
  void note(const codec::ReceiveJob& job, codec::Stream stream);

  std::map<codec::Stream, std::uint64_t> capturing_;  // streams of the captures under way, with their captures' numbers
  std::uint64_t captures_ = 0;                        // begun so far
  std::map<std::uint64_t, Graph> graphs_;             // what the captures under way have so far
  std::map<codec::Event, std::uint64_t> recorded_;    // by an ordinary record: in which capture, or 0
  std::uintptr_t launch_streams_ = std::uintptr_t{1} << 60;
  std::map<void*, std::size_t> grown_;  // memory of allocate_async
  std::vector<void*> released_;         // by release_async
};

}  // namespace zipccl::test
