#include "test/unit/codec_batch.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "codec/format.hpp"
#include "codec/host_exchange.hpp"

namespace zipccl::test {
namespace {

using codec::Layout;

constexpr std::uint64_t guard_values = 8;  // around every output; keeps it aligned as its input is
constexpr std::uint64_t value_bytes = sizeof(std::uint16_t);

struct Place {
  void* memory;
  std::uint64_t offset;  // of the values, in values
  std::uint16_t* values() const { return static_cast<std::uint16_t*>(memory) + offset; }
};

}  // namespace

void OverflowEnd::allocate(Machine& machine, std::uint64_t for_outbox, std::uint64_t for_mailbox) {
  outbox = static_cast<codec::Outbox*>(machine.allocate_mapped(sizeof(codec::Outbox) + for_outbox));
  outbox_capacity = for_outbox;
  mailbox = static_cast<codec::Mailbox*>(machine.allocate_mapped(sizeof(codec::Mailbox) + for_mailbox));
  mailbox_capacity = for_mailbox;
  counters = static_cast<codec::ExchangeCounters*>(machine.allocate_mapped(sizeof(codec::ExchangeCounters)));
  release = static_cast<std::uint32_t*>(machine.allocate_mapped(sizeof(std::uint32_t)));
  room = machine.allocate(for_mailbox);
}

void OverflowEnd::attach(codec::EncodeJob* job) const {
  job->outbox = outbox;
  job->outbox_capacity = outbox_capacity;
  job->release = release;
}

void OverflowEnd::attach(codec::ReceiveJob* job) const {
  job->mailbox = mailbox;
  job->mailbox_capacity = mailbox_capacity;
  job->room = room;
  job->release = release;
  job->counters = counters;
}

struct BatchRanks::Rank : OverflowEnd {
  std::uint32_t* lock;
  std::uint64_t* message_counter;
  std::uint64_t* sequence_counter;
  std::uint64_t* started_ns;
  std::uint8_t* scratch;
  std::uint64_t values = 0;
  std::uint64_t escapes = 0;
  std::uint64_t overflow_messages = 0;
  std::uint64_t overflow_bytes = 0;
};

// A message on its way.
struct BatchRanks::Sent {
  Transfer transfer;
  std::vector<std::uint16_t> values;
  Place input;
  Place output;
  std::uint8_t* message;            // at the sender
  std::uint8_t* received;           // at the receiver
  std::uint64_t expected_sequence;  // 0: a number of its own
};

BatchRanks::BatchRanks(Machine& machine, const Shape& shape) : machine_(machine), shape_(shape) {
  std::vector<OverflowServer::Sender> senders;
  std::vector<OverflowServer::Receiver> receivers;
  const std::vector<std::uint8_t> zeros(codec::encode_scratch_bytes * codec::encode_scratch_messages);
  for (std::uint32_t r = 0; r < shape.ranks; ++r) {
    auto& rank = *ranks_.emplace_back(std::make_unique<Rank>());
    rank.allocate(machine, shape.outbox_capacity, shape.mailbox_capacity);
    rank.scratch = static_cast<std::uint8_t*>(machine.allocate(zeros.size()));
    machine.upload(rank.scratch, zeros.data(), zeros.size());
    auto* words = static_cast<std::uint64_t*>(machine.allocate(4 * sizeof(std::uint64_t)));
    machine.upload(words, zeros.data(), 4 * sizeof(std::uint64_t));
    rank.message_counter = words;
    rank.sequence_counter = words + 1;
    rank.started_ns = words + 2;
    rank.lock = reinterpret_cast<std::uint32_t*>(words + 3);
    senders.push_back({r, rank.outbox});
    receivers.push_back({r, rank.mailbox, shape.mailbox_capacity});
  }
  machine.finish();
  server_ = std::make_unique<OverflowServer>(senders, receivers);
}

BatchRanks::~BatchRanks() {
  machine_.finish();
  server_.reset();
  machine_.free_all();
}

std::string BatchRanks::fail(const std::string& what) const {
  return "exchange " + std::to_string(exchanges_) + ": " + what;
}

void BatchRanks::receive(std::uint32_t r, const codec::DecodeJob& decode) {
  Rank& rank = *ranks_[r];
  codec::ReceiveJob job;
  job.decode = decode;
  rank.attach(&job);
  job.started_ns = rank.started_ns;
  job.advance = rank.sequence_counter;
  if (machine_.run(job) != Status::ok) {
    throw std::runtime_error("a receive job was refused");
  }
}

std::string BatchRanks::check_message(const Sent& sent) {
  const Transfer& transfer = sent.transfer;
  const std::string title = std::to_string(transfer.count) + " values from " + std::to_string(transfer.sender) +
                            " to " + std::to_string(transfer.receiver);
  std::vector<std::uint16_t> got(transfer.count + 2 * guard_values);
  machine_.download(got.data(), sent.output.values() - guard_values, got.size() * value_bytes);
  if (!std::equal(sent.values.begin(), sent.values.end(), got.begin() + guard_values)) {
    return fail(title + ": values");
  }
  const auto is_untouched = [](std::uint16_t value) { return value == untouched; };
  if (!std::all_of(got.begin(), got.begin() + guard_values, is_untouched) ||
      !std::all_of(got.end() - guard_values, got.end(), is_untouched)) {
    return fail(title + ": bytes around the values");
  }
  codec::MessageHeader header;
  machine_.download(&header, sent.message, sizeof(header));
  const bool own_number = header.sequence >= codec::point_to_point_sequences;
  if (sent.expected_sequence == 0 ? !own_number : header.sequence != sent.expected_sequence) {
    return fail(title + ": sequence");
  }
  numbers_[transfer.sender].push_back(header.sequence);
  const Message reference = encode(sent.values, shape_.pool_fraction, header.sequence, header.chunk);
  const codec::MessageHeader expected = reference.header();
  if (header.entry_units != expected.entry_units || header.escapes != expected.escapes ||
      header.far_escapes != expected.far_escapes || header.count != expected.count) {
    return fail(title + ": header");
  }
  const std::uint64_t bytes = reference.overflow.size();
  Rank& receiver = *ranks_[transfer.receiver];
  receiver.values += transfer.count;
  receiver.escapes += header.escapes;
  receiver.overflow_messages += bytes != 0;
  receiver.overflow_bytes += bytes;
  if (bytes == 0) {
    return {};
  }
  ++overflows_;
  for (const OverflowServer::Record& record : server_->records()) {
    if (record.sender == transfer.sender && record.sequence == header.sequence && record.chunk == header.chunk &&
        record.receiver == transfer.receiver && record.bytes.size() == bytes) {
      const bool same = std::memcmp(record.bytes.data(), reference.overflow.data(), bytes) == 0;
      return same || !machine_.is_canonical() ? std::string() : fail(title + ": record");
    }
  }
  return fail(title + ": no record");
}

std::string BatchRanks::check_counters(const Transfer* spoilt) {
  for (auto& numbers : numbers_) {
    std::sort(numbers.begin(), numbers.end());
    if (numbers.size() > 1 && numbers.front() >= codec::point_to_point_sequences &&
        std::adjacent_find(numbers.begin(), numbers.end()) != numbers.end()) {
      return fail("a number is given twice");
    }
  }
  for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
    const Rank& rank = *ranks_[r];
    const codec::ExchangeCounters& counters = *rank.counters;
    const std::string title = "rank " + std::to_string(r) + ": ";
    const bool faulty = spoilt != nullptr && r == spoilt->receiver;
    if (counters.fault() != (faulty ? Status::bad_magic : Status::ok)) {
      return fail(title + "status " + std::to_string(static_cast<int>(counters.fault())));
    }
    if (counters.finished != exchanges_) {
      return fail(title + "finished");
    }
    if (counters.values != rank.values || counters.escapes != rank.escapes ||
        counters.overflow_messages != rank.overflow_messages || counters.overflow_bytes != rank.overflow_bytes) {
      return fail(title + "counters");
    }
    std::vector<std::uint8_t> scratch(codec::encode_scratch_bytes * codec::encode_scratch_messages);
    machine_.download(scratch.data(), rank.scratch, scratch.size());
    if (std::any_of(scratch.begin(), scratch.end(), [](std::uint8_t byte) { return byte != 0; })) {
      return fail(title + "scratch is not zero again");
    }
    std::uint64_t words[4];
    machine_.download(words, rank.message_counter, sizeof(words));
    if (words[1] != exchanges_ || words[3] != 0) {
      return fail(title + "sequence counter or lock");
    }
  }
  if (server_->broken != 0 || server_->drained < overflows_) {
    return fail("pieces");
  }
  return {};
}

