#include <algorithm>
#include <cstring>

#include "codec/host_engine.hpp"
#include "codec/host_exchange.hpp"
#include "codec/overflow.hpp"

namespace zipccl::codec {
namespace {

// Asks for one piece and waits for it. `record_bytes` is what the message's header announces.
Status request_piece(const PatchJob& job, std::uint32_t sender, std::uint64_t offset, std::uint64_t record_bytes,
                     std::uint64_t& wait_ns) {
  Mailbox& mailbox = *job.mailbox;
  mailbox.sequence = job.decode.sequence;
  mailbox.offset = offset;
  mailbox.chunk = job.decode.chunk;
  mailbox.sender = sender;
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
  const bool expected = mailbox.record_bytes == record_bytes &&
                        mailbox.piece_bytes == std::min(job.mailbox_capacity, record_bytes - offset);
  return expected ? Status::ok : Status::bad_totals;
}

Status gather_record(const PatchJob& job, std::uint32_t sender, std::uint64_t bytes, std::uint64_t& wait_ns) {
  if (load_acquire(*job.release) != 0) {
    return Status::aborted;
  }
  for (std::uint64_t offset = 0; offset < bytes; offset += job.mailbox_capacity) {
    const Status status = request_piece(job, sender, offset, bytes, wait_ns);
    if (status != Status::ok) {
      return status;
    }
    std::memcpy(static_cast<std::byte*>(job.room) + offset, job.mailbox->data(), job.mailbox->piece_bytes);
  }
  return Status::ok;
}

// The patch pass over message `index`, whose whole record is in the room.
DecodeJob patch_pass(const PatchJob& job, std::uint32_t index, std::uint64_t bytes, MessageSummary* summary) {
  DecodeJob pass = job.decode;
  pass.messages = static_cast<const std::byte*>(pass.messages) + index * pass.message_stride;
  pass.message_count = 1;
  pass.skip = ~0u;
  pass.values = static_cast<std::byte*>(pass.values) + index * pass.value_stride;
  pass.overflow = job.room;
  pass.overflow_stride = 0;
  pass.overflow_begin = 0;
  pass.overflow_step = bytes;
  pass.overflow_size = bytes;
  pass.summaries = summary;
  return pass;
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
  store_release(counters.finished, std::max(counters.finished, job.finished));
}

}  // namespace

template <ValueTraits Traits>
Status HostEngine<Traits>::patch(const PatchJob& job) {
  if (const Status status = validate(job, sizeof(typename Traits::Value)); status != Status::ok) {
    return status;
  }
  const Layout layout = Layout::of(job.decode.count, job.decode.pool_fraction);
  ExchangeCounters counted{};
  counted.finished = job.ticket;
  const auto fault = [&](std::int32_t status) {
    if (counted.status == static_cast<std::int32_t>(Status::ok)) {
      counted.status = status;
    }
  };
  bool ended = false;
  for (std::uint32_t m = 0; m < job.decode.message_count; ++m) {
    MessageSummary* summary = job.decode.summaries == nullptr ? nullptr : job.decode.summaries + m;
    if (summary != nullptr) {
      fault(summary->status);
    }
    MessageHeader header;
    std::memcpy(&header, static_cast<const std::byte*>(job.decode.messages) + m * job.decode.message_stride,
                sizeof(header));
    Status status = check_header(header, Traits::dtype, layout, job.decode.sequence, job.decode.chunk);
    if (status != Status::ok) {
      fault(static_cast<std::int32_t>(status));
      continue;
    }
    counted.values += header.count;
    counted.escapes += header.escapes;
    const std::uint64_t bytes = layout.overflow_bytes(header.entry_units);
    counted.overflow_messages += bytes != 0;
    if (bytes == 0 || m == job.decode.skip || ended) {
      continue;
    }
    status = gather_record(job, m, bytes, counted.wait_ns);
    if (status != Status::ok) {
      fault(static_cast<std::int32_t>(status));
      ended = true;
      continue;
    }
    counted.overflow_bytes += bytes;
    MessageSummary found{};
    status = decode(patch_pass(job, m, bytes, &found));
    if (found.status != static_cast<std::int32_t>(Status::ok)) {
      fault(found.status);
      if (summary != nullptr) {
        summary->status = found.status;
      }
    }
  }
  if (job.started_ns != nullptr) {
    counted.exchange_ns = now_ns() - *job.started_ns;
  }
  publish(counted, *job.counters);
  return Status::ok;
}

template Status HostEngine<Bf16Traits>::patch(const PatchJob& job);

}  // namespace zipccl::codec
