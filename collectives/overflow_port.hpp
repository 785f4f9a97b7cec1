// One communicator's end of the overflow channel (exchange mode static): the mapped memory through which its kernels
// hand over what a pool could not hold, and the work of the CPU thread that ships it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "codec/device.hpp"
#include "codec/format.hpp"
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
  static constexpr std::uint32_t all_receivers = codec::all_receivers;
  // The longest record, beyond which send() need not go. Messages whose record might be longer are not compressed.
  static constexpr std::uint64_t most_bytes = std::uint64_t{4} << 30;

  virtual ~RecordTransport() = default;
  // To rank `receiver`, or with all_receivers to all other ranks. Not ok if a rank that is still there will never get
  // it.
  virtual Status send(std::uint32_t receiver, const RecordId& id, Record record) = 0;
  virtual Found find(const RecordId& id, Record* record) = 0;
  virtual void drop(const RecordId& id) = 0;
  virtual bool flushed() const = 0;  // everything sent has left this process
  virtual void wake() = 0;           // OverflowPort::poll has something to look at again
};

class OverflowPort {
 public:
  static constexpr std::uint64_t outbox_bytes = 1 << 20;   // the most of a record that leaves at once
  static constexpr std::uint64_t mailbox_bytes = 1 << 20;  // the most that arrives at once

  // Reserves mapped host memory (outbox and mailbox, together about 2 MiB) and device memory (about 1 MiB), whatever
  // the size of messages. out_of_memory if there is too little.
  static Status create(codec::Device& device, std::unique_ptr<OverflowPort>* port);
  ~OverflowPort();  // nothing enqueued uses it any more, and poll() will not be called again
  OverflowPort(const OverflowPort&) = delete;
  OverflowPort& operator=(const OverflowPort&) = delete;

  // Before the first job. `own_rank` and the transport, which must outlive the port's use.
  void open(std::uint32_t own_rank, RecordTransport* transport);

  // For the calling thread: turn plain jobs into those of mode static. An exchange is one encode job and one receive
  // job, either of which may be without messages (codec/device.hpp), or the port stays busy. The exchange counts as
  // enqueued from attach() on. Encodes may run beside each other and beside receive jobs; those follow each other.
  // Exchanges that are in flight at the same time, at most in_flight, have numbers that differ modulo in_flight.
  static constexpr std::uint64_t in_flight = 4;
  void attach(std::uint64_t number, codec::EncodeJob* encode);
  codec::ReceiveJob receive_job(std::uint64_t number, const codec::DecodeJob& decode) const;
  // Enqueue; errors of the device's functions of the same names.
  Status receive(const codec::ReceiveJob& job, codec::Stream stream);
  Status encode_and_receive(const codec::EncodeJob& encode, const codec::ReceiveJob& job, codec::Stream stream);
  // When a call has failed, on a stream behind all that was enqueued: ends the exchanges that have no receive job, so
  // that the helper thread looks after what runs of them, and no longer. The port stays busy if the device refuses.
  void settle(codec::Stream stream);
  // An exchange has been captured: graphs may run it at any time without the host's saying so, so that poll() is busy
  // until release().
  void set_captured();

  // Counters in device memory, zero at first, for jobs (codec/device.hpp): calls so far, advanced by the last chunk of
  // each if the caller says so; messages of point to point so far.
  std::uint64_t* sequence_counter() const { return words_->sequence; }
  std::uint64_t* message_counter() const { return words_->messages; }

  // On the helper thread: ships what encodes have posted, answers what kernels wait for. False when everything enqueued
  // has finished.
  bool poll();

  // From any thread, without lock or CUDA call: kernels that wait go on at once; their output is undefined. A record of
  // which only a part has been posted is dropped.
  void release();
  // A fault that a kernel or the helper thread has found; once there is one, there is one for good.
  Status status() const;
  // Everything that encodes have posted has left the process; if not, wakes the helper thread, so that asking until it
  // has is enough. Says nothing of encodes that have yet to run.
  bool flushed() const;

  // As they stand, while kernels may run: what belongs to `finished` exchanges is in the others, but
  // for a corrupt tile.
  codec::ExchangeCounters counters() const;
  std::uint64_t enqueued() const { return enqueued_.load(std::memory_order_relaxed); }  // chunks so far
  // Records that have been shipped to one rank alone, point to point, or with all_receivers to all, of all-gathers: how
  // often and how much those messages overflowed.
  struct Sent {
    std::uint64_t records = 0;
    std::uint64_t bytes = 0;
  };
  Sent sent_to(std::uint32_t receiver) const;
  std::uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  static constexpr std::size_t line = 128;
  // Device memory; each in a line of its own, as kernels at work on different ones run at the same time.
  struct DeviceWords {
    struct Exchange {
      alignas(line) codec::MessageHeader header[1];  // of the own message
      alignas(line) std::uint64_t started_ns[1];
    };
    Exchange exchanges[in_flight];
    alignas(line) std::uint64_t sequence[1];
    alignas(line) std::uint64_t messages[1];
    alignas(line) std::uint32_t outbox_lock[1];
  };

  explicit OverflowPort(codec::Device& device) : device_(device) {}
  Status reserve();
  void ship();
  void send_record();
  void answer();

  codec::Device& device_;
  std::uint32_t own_rank_ = 0;
  RecordTransport* transport_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
  std::byte* mapped_ = nullptr;
  std::byte* room_ = nullptr;     // device memory, mailbox_bytes, followed by the words
  DeviceWords* words_ = nullptr;  // never looked at by the host
  codec::Outbox* outbox_ = nullptr;
  codec::Mailbox* mailbox_ = nullptr;
  codec::ExchangeCounters* counters_ = nullptr;
  std::uint32_t* released_ = nullptr;
  std::shared_ptr<std::vector<std::byte>> record_;  // of the helper thread: the pieces so far
  std::atomic<bool> incomplete_{false};             // record_ lacks pieces
  std::atomic<bool> captured_{false};
  std::atomic<std::uint64_t> enqueued_{0};
  std::uint64_t received_ = 0;  // of the calling thread: exchanges whose receive job is enqueued
  std::atomic<std::uint64_t> sent_bytes_{0};
  mutable std::mutex mutex_;               // guards the next
  std::map<std::uint32_t, Sent> sent_;     // by receiver
  std::atomic<Status> fault_{Status::ok};  // of the helper thread
};

}  // namespace zipccl::collectives
