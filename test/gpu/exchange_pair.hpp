// Two ranks of one process on one GPU: their streams, their exchange memory and their calls, in which messages cross by
// device copies and overflow through whoever serves outboxes and mailboxes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "codec/format.hpp"
#include "codec/overflow.hpp"
#include "test/gpu/device_fixture.hpp"
#include "test/unit/codec_overflow_server.hpp"

namespace zipccl::test {

// Mapped memory, zeroed.
class Mapped {
 public:
  Mapped(codec::Device& device, std::size_t bytes);
  ~Mapped() { device_.release_mapped(data_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  codec::Device& device_;
  void* data_ = nullptr;
};

struct ExchangeShape {
  std::uint64_t count;
  std::uint32_t pool_fraction;
  std::uint64_t capacity;  // of outbox and mailbox
  codec::Layout layout() const { return codec::Layout::of(count, pool_fraction); }
};

// What a communicator owns on one rank.
struct ExchangeRank {
  ExchangeRank(codec::Device& device, const ExchangeShape& shape);
  ~ExchangeRank();
  ExchangeRank(const ExchangeRank&) = delete;
  ExchangeRank& operator=(const ExchangeRank&) = delete;

  Memory messages;  // by rank
  Memory room;
  Memory scratch;
  Memory started_ns;
  Memory lock;
  Mapped outbox;
  Mapped mailbox;
  Mapped counters;
  Mapped release;
  std::uint64_t* counter = nullptr;  // in device memory: of its calls' sequences, if any
  cudaStream_t streams[3] = {};
  cudaEvent_t encoded = nullptr;   // of the last call
  cudaEvent_t finished = nullptr;  // the last call
};

class ExchangePair {
 public:
  static constexpr std::uint32_t ranks = 2;

  ExchangePair(codec::Device& device, const ExchangeShape& shape);

  ExchangeRank& rank(std::uint32_t number) { return number == 0 ? first_ : second_; }
  codec::ExchangeCounters& counters(std::uint32_t number) {
    return *rank(number).counters.as<codec::ExchangeCounters>();
  }
  codec::MessageHeader header(std::uint32_t number);  // of the message that the rank has encoded

  std::vector<OverflowServer::Sender> senders();
  std::vector<OverflowServer::Receiver> receivers();

  // The steps of a call on rank `r`.
  codec::EncodeJob encode_job(std::uint32_t r, std::uint64_t sequence, const void* values);
  void encode(std::uint32_t r, std::uint64_t sequence, const void* values, cudaStream_t stream);
  void exchange(std::uint32_t r, cudaStream_t stream);
  void receive(std::uint32_t r, std::uint64_t sequence, std::uint8_t* values, cudaStream_t stream);
  codec::ReceiveJob receive_job(std::uint32_t r, std::uint64_t sequence, std::uint8_t* values);

  // A whole call on both ranks, each on the stream whose turn it is; a rank's calls follow each other. Rank r sends
  // inputs[r], its output, a shard of each rank, goes to values[r].
  void call(std::uint64_t sequence, const std::uint8_t* const (&inputs)[ranks], std::uint8_t* const (&values)[ranks]);

 private:
  std::uint8_t* message(ExchangeRank& holder, std::uint32_t sender) const {
    return holder.messages.data() + sender * layout_.static_bytes;
  }

  codec::Device& device_;
  ExchangeShape shape_;
  codec::Layout layout_;
  ExchangeRank first_;
  ExchangeRank second_;
};

}  // namespace zipccl::test