std::string BatchRanks::exchange(const std::vector<Transfer>& transfers, std::size_t spoilt) {
  ++exchanges_;
  numbers_.assign(shape_.ranks, {});
  std::vector<Sent> sent;
  std::vector<std::vector<codec::EncodeItem>> encodes(shape_.ranks);
  std::vector<std::vector<codec::DecodeItem>> decodes(shape_.ranks);
  for (const Transfer& transfer : transfers) {
    const Layout layout = Layout::of(transfer.count, shape_.pool_fraction);
    Sent one{.transfer = transfer,
             .values = make_values(transfer.fill, transfer.count, transfer.seed),
             .input = {machine_.allocate((transfer.count + transfer.offset + 1) * value_bytes), transfer.offset},
             .output = {machine_.allocate((transfer.count + transfer.offset + 2 * guard_values) * value_bytes),
                        transfer.offset + guard_values},
             .message = static_cast<std::uint8_t*>(machine_.allocate(layout.static_bytes)),
             .received = static_cast<std::uint8_t*>(machine_.allocate(layout.static_bytes)),
             .expected_sequence = 0};
    machine_.upload(one.input.values(), one.values.data(), transfer.count * value_bytes);
    const std::vector<std::uint16_t> poison(transfer.count + 2 * guard_values, untouched);
    machine_.upload(one.output.values() - guard_values, poison.data(), poison.size() * value_bytes);
    // Tails that claim entries in the overflow, as a former message's might.
    const std::vector<std::uint8_t> stale(layout.static_bytes, 0x42);
    machine_.upload(one.message, stale.data(), stale.size());
    encodes[transfer.sender].push_back({one.input.values(), transfer.count, one.message, transfer.receiver});
    decodes[transfer.receiver].push_back({one.received, one.output.values(), transfer.count, transfer.sender});
    sent.push_back(std::move(one));
  }
  for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
    Rank& rank = *ranks_[r];
    codec::EncodeJob job;
    const codec::EncodeItem none;
    job.items = encodes[r].empty() ? &none : encodes[r].data();
    job.item_count = static_cast<std::uint32_t>(encodes[r].size());
    job.pool_fraction = shape_.pool_fraction;
    job.scratch = encodes[r].empty() ? nullptr : rank.scratch;
    job.message_counter = rank.message_counter;
    rank.attach(&job);
    job.outbox_lock = rank.lock;
    job.started_ns = rank.started_ns;
    if (machine_.run(job) != Status::ok) {
      return fail("encode refused");
    }
  }
  for (const Sent& one : sent) {
    machine_.copy(one.received, one.message, Layout::of(one.transfer.count, shape_.pool_fraction).static_bytes);
  }
  if (spoilt != no_message) {
    machine_.finish();
    machine_.upload(sent[spoilt].received, std::vector<std::uint8_t>(sizeof(codec::format_magic)).data(),
                    sizeof(codec::format_magic));
  }
  for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
    codec::DecodeJob job;
    const codec::DecodeItem none;
    job.items = decodes[r].empty() ? &none : decodes[r].data();
    job.item_count = static_cast<std::uint32_t>(decodes[r].size());
    job.pool_fraction = shape_.pool_fraction;
    job.any_sequence = true;
    receive(r, job);
  }
  machine_.finish();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (i == spoilt) {
      continue;
    }
    if (const std::string wrong = check_message(sent[i]); !wrong.empty()) {
      return wrong;
    }
  }
  return check_counters(spoilt == no_message ? nullptr : &transfers[spoilt]);
}

