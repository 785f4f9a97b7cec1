#include <algorithm>
#include <cstring>

#include "codec/host_engine.hpp"
#include "codec/host_exchange.hpp"
#include "codec/job_messages.hpp"
#include "codec/overflow.hpp"

namespace zipccl::codec {
namespace {

// One message while it is patched.
struct Patching {
  const PatchJob& job;
  DecodeItem item;
  std::uint64_t sequence;  // of its record
  std::uint32_t chunk;
  std::uint64_t bytes;     // of its record, as its header announces
  MessageSummary found{};  // what the patch finds
};

// Asks for one piece and waits for it.
Status request_piece(const Patching& message, std::uint64_t offset, std::uint64_t& wait_ns) {
  const PatchJob& job = message.job;
  if (load_acquire(*job.release) != 0) {
    return Status::aborted;
  }
  Mailbox& mailbox = *job.mailbox;
  mailbox.sequence = message.sequence;
  mailbox.offset = offset;
  mailbox.chunk = message.chunk;
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
  const bool expected = mailbox.record_bytes == message.bytes &&
                        mailbox.piece_bytes == std::min(job.mailbox_capacity, message.bytes - offset);
  return expected ? Status::ok : Status::bad_totals;
}

// Decodes the tiles whose entries lie in the piece that the room holds, but for those that the next piece holds too.
template <typename Traits>
Status decode_piece(Patching& message, std::uint64_t offset, std::uint64_t size, std::uint64_t step) {
  DecodeJob pass;
  pass.messages = message.item.message;
  pass.message_count = 1;
  pass.values = message.item.values;
  pass.count = message.item.count;
  pass.pool_fraction = message.job.decode.pool_fraction;
  pass.overflow = message.job.room;
  pass.overflow_begin = offset;
  pass.overflow_step = step;
  pass.overflow_size = size;
  pass.summaries = &message.found;
  return HostEngine<Traits>::decode(pass);
}

template <typename Traits>
Status patch_message(Patching& message, std::uint64_t& wait_ns) {
  const std::uint64_t capacity = message.job.mailbox_capacity;
  const std::uint64_t step = capacity - max_overflow_entry_bytes;
  for (std::uint64_t offset = 0;; offset += step) {
    if (const Status status = request_piece(message, offset, wait_ns); status != Status::ok) {
      return status;
    }
    const std::uint64_t size = std::min(capacity, message.bytes - offset);
    const bool last = offset + size == message.bytes;
    std::memcpy(message.job.room, message.job.mailbox->data(), size);
    if (const Status status = decode_piece<Traits>(message, offset, size, last ? size : step); status != Status::ok) {
      return status;
    }
    if (last) {
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
  add(counters.finished, 1);
}

}  // namespace

template <ValueTraits Traits>
Status HostEngine<Traits>::patch(const PatchJob& job) {
  if (const Status status = validate(job, sizeof(typename Traits::Value)); status != Status::ok) {
    return status;
  }
  const std::uint64_t sequence = job.decode.sequence + counted(job.decode.sequence_counter);
  ExchangeCounters total{};
  const auto fault = [&](std::int32_t status) {
    if (total.status == static_cast<std::int32_t>(Status::ok)) {
      total.status = status;
    }
  };
  bool ended = false;
  for (std::uint32_t m = 0; m < message_total(job.decode); ++m) {
    MessageSummary* summary = job.decode.summaries == nullptr ? nullptr : job.decode.summaries + m;
    if (summary != nullptr) {
      fault(summary->status);
    }
    const DecodeItem item = message_of(job.decode, m);
    const Layout layout = Layout::of(item.count, job.decode.pool_fraction);
    MessageHeader header;
    std::memcpy(&header, item.message, sizeof(header));
    Status status = check_header(header, Traits::dtype, layout, sequence, job.decode.chunk, job.decode.any_sequence);
    if (status != Status::ok) {
      fault(static_cast<std::int32_t>(status));
      continue;
    }
    total.values += header.count;
    total.escapes += header.escapes;
    const std::uint64_t bytes = layout.overflow_bytes(header.entry_units);
    total.overflow_messages += bytes != 0;
    if (bytes == 0 || is_skipped(job.decode, m) || ended) {
      continue;
    }
    Patching message{.job = job, .item = item, .sequence = header.sequence, .chunk = header.chunk, .bytes = bytes};
    status = patch_message<Traits>(message, total.wait_ns);
    if (message.found.status != static_cast<std::int32_t>(Status::ok)) {
      fault(message.found.status);
      if (summary != nullptr) {
        summary->status = message.found.status;
      }
    }
    if (status == Status::ok) {
      total.overflow_bytes += bytes;
    } else {
      fault(static_cast<std::int32_t>(status));
      ended = true;
    }
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

template Status HostEngine<Bf16Traits>::patch(const PatchJob& job);

}  // namespace zipccl::codec
