// The ranks of one static exchange on the host engine, their outboxes, mailboxes and jobs.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <span>
#include <thread>
#include <vector>

#include "codec/host_engine.hpp"
#include "codec/host_exchange.hpp"
#include "codec/overflow.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/codec_messages.hpp"
#include "test/unit/codec_overflow_server.hpp"

namespace zipccl::test {

using Values = std::vector<std::uint16_t>;

constexpr std::int32_t number(Status status) { return static_cast<std::int32_t>(status); }

inline bool is_untouched(std::span<const std::uint16_t> values) {
  return std::all_of(values.begin(), values.end(), [](std::uint16_t value) { return value == untouched; });
}

// All senders and one receiver of an all-gather, the receiver being rank `own`.
class Exchange {
 public:
  struct Shape {
    std::uint32_t ranks = 2;
    std::uint32_t own = 0;
    std::uint64_t count = 0;
    std::uint32_t pool_fraction = 0;
    std::uint64_t capacity = 4096;         // of the mailbox
    std::uint64_t outbox_capacity = 4096;  // of each sender's
  };

  explicit Exchange(const Shape& shape)
      : shape_(shape),
        layout_(codec::Layout::of(shape.count, shape.pool_fraction)),
        messages_(layout_.static_bytes * shape.ranks),
        room_(aligned(shape.capacity)),
        mailbox_(sizeof(codec::Mailbox) + aligned(shape.capacity)),
        locks_(shape.ranks),
        output(shape.count * shape.ranks) {
    std::memset(mailbox_.data(), 0, sizeof(codec::Mailbox));
    for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
      std::memset(outboxes_.emplace_back(sizeof(codec::Outbox) + aligned(shape.outbox_capacity)).data(), 0,
                  sizeof(codec::Outbox));
    }
  }

  std::vector<OverflowServer::Sender> senders() {
    std::vector<OverflowServer::Sender> all;
    for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      all.push_back({rank, &outbox(rank)});
    }
    return all;
  }
  std::vector<OverflowServer::Receiver> receivers() { return {{shape_.own, &mailbox(), shape_.capacity}}; }

  codec::EncodeJob encode_job(std::uint32_t rank, const Values& values) {
    codec::EncodeJob job;
    job.values = values.data();
    job.count = shape_.count;
    job.pool_fraction = shape_.pool_fraction;
    job.message = messages_.data() + rank * layout_.static_bytes;
    job.sequence = sequence;
    job.sequence_counter = counter;
    job.chunk = 3;
    job.outbox = &outbox(rank);
    job.outbox_capacity = shape_.outbox_capacity;
    job.outbox_lock = &locks_[rank];
    job.release = &release;
    job.started_ns = &started_ns;
    return job;
  }

  codec::ReceiveJob receive_job() {
    codec::ReceiveJob job;
    job.decode.messages = messages_.data();
    job.decode.message_stride = layout_.static_bytes;
    job.decode.message_count = shape_.ranks;
    job.decode.skip = shape_.own;
    job.decode.values = output.data();
    job.decode.value_stride = shape_.count * sizeof(std::uint16_t);
    job.decode.count = shape_.count;
    job.decode.pool_fraction = shape_.pool_fraction;
    job.decode.sequence = sequence;
    job.decode.sequence_counter = counter;
    job.advance = counter;
    job.decode.chunk = 3;
    job.mailbox = &mailbox();
    job.mailbox_capacity = shape_.capacity;
    job.room = room_.data();
    job.release = &release;
    job.counters = &counters;
    job.started_ns = &started_ns;
    return job;
  }

  void encode(const std::vector<Values>& values) {
    ++sequence;
    for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      REQUIRE(codec::HostEngine<codec::Bf16Traits>::encode(encode_job(rank, values[rank])) == Status::ok);
    }
  }

  // May run on another thread than the test's.
  Status try_decode() {
    std::fill(output.begin(), output.end(), untouched);
    return codec::HostEngine<codec::Bf16Traits>::receive(receive_job());
  }
  void decode() { REQUIRE(try_decode() == Status::ok); }

  std::span<const std::uint16_t> output_of(std::uint32_t rank) const {
    return std::span(output).subspan(rank * shape_.count, shape_.count);
  }
  bool has_arrived(std::uint32_t rank, const std::vector<Values>& values) const {
    return std::equal(values[rank].begin(), values[rank].end(), output_of(rank).begin());
  }

  codec::Mailbox& mailbox() { return *reinterpret_cast<codec::Mailbox*>(mailbox_.data()); }
  codec::MessageHeader* header(std::uint32_t rank) {
    return reinterpret_cast<codec::MessageHeader*>(messages_.data() + rank * layout_.static_bytes);
  }
  std::uint8_t* tail(std::uint32_t rank, std::uint64_t tile) {
    return messages_.data() + rank * layout_.static_bytes + layout_.tails + tile * codec::tail_bytes;
  }
  std::span<const std::uint8_t> message(std::uint32_t rank) {
    return messages_.bytes().subspan(rank * layout_.static_bytes, layout_.static_bytes);
  }
  std::span<const std::uint8_t> outbox_data(std::uint32_t rank) {
    return outboxes_[rank].bytes().subspan(sizeof(codec::Outbox));
  }
  std::uint64_t overflow_bytes(std::uint32_t rank) { return layout_.overflow_bytes(header(rank)->entry_units); }

 private:
  static std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + codec::section_alignment - 1) / codec::section_alignment * codec::section_alignment;
  }

  Shape shape_;
  codec::Layout layout_;
  Block messages_;
  Block room_;
  Block mailbox_;
  std::vector<Block> outboxes_;
  std::vector<std::uint32_t> locks_;

 public:
  Values output;
  std::uint64_t sequence = 0;
  std::uint64_t* counter = nullptr;
  std::uint32_t release = 0;
  std::uint64_t started_ns = 0;
  codec::ExchangeCounters counters{};

  codec::Outbox& outbox(std::uint32_t rank) { return *reinterpret_cast<codec::Outbox*>(outboxes_[rank].data()); }
  std::uint32_t lock(std::uint32_t rank) const { return locks_[rank]; }
};

// What a receive job asks for: pieces that overlap by the largest entry.
inline std::uint64_t pieces_of(std::uint64_t bytes, std::uint64_t capacity) {
  const std::uint64_t step = capacity - codec::max_overflow_entry_bytes;
  return bytes == 0 ? 0 : bytes <= capacity ? 1 : 1 + (bytes - capacity + step - 1) / step;
}

inline std::vector<Values> all_random(std::uint32_t ranks, std::uint64_t count, std::uint64_t seed = 1) {
  std::vector<Values> values;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    values.push_back(make_values(Fill::random_bits, count, seed * 100 + rank));
  }
  return values;
}

constexpr auto patience = std::chrono::seconds(60);  // with what may take long on a busy machine

// Whether the work ends without being let go.
inline bool waits(const std::future<Status>& work) {
  return work.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout;
}
inline bool ends(const std::future<Status>& work) { return work.wait_for(patience) == std::future_status::ready; }

// Whether another thread's work comes to a point, where it then `waits`.
inline bool becomes(const std::uint64_t& counter, std::uint64_t value) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (codec::load_acquire(counter) != value) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace zipccl::test
