// A thread that does what a communicator's CPU thread does for its kernels, for all ranks of a test process: it drains
// overflow buffers and answers mailboxes from the records it has drained.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <thread>
#include <tuple>
#include <vector>

#include "codec/overflow.hpp"

namespace zipccl::test {

class OverflowServer {
 public:
  struct Sender {
    std::uint32_t rank;
    codec::OverflowNotice* notice;
    const std::byte* buffer;
  };
  struct Receiver {
    codec::Mailbox* mailbox;
    std::uint64_t capacity;
  };

  OverflowServer(std::vector<Sender> senders, std::vector<Receiver> receivers);
  ~OverflowServer();
  OverflowServer(const OverflowServer&) = delete;
  OverflowServer& operator=(const OverflowServer&) = delete;

  // Faults, at any time.
  std::atomic<bool> hold_drains = false;
  std::atomic<bool> hold_answers = false;
  std::atomic<std::uint32_t> lost_sender = ~0u;  // requests for its records are answered with connection_lost
  std::atomic<std::uint64_t> wrong_record = 0;   // added to the size of every record
  std::atomic<std::uint64_t> wrong_piece = 0;    // added to the size of every piece

  std::atomic<std::uint64_t> drained = 0;   // records
  std::atomic<std::uint64_t> answered = 0;  // requests

 private:
  using Key = std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>;  // sender, sequence, chunk

  void serve();
  void drain(const Sender& sender);
  void answer(const Receiver& receiver);

  std::vector<Sender> senders_;
  std::vector<Receiver> receivers_;
  std::map<Key, std::vector<std::byte>> records_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace zipccl::test
