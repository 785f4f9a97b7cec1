// Ranks of one loopback communicator that send each other compressed messages, as interpose has them do it.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "collectives/transfers.hpp"
#include "test/unit/static_ranks.hpp"

namespace zipccl::test {

struct TransferShape {
  int from = 0;
  int to = 0;
  std::uint64_t count = 0;
  Data kind = Data::normal;
  std::uintptr_t stream = 1;
  std::uint32_t room = 16;  // pool fraction
};

class TransferRanks : public StaticRanks {
 public:
  explicit TransferRanks(int count, std::uint64_t reserved_bytes = 0);

  const collectives::TransferStaging& staging(std::size_t rank) const { return *states[rank]->communicator.transfers; }
  // Ends everything but the devices, and says how many of their allocations are left. The last call.
  int leaks();
  // Work on every rank's `stream` that a compressed call of the communicator now comes before has been waited for.
  void require_chained();
};

// Messages whose buffers stay, so that graphs know their place and a StreamOrder no address twice.
class Messages {
 public:
  Messages(TransferRanks& ranks, std::vector<TransferShape> shapes, std::uint64_t seed);

  void refill(std::uint64_t seed, int kind_shift = 0);
  void run();                       // one group on every rank, as many threads
  void enqueue(GatherRank& state);  // one rank's part: its state's result and status
  void require_right() const;       // also that every rank succeeded
  void require_received() const;
  // Values come to each buffer, and leave it, by copies on the message's own stream.
  bool copies = false;
  bool drops = false;  // when NCCL refuses a call, instead of giving up the communicator

  std::uint64_t buffer_bytes(int rank) const;  // of values that it sends and receives
  std::uint64_t static_bytes(int rank) const;  // of its messages

 private:
  TransferRanks& ranks_;
  std::vector<TransferShape> shapes_;
  std::vector<std::vector<std::uint16_t>> sent_;
  std::vector<std::vector<std::uint16_t>> received_;  // with a guard of eight values behind
  std::vector<std::vector<std::uint16_t>> copied_to_;
  std::vector<std::vector<std::uint16_t>> copied_from_;
};

// Every rank sends the same to the next one, so that all do the same.
std::vector<TransferShape> ring(int ranks, const std::vector<TransferShape>& each);

}  // namespace zipccl::test
