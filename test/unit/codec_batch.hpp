// Exchanges of batches of messages between ranks of one process, on whatever runs the jobs: rows and lists, overflow
// and all, every value and counter compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codec/device.hpp"
#include "codec/overflow.hpp"
#include "test/unit/codec_messages.hpp"
#include "test/unit/codec_overflow_server.hpp"

namespace zipccl::test {

// What runs the jobs, one after the other, and holds their memory.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual void* allocate(std::size_t bytes) = 0;         // as Device::allocate; freed with the machine
  virtual void* allocate_mapped(std::size_t bytes) = 0;  // as Device::allocate_mapped
  virtual void free_all() = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual Status run(const codec::EncodeJob& job) = 0;
  virtual Status run(const codec::ReceiveJob& job) = 0;
  virtual Status run(const codec::EncodeJob& encode,
                     const codec::ReceiveJob& receive) = 0;  // the two beside each other
  virtual Status run(const codec::ObserveJob& job) = 0;
  virtual void finish() = 0;  // waits for what has been run
  // Entries come in tile order, so that records are known byte for byte.
  virtual bool is_canonical() const = 0;
};

// A rank's end of the overflow channel, through which its jobs reach the CPU thread.
struct OverflowEnd {
  void allocate(Machine& machine, std::uint64_t for_outbox, std::uint64_t for_mailbox);
  void attach(codec::EncodeJob* job) const;  // all but the lock
  void attach(codec::ReceiveJob* job) const;

  codec::Outbox* outbox = nullptr;
  std::uint64_t outbox_capacity = 0;
  codec::Mailbox* mailbox = nullptr;
  std::uint64_t mailbox_capacity = 0;
  codec::ExchangeCounters* counters = nullptr;
  std::uint32_t* release = nullptr;
  void* room = nullptr;
};

// One message of a batch.
struct Transfer {
  std::uint32_t sender = 0;
  std::uint32_t receiver = 0;
  std::uint64_t count = 0;
  Fill fill = Fill::normal;
  std::uint64_t seed = 0;
  std::uint32_t offset = 0;  // of both ends' values from an aligned address, in values
};

class BatchRanks {
 public:
  struct Shape {
    std::uint32_t ranks = 2;
    std::uint32_t pool_fraction = 16;
    std::uint64_t outbox_capacity = 4096;
    std::uint64_t mailbox_capacity = 4096;
  };

  BatchRanks(Machine& machine, const Shape& shape);
  ~BatchRanks();
  BatchRanks(const BatchRanks&) = delete;
  BatchRanks& operator=(const BatchRanks&) = delete;

  // One exchange; every rank takes part, with a list of what it sends and one of what it receives. Empty, or what went
  // wrong first. Message `spoilt` arrives without its magic, which is to be found and to harm no other one: the last
  // exchange, as such a fault stays.
  static constexpr std::size_t no_message = ~std::size_t{0};
  std::string exchange(const std::vector<Transfer>& transfers, std::size_t spoilt = no_message);
  // An all-to-all in rows: `fills[s * ranks + r]` is what rank s sends to rank r, `offset` as a Transfer's, rows a
  // little apart. The own part is skipped.
  std::string all_to_all(std::uint64_t count, std::span<const Fill> fills, std::uint32_t offset);

 private:
  struct Rank;
  struct Sent;

  void* allocate(std::size_t bytes);
  std::string fail(const std::string& what) const;
  std::string check_counters(const Transfer* spoilt = nullptr);
  std::string check_message(const Sent& sent);
  void receive(std::uint32_t rank, const codec::DecodeJob& job);

  Machine& machine_;
  Shape shape_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<OverflowServer> server_;
  std::uint64_t exchanges_ = 0;
  std::uint64_t overflows_ = 0;
  std::vector<std::vector<std::uint64_t>> numbers_;  // of the last exchange's messages, by sender
};

}  // namespace zipccl::test
