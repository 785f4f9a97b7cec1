#include <algorithm>
#include <cstring>

#include "codec/host_engine.hpp"
#include "codec/host_exchange.hpp"
#include "codec/job_messages.hpp"
#include "codec/overflow.hpp"

namespace zipccl::codec {
namespace {

// One message of a job.
struct Received {
  const ReceiveJob& job;
  DecodeItem item;
  MessageHeader header;
  std::uint64_t overflow_bytes = 0;  // as its header announces
};

// Asks for one piece and waits for it.
Status request_piece(const Received& message, std::uint64_t offset, std::uint64_t& wait_ns) {
  const ReceiveJob& job = message.job;
  if (load_acquire(*job.release) != 0) {
    return Status::aborted;
  }
  Mailbox& mailbox = *job.mailbox;
  mailbox.sequence = message.header.sequence;
  mailbox.offset = offset;
  mailbox.chunk = message.header.chunk;
  mailbox.sender = message.item.sender;
  const std::uint64_t ticket = mailbox.ticket + 1;
  store_release(mailbox.ticket, ticket);
  const std::uint64_t begin = now_ns();
  const bool answered = wait_unless_released(*job.release, [&] { return load_acquire(mailbox.answered) == ticket; });
  wait_ns += now_ns() - begin;
  if (!answered) {
    return Status::aborted;
  }
  if (const auto status = static_cast<Status>(mailbox.status); status != Status::ok) {
    return status;
  }
  const bool expected = mailbox.record_bytes == message.overflow_bytes &&
                        mailbox.piece_bytes == std::min(job.mailbox_capacity, message.overflow_bytes - offset);
  return expected ? Status::ok : Status::bad_totals;
}

// A decode of the message alone, which reports to `found`: the first pass, unless a piece of overflow is added.
DecodeJob pass_over(const Received& message, MessageSummary& found) {
  DecodeJob pass;
  pass.messages = message.item.message;
  pass.message_count = 1;
  pass.values = message.item.values;
  pass.count = message.item.count;
  pass.pool_fraction = message.job.decode.pool_fraction;
  pass.any_sequence = true;  // the header has been checked
  pass.chunk = message.header.chunk;
  pass.summaries = &found;
  return pass;
}

template <typename Traits>
Status decode_tiles(const DecodeJob& pass, ExchangeCounters& total) {
  const Status status = HostEngine<Traits>::decode(pass);
  if (pass.summaries->status != static_cast<std::int32_t>(Status::ok)) {
    total.tile_status = pass.summaries->status;
  }
  return status;
}

// Decodes the tiles whose entries lie in the overflow, piece by piece.
template <typename Traits>
Status patch(const Received& message, ExchangeCounters& total) {
  const std::uint64_t capacity = message.job.mailbox_capacity;
  const std::uint64_t step = capacity - max_overflow_entry_bytes;
  for (std::uint64_t offset = 0;; offset += step) {
    if (const Status status = request_piece(message, offset, total.wait_ns); status != Status::ok) {
      return status;
    }
    const std::uint64_t size = std::min(capacity, message.overflow_bytes - offset);
    const bool last = offset + size == message.overflow_bytes;
    std::memcpy(message.job.room, message.job.mailbox->data(), size);
    MessageSummary found{};
    DecodeJob pass = pass_over(message, found);
    pass.overflow = message.job.room;
    pass.overflow_begin = offset;
    pass.overflow_step = last ? size : step;  // the next piece holds the others too
    pass.overflow_size = size;
    if (const Status status = decode_tiles<Traits>(pass, total); status != Status::ok) {
      return status;
    }
    if (last) {
      total.overflow_bytes += message.overflow_bytes;
      return Status::ok;
    }
  }
}

// Adds what one job has counted to the communicator's counters, which another thread may read.
void publish(const ExchangeCounters& job, ExchangeCounters& counters) {
  const auto add = [](std::uint64_t& total, std::uint64_t amount) { store_release(total, total + amount); };
  add(counters.values, job.values);
  add(counters.escapes, job.escapes);
  add(counters.overflow_messages, job.overflow_messages);
  add(counters.overflow_bytes, job.overflow_bytes);
  add(counters.wait_ns, job.wait_ns);
  add(counters.exchange_ns, job.exchange_ns);
  if (counters.status == static_cast<std::int32_t>(Status::ok)) {
    store_release(counters.status, job.status);
  }
  if (job.tile_status != static_cast<std::int32_t>(Status::ok)) {
    store_release(counters.tile_status, job.tile_status);
  }
  add(counters.finished, 1);
}

}  // namespace

template <ValueTraits Traits>
Status HostEngine<Traits>::receive(const ReceiveJob& job) {
  if (const Status status = validate(job, sizeof(typename Traits::Value)); status != Status::ok) {
    return status;
  }
  const std::uint64_t sequence = job.decode.sequence + counted(job.decode.sequence_counter);
  ExchangeCounters total{};
  const auto fault = [&](Status status) {
    if (total.status == static_cast<std::int32_t>(Status::ok)) {
      total.status = static_cast<std::int32_t>(status);
    }
  };
  bool ended = false;
  for (std::uint32_t m = 0; m < message_total(job.decode); ++m) {
    Received message{.job = job, .item = message_of(job.decode, m), .header = {}};
    const bool own = is_skipped(job.decode, m);
    std::memcpy(&message.header, own && job.own_header != nullptr ? job.own_header : message.item.message,
                sizeof(message.header));
    const Layout layout = Layout::of(message.item.count, job.decode.pool_fraction);
    Status status =
        check_header(message.header, Traits::dtype, layout, sequence, job.decode.chunk, job.decode.any_sequence);
    if (status != Status::ok) {
      fault(status);
      continue;
    }
    message.overflow_bytes = layout.overflow_bytes(message.header.entry_units);
    total.values += message.header.count;
    total.escapes += message.header.escapes;
    total.overflow_messages += message.overflow_bytes != 0;
    if (own) {
      continue;
    }
    MessageSummary found{};
    status = decode_tiles<Traits>(pass_over(message, found), total);
    if (status == Status::ok && message.overflow_bytes != 0 && !ended) {
      status = patch<Traits>(message, total);
      ended = status != Status::ok;
    }
    fault(status);
  }
  if (job.started_ns != nullptr) {
    total.exchange_ns = now_ns() - *job.started_ns;
  }
  publish(total, *job.counters);
  if (job.advance != nullptr) {
    add_release(*job.advance, std::uint64_t{1});
  }
  return Status::ok;
}

template Status HostEngine<Bf16Traits>::receive(const ReceiveJob& job);

}  // namespace zipccl::codec
