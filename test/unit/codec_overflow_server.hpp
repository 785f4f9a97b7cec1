// A thread that does what a communicator's CPU thread does for its kernels, for all ranks of a test process: it drains
// outboxes and answers mailboxes from the records it has made of their pieces.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "codec/overflow.hpp"

namespace zipccl::test {

class OverflowServer {
 public:
  struct Sender {
    std::uint32_t rank;
    codec::Outbox* outbox;
  };
  struct Receiver {
    std::uint32_t rank;
    codec::Mailbox* mailbox;
    std::uint64_t capacity;
  };

  OverflowServer(std::vector<Sender> senders, std::vector<Receiver> receivers);
  ~OverflowServer();
  OverflowServer(const OverflowServer&) = delete;
  OverflowServer& operator=(const OverflowServer&) = delete;

  // Faults, at any time.
  std::atomic<bool> hold_drains = false;  // pieces are not taken
  std::atomic<bool> hold_answers = false;
  std::atomic<std::uint32_t> lost_sender = ~0u;  // requests for its records are answered with connection_lost
  std::atomic<std::uint64_t> wrong_record = 0;   // added to the size of every record
  std::atomic<std::uint64_t> wrong_piece = 0;    // added to the size of every piece
  std::atomic<std::uint64_t> good_answers = 0;   // so many requests are answered before any of these faults

  std::atomic<std::uint64_t> drained = 0;   // records that are whole
  std::atomic<std::uint64_t> pieces = 0;    // of records
  std::atomic<std::uint64_t> broken = 0;    // pieces that do not follow from the one before
  std::atomic<std::uint64_t> answered = 0;  // requests

  // The whole records of a sender and what they hold.
  struct Record {
    std::uint32_t sender;
    std::uint64_t sequence;
    std::uint32_t chunk;
    std::uint32_t receiver;
    std::vector<std::byte> bytes;
  };
  std::vector<Record> records() const;

 private:
  using Key = std::tuple<std::uint32_t, std::uint64_t, std::uint32_t, std::uint32_t>;  // sender to receiver
  struct Held {
    std::uint64_t size;  // of the whole record
    std::vector<std::byte> bytes;
  };

  void serve();
  void drain(const Sender& sender);
  void answer(const Receiver& receiver);

  std::vector<Sender> senders_;
  std::vector<Receiver> receivers_;
  mutable std::mutex mutex_;  // guards records_
  std::map<Key, Held> records_;
  std::map<std::uint32_t, Key> open_;  // by sender: the record whose pieces are coming
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace zipccl::test
