// Messages between ranks, against data that both ends can compute for themselves, byte for byte, with guard zones
// around what is received.
#pragma once

#include <cstdint>
#include <vector>

#include "test/support/backend.hpp"
#include "test/support/data.hpp"

namespace zipccl::test {

struct Message {
  int from = 0;
  int to = 0;
  std::size_t count = 0;  // values of two bytes
  Data data = Data::normal;
  bool as_bytes = false;   // sent and received as ncclUint8, twice as many
  std::size_t offset = 0;  // values between an aligned address and the buffers, at both ends
  std::uint64_t seed = 0;
};

// One rank's ends of some messages, from the filling of the buffers to the comparison. The order in which send() and
// receive() are called is the program.
class MessageRun {
 public:
  MessageRun(Backend& backend, int own, const std::vector<Message>& messages);
  ~MessageRun();
  MessageRun(const MessageRun&) = delete;
  MessageRun& operator=(const MessageRun&) = delete;

  void send(std::size_t index, ncclComm_t communicator, cudaStream_t stream);     // nothing if another rank's
  void receive(std::size_t index, ncclComm_t communicator, cudaStream_t stream);  // nothing if another rank's
  void everything(ncclComm_t communicator, cudaStream_t stream);                  // sends and receives, in order

  // Compares every byte of what came. Returns the number of faults, and prints each message's first. The caller has
  // waited for the streams.
  int check();
  // Gives the messages another seed, writes their data anew and poisons the outputs; nothing may be in flight.
  void refill(std::uint64_t seed);

 private:
  static constexpr std::size_t guard = 256;  // bytes

  struct End {
    std::byte* memory = nullptr;
    std::byte* data = nullptr;
  };
  std::size_t shift(const Message& message) const { return guard + message.offset * sizeof(std::uint16_t); }
  End make_end(const Message& message) const;
  void fill();

  Backend& backend_;
  int own_;
  std::vector<Message> messages_;
  std::vector<End> sends_;
  std::vector<End> receives_;
};

}  // namespace zipccl::test
