#include "test/unit/codec_messages.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>

#include "codec/host_engine.hpp"

namespace zipccl::test {
namespace {

using Engine = codec::HostEngine<codec::Bf16Traits>;

void require(Status status) {
  if (status != Status::ok) {
    throw std::runtime_error(describe(status));
  }
}

codec::DecodeJob decode_job(const Message& message, Result& result) {
  codec::DecodeJob job;
  job.messages = message.bytes.data();
  job.message_count = 1;
  job.values = result.values.data();
  job.count = message.count;
  job.pool_fraction = message.pool_fraction;
  job.sequence = message.sequence;
  job.chunk = message.chunk;
  job.summaries = &result.summary;
  return job;
}

}  // namespace

Block::Block(std::uint64_t bytes) : size_(bytes) {
  // aligned_alloc wants whole multiples of the alignment; messages are, overflows are aligned to their units.
  const std::uint64_t alignment = bytes % codec::section_alignment == 0 ? codec::section_alignment : codec::unit_bytes;
  if (bytes == 0) {
    return;
  }
  data_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(alignment, bytes)));
  if (data_ == nullptr) {
    throw std::bad_alloc();
  }
  std::memset(data_.get(), 0xA5, bytes);
}

Block::Block(std::span<const std::uint8_t> bytes) : Block(bytes.size()) {
  if (!bytes.empty()) {
    std::memcpy(data_.get(), bytes.data(), bytes.size());
  }
}

codec::MessageHeader Message::header() const {
  codec::MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

void Message::set_header(const codec::MessageHeader& header) { std::memcpy(bytes.data(), &header, sizeof(header)); }

Message encode(std::span<const std::uint16_t> values, std::uint32_t pool_fraction, std::uint64_t sequence,
               std::uint32_t chunk) {
  const auto layout = codec::Layout::of(values.size(), pool_fraction);
  Message message{values.size(), pool_fraction, sequence, chunk, Block(layout.static_bytes), Block(0)};
  const Block room(layout.max_overflow_bytes());
  codec::EncodeJob job;
  job.values = values.data();
  job.count = values.size();
  job.pool_fraction = pool_fraction;
  job.message = message.bytes.data();
  job.overflow = const_cast<std::uint8_t*>(room.data());
  job.overflow_bytes = room.size();
  job.sequence = sequence;
  job.chunk = chunk;
  require(Engine::encode(job));
  message.overflow = Block(room.bytes().first(layout.overflow_bytes(message.header().entry_units)));
  return message;
}

Result decode_static(const Message& message) {
  Result result{{}, std::vector<std::uint16_t>(message.count, untouched)};
  require(Engine::decode(decode_job(message, result)));
  return result;
}

void patch(const Message& message, std::uint64_t begin, std::uint64_t step, std::uint64_t size, Result& result) {
  const Block piece(message.overflow.bytes().subspan(begin, size));
  codec::DecodeJob job = decode_job(message, result);
  job.overflow = piece.data();
  job.overflow_begin = begin;
  job.overflow_step = step;
  job.overflow_size = size;
  require(Engine::decode(job));
}

Result decode(const Message& message, std::uint64_t step) {
  Result result = decode_static(message);
  constexpr std::uint64_t largest_entry = std::uint64_t{codec::raw_entry_units} * codec::unit_bytes;
  for (std::uint64_t begin = 0; begin < message.overflow.size(); begin += step) {
    patch(message, begin, step, std::min(step + largest_entry, message.overflow.size() - begin), result);
  }
  return result;
}

std::uint16_t to_bf16(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

std::vector<std::uint16_t> make_values(Fill fill, std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed * 31 + static_cast<std::uint64_t>(fill));
  std::normal_distribution<double> normal;
  const auto pattern = [&] { return static_cast<std::uint16_t>(random()); };
  const std::uint16_t one_value = pattern();
  double sigma = 1.0;
  const auto make = [&](std::uint64_t i) -> std::uint16_t {
    switch (fill) {
      case Fill::normal:
        return to_bf16(0.02 * normal(random));
      case Fill::normal_unit:
        return to_bf16(normal(random));
      case Fill::normal_tiny:
        return to_bf16(1e-38 * normal(random));
      case Fill::mixture:
        if (i % 48 == 0) {
          sigma = std::ldexp(1.0, static_cast<int>(random() % 24) - 12);
        }
        return to_bf16(sigma * normal(random));
      case Fill::heavy_tails:
        return to_bf16(std::pow(normal(random), 5));
      case Fill::zeros:
        return pattern() & 0x8000;
      case Fill::sparse:
        return random() % 100 < 82 ? std::uint16_t{0} : to_bf16(normal(random));
      case Fill::random_bits:
        return pattern();
      case Fill::nan_payloads:
        return pattern() | 0x7f80;
      case Fill::denormals:
        return pattern() & 0x807f;
      case Fill::constant:
        return one_value;
      case Fill::outlier:
        return i % codec::tile_values == seed % codec::tile_values ? pattern() : one_value;
      case Fill::steps:
        return static_cast<std::uint16_t>((i / 16 % 256) << 7 | (pattern() & 0x807f));
    }
    return 0;
  };
  std::vector<std::uint16_t> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    values[i] = make(i);
  }
  return values;
}

}  // namespace zipccl::test
