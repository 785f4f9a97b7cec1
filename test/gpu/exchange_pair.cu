#include <cuda_runtime.h>

#include <iterator>

#include "test/gpu/cuda_check.hpp"
#include "test/gpu/exchange_pair.hpp"

namespace zipccl::test {
Mapped::Mapped(codec::Device& device, std::size_t bytes) : device_(device) {
  require(device.allocate_mapped(&data_, bytes), device, "mapped memory");
}

ExchangeRank::ExchangeRank(codec::Device& device, const ExchangeShape& shape)
    : messages(device, ExchangePair::ranks * shape.layout().static_bytes),
      room(device, shape.capacity),
      scratch(device, codec::encode_scratch_bytes),
      started_ns(device, sizeof(std::uint64_t)),
      lock(device, sizeof(std::uint32_t)),
      outbox(device, sizeof(codec::Outbox) + shape.capacity),
      mailbox(device, sizeof(codec::Mailbox) + shape.capacity),
      counters(device, sizeof(codec::ExchangeCounters)),
      release(device, sizeof(std::uint32_t)) {
  require(device.clear(scratch.data(), scratch.size()), device, "clear");
  require(device.clear(lock.data(), lock.size()), device, "clear");
  for (auto& stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (auto* event : {&encoded, &finished}) check(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
}

ExchangeRank::~ExchangeRank() {
  for (auto& stream : streams) check(cudaStreamDestroy(stream));
  for (auto* event : {&encoded, &finished}) check(cudaEventDestroy(*event));
}

ExchangePair::ExchangePair(codec::Device& device, const ExchangeShape& shape)
    : device_(device), shape_(shape), layout_(shape.layout()), first_(device, shape), second_(device, shape) {}

std::vector<OverflowServer::Sender> ExchangePair::senders() {
  std::vector<OverflowServer::Sender> all;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    all.push_back({r, rank(r).outbox.as<codec::Outbox>()});
  }
  return all;
}

std::vector<OverflowServer::Receiver> ExchangePair::receivers() {
  std::vector<OverflowServer::Receiver> all;
  for (std::uint32_t r = 0; r < ranks; ++r) all.push_back({r, rank(r).mailbox.as<codec::Mailbox>(), shape_.capacity});
  return all;
}

codec::EncodeJob ExchangePair::encode_job(std::uint32_t r, std::uint64_t sequence, const void* values) {
  ExchangeRank& own = rank(r);
  codec::EncodeJob job;
  job.values = values;
  job.count = shape_.count;
  job.pool_fraction = shape_.pool_fraction;
  job.message = message(own, r);
  job.scratch = own.scratch.data();
  job.sequence = sequence;
  job.sequence_counter = own.counter;
  job.outbox = own.outbox.as<codec::Outbox>();
  job.outbox_capacity = shape_.capacity;
  job.outbox_lock = reinterpret_cast<std::uint32_t*>(own.lock.data());
  job.release = own.release.as<std::uint32_t>();
  job.started_ns = reinterpret_cast<std::uint64_t*>(own.started_ns.data());
  return job;
}

void ExchangePair::encode(std::uint32_t r, std::uint64_t sequence, const void* values, cudaStream_t stream) {
  require(device_.encode(encode_job(r, sequence, values), stream), device_, "encode");
}

void ExchangePair::exchange(std::uint32_t r, cudaStream_t stream) {
  const std::uint32_t peer = 1 - r;
  require(device_.copy(message(rank(r), peer), message(rank(peer), peer), layout_.static_bytes, stream), device_,
          "copy");
}

codec::ReceiveJob ExchangePair::receive_job(std::uint32_t r, std::uint64_t sequence, std::uint8_t* values) {
  ExchangeRank& own = rank(r);
  codec::ReceiveJob job;
  job.decode.messages = own.messages.data();
  job.decode.message_stride = layout_.static_bytes;
  job.decode.message_count = ranks;
  job.decode.skip = r;
  job.decode.values = values;
  job.decode.value_stride = shape_.count * sizeof(std::uint16_t);
  job.decode.count = shape_.count;
  job.decode.pool_fraction = shape_.pool_fraction;
  job.decode.sequence = sequence;
  job.decode.sequence_counter = own.counter;
  job.advance = own.counter;
  job.mailbox = own.mailbox.as<codec::Mailbox>();
  job.mailbox_capacity = shape_.capacity;
  job.room = own.room.data();
  job.release = own.release.as<std::uint32_t>();
  job.counters = own.counters.as<codec::ExchangeCounters>();
  job.started_ns = reinterpret_cast<const std::uint64_t*>(own.started_ns.data());
  return job;
}

void ExchangePair::receive(std::uint32_t r, std::uint64_t sequence, std::uint8_t* values, cudaStream_t stream) {
  require(device_.receive(receive_job(r, sequence, values), stream), device_, "receive");
}

void ExchangePair::call(std::uint64_t sequence, const std::uint8_t* const (&inputs)[ranks],
                        std::uint8_t* const (&values)[ranks]) {
  const unsigned s = sequence % std::size(rank(0).streams);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    ExchangeRank& own = rank(r);
    // The peer's receive reads the message that this encode overwrites.
    for (std::uint32_t other = 0; other < ranks; ++other) {
      check(cudaStreamWaitEvent(own.streams[s], rank(other).finished, 0));
    }
    encode(r, sequence, inputs[r], own.streams[s]);
  }
  for (std::uint32_t r = 0; r < ranks; ++r) check(cudaEventRecord(rank(r).encoded, rank(r).streams[s]));
  for (std::uint32_t r = 0; r < ranks; ++r) {
    ExchangeRank& own = rank(r);
    check(cudaStreamWaitEvent(own.streams[s], rank(1 - r).encoded, 0));
    exchange(r, own.streams[s]);
    receive(r, sequence, values[r], own.streams[s]);
  }
  for (std::uint32_t r = 0; r < ranks; ++r) check(cudaEventRecord(rank(r).finished, rank(r).streams[s]));
}

codec::MessageHeader ExchangePair::header(std::uint32_t r) {
  codec::MessageHeader header;
  download(&header, message(rank(r), r), sizeof(header));
  return header;
}

}  // namespace zipccl::test