std::string BatchRanks::all_to_all(std::uint64_t count, std::span<const Fill> fills, std::uint32_t offset) {
  ++exchanges_;
  numbers_.assign(shape_.ranks, {});
  const std::uint32_t ranks = shape_.ranks;
  const Layout layout = Layout::of(count, shape_.pool_fraction);
  const std::uint64_t row_values = (count + 2 * guard_values + 7) / 8 * 8;
  const std::uint64_t message_stride = layout.static_bytes + codec::section_alignment;
  std::vector<Sent> sent;
  std::vector<std::uint16_t*> inputs;
  std::vector<std::uint16_t*> outputs;
  std::vector<std::uint8_t*> messages;
  std::vector<std::uint8_t*> received;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const std::uint64_t values = ranks * row_values + offset;
    inputs.push_back(static_cast<std::uint16_t*>(machine_.allocate(values * value_bytes)) + offset);
    outputs.push_back(static_cast<std::uint16_t*>(machine_.allocate(values * value_bytes)) + offset);
    const std::vector<std::uint16_t> poison(ranks * row_values, untouched);
    machine_.upload(outputs[r], poison.data(), poison.size() * value_bytes);
    messages.push_back(static_cast<std::uint8_t*>(machine_.allocate(ranks * message_stride)));
    received.push_back(static_cast<std::uint8_t*>(machine_.allocate(ranks * message_stride)));
  }
  for (std::uint32_t s = 0; s < ranks; ++s) {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      Sent one{.transfer = {s, r, count, fills[s * ranks + r], exchanges_ * 100 + s * ranks + r, offset},
               .values = {},
               .input = {},
               .output = {outputs[r], s * row_values + guard_values},
               .message = messages[s] + r * message_stride,
               .received = received[r] + s * message_stride,
               .expected_sequence = exchanges_ - 1 + 70};
      one.values = make_values(one.transfer.fill, count, one.transfer.seed);
      machine_.upload(inputs[s] + r * row_values, one.values.data(), count * value_bytes);
      if (s != r) {
        sent.push_back(std::move(one));
      }
    }
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    Rank& rank = *ranks_[r];
    codec::EncodeJob job;
    job.values = inputs[r];
    job.value_stride = row_values * value_bytes;
    job.count = count;
    job.pool_fraction = shape_.pool_fraction;
    job.message = messages[r];
    job.message_stride = message_stride;
    job.message_count = ranks;
    job.skip = r;
    job.scratch = rank.scratch;
    job.sequence = 70;
    job.sequence_counter = rank.sequence_counter;
    rank.attach(&job);
    job.outbox_lock = rank.lock;
    job.started_ns = rank.started_ns;
    if (machine_.run(job) != Status::ok) {
      return fail("encode refused");
    }
  }
  for (const Sent& one : sent) {
    machine_.copy(one.received, one.message, layout.static_bytes);
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    // One's own message does not travel; its header is looked at all the same.
    const codec::MessageHeader own{.magic = codec::format_magic,
                                   .version = codec::format_version,
                                   .dtype = static_cast<std::uint8_t>(codec::Dtype::bfloat16),
                                   .reserved0 = 0,
                                   .count = count,
                                   .sequence = exchanges_ - 1 + 70,
                                   .chunk = 0,
                                   .pool_units = layout.pool_units,
                                   .entry_units = 0,
                                   .escapes = 0,
                                   .far_escapes = 0,
                                   .overflow_tiles = 0,
                                   .reserved1 = {}};
    machine_.upload(received[r] + r * message_stride, &own, sizeof(own));
    ranks_[r]->values += count;
    codec::DecodeJob job;
    job.messages = received[r];
    job.message_stride = message_stride;
    job.message_count = ranks;
    job.skip = r;
    job.values = outputs[r] + guard_values;
    job.value_stride = row_values * value_bytes;
    job.count = count;
    job.pool_fraction = shape_.pool_fraction;
    job.sequence = 70;
    job.sequence_counter = ranks_[r]->sequence_counter;
    receive(r, job);
  }
  machine_.finish();
  for (const Sent& one : sent) {
    if (const std::string wrong = check_message(one); !wrong.empty()) {
      return wrong;
    }
  }
  return check_counters();
}

}  // namespace zipccl::test
