// Point to point: compressed sends and receives, alone and in groups.
//
// Each operation is a message of its own, by its own count: the sender encodes it into staging, the real NCCL sends its
// static bytes in place of the values, the receiver decodes. Whatever a group holds, it is one encode launch, one real
// group and one decode launch for each communicator (and for each room for outliers, where classes differ in it).
// Encode never waits for a peer, so a program that NCCL runs to its end ends with compression too, however the two
// sides of a pair group their operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/outcome.hpp"

namespace zipccl::collectives {

// One operation: a send (`send` is set) or a receive (`receive` is set). An all-to-all is one of each for every peer.
struct Transfer {
  Communicator* communicator = nullptr;
  const void* send = nullptr;
  void* receive = nullptr;
  std::uint64_t count = 0;  // values
  int peer = 0;
  cudaStream_t stream = nullptr;
  std::uint32_t pool_fraction = 0;  // codec::Layout; the same at both ends
  // What the statistics count it as: `calls` calls of `call_bytes` bytes.
  Collective kind = Collective::send;
  std::uint64_t call_bytes = 0;
  std::uint64_t calls = 1;
};

// How an ncclSend or ncclRecv goes: a pure function of what both ends share (rule R2).
Route route_transfer(const Communicator& communicator, int peer, std::uint64_t count, ncclDataType_t dtype);

// How an ncclAlltoAll of `count` values a peer goes: a pure function of what all ranks share. Within a compressed one,
// only peers over links that compression helps are sent compressed messages (compresses_link()).
Route route_all_to_all(const Communicator& communicator, std::uint64_t count, ncclDataType_t dtype);
bool compresses_link(const Communicator& communicator, int peer);

// The compressed operations of one communicator in one user group, in program order. They all run on the stream of the
// first one; the others' streams are joined to it and go on behind it, as NCCL does with a group's streams.
class TransferGroup {
 public:
  explicit TransferGroup(Communicator& communicator) : communicator_(communicator) {}

  Communicator& communicator() const { return communicator_; }
  std::size_t add(const Transfer& transfer);  // returns its index

  // Before the real group: staging grows if it must, and all sends are encoded. After a failure nothing is sent or
  // received, and the peers wait in vain, as in NCCL.
  Outcome encode();
  // Inside the real group, in the operation's place.
  Outcome issue(std::size_t index) const;
  // After the real group succeeded: all receives are decoded.
  Outcome decode();
  // Instead of decode() when NCCL has dropped the group: the communicator goes on as if it had not been.
  void drop();
  // Instead of, or after, decode() when anything failed: what was enqueued may still use the staging, and the
  // communicator's `failure` is set.
  void abandon(const Outcome& outcome);

 private:
  struct Message {
    Transfer transfer;
    std::uint64_t offset = 0;  // in the staging
    std::uint64_t bytes = 0;   // static
  };

  codec::Stream lead() const { return messages_.front().transfer.stream; }
  Outcome usable() const;
  void find_streams();
  Status begin();
  Status enqueue_encode(std::uint32_t room) const;
  Status enqueue_decode(std::uint32_t room, bool received) const;
  Status end() const;
  void count() const;

  Communicator& communicator_;
  std::vector<Message> messages_;
  std::vector<codec::Stream> others_;  // streams beside the lead
  std::vector<std::uint32_t> rooms_;   // pool fractions that occur: each is a launch, nearly always one
  std::uint64_t bytes_ = 0;            // of all messages
  std::uint64_t sends_ = 0;
  std::uint64_t capture_ = 0;  // of the lead (Device::capture)
  bool begun_ = false;
};

}  // namespace zipccl::collectives
