// One communicator's end of the overflow channel (exchange mode static): the mapped memory through which its kernels
// hand over what a pool could not hold, and the work of the CPU thread that ships it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codec/device.hpp"
#include "codec/overflow.hpp"

namespace zipccl::collectives {

struct RecordId {
  std::uint32_t sender = 0;  // rank
  std::uint64_t sequence = 0;
  std::uint32_t chunk = 0;
};

// What carries records between the ranks of one communicator. interpose implements it with the switcher's channel. All
// functions may be called from any thread and never block.
class RecordTransport {
 public:
  enum class Found : std::uint8_t { arrived, awaited, lost };
  using Record = std::shared_ptr<const std::vector<std::byte>>;

  virtual ~RecordTransport() = default;
  // To all other ranks. Not ok if a rank that is still there will never get it.
  virtual Status send_to_all(const RecordId& id, Record record) = 0;
  virtual Found find(const RecordId& id, Record* record) = 0;
  virtual void drop(const RecordId& id) = 0;
  virtual bool flushed() const = 0;  // everything sent has left this process
  virtual void wake() = 0;           // OverflowPort::poll has something to look at again
};

class OverflowPort {
 public:
  static constexpr std::uint64_t mailbox_bytes = 1 << 20;

  // Reserves mapped host memory: two buffers of `buffer_bytes` (a staging slot, enough for any chunk's overflow) and
  // the mailbox. out_of_memory if there is too little.
  static Status create(codec::Device& device, std::uint64_t buffer_bytes, int rank_count,
                       std::unique_ptr<OverflowPort>* port);
  ~OverflowPort();  // nothing enqueued uses it any more, and poll() will not be called again
  OverflowPort(const OverflowPort&) = delete;
  OverflowPort& operator=(const OverflowPort&) = delete;

  // Before the first job. `own_rank` and the transport, which must outlive the port's use.
  void open(std::uint32_t own_rank, RecordTransport* transport);

  // For the calling thread: turns a chunk's plain jobs into those of mode static. `half` is 0 or 1; `room` is device
  // memory of buffer_bytes. The chunk counts as enqueued from here on, and poll() will be busy until it has finished.
  void attach(std::uint64_t half, codec::EncodeJob* encode);
  codec::PatchJob patch_job(std::uint64_t half, const codec::DecodeJob& decode, void* room) const;

  // On the helper thread: ships what encodes have posted, answers what patches wait for. False when everything enqueued
  // has finished.
  bool poll();

  // From any thread, without lock or CUDA call: kernels that wait go on at once; their output is undefined.
  void release();
  // First fault that a kernel or the helper thread has found; sticky.
  Status status() const;
  // Everything that encodes have posted has left the process. Says nothing of encodes that have yet to run.
  bool flushed() const;

  const codec::ExchangeCounters& counters() const { return *counters_; }
  std::uint64_t enqueued() const { return enqueued_.load(std::memory_order_relaxed); }  // chunks so far
  std::uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  OverflowPort(codec::Device& device, std::uint64_t buffer_bytes, int rank_count);
  Status reserve();
  void ship(std::size_t half);
  void answer();

  codec::Device& device_;
  std::uint64_t buffer_bytes_;
  std::uint32_t rank_count_;
  std::uint32_t own_rank_ = 0;
  RecordTransport* transport_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
  std::byte* mapped_ = nullptr;
  std::uint64_t* started_ns_ = nullptr;  // device memory, one a half
  std::array<std::byte*, 2> buffers_{};
  codec::OverflowNotice* notices_ = nullptr;  // two
  codec::Mailbox* mailbox_ = nullptr;
  codec::ExchangeCounters* counters_ = nullptr;
  std::uint32_t* released_ = nullptr;
  std::atomic<std::uint64_t> enqueued_{0};
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<Status> fault_{Status::ok};  // of the helper thread
};

}  // namespace zipccl::collectives
