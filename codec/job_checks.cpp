#include "codec/job_checks.hpp"

#include <algorithm>

#include "codec/job_messages.hpp"

namespace zipccl::codec {
namespace {

bool aligned(const void* pointer, std::uint64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

// One message's memory, of either direction.
bool usable(const void* message, const void* values, std::uint64_t count, std::size_t value_bytes) {
  return count <= max_count && message != nullptr && aligned(message, section_alignment) &&
         (count == 0 || (values != nullptr && aligned(values, value_bytes)));
}

// A row's messages; for a list `check(item)` for each.
template <typename Job, typename Check>
bool all_usable(const Job& job, const void* message, std::size_t value_bytes, Check check) {
  if (job.items != nullptr) {
    for (std::uint32_t i = 0; i < job.item_count; ++i) {
      if (!check(job.items[i])) {
        return false;
      }
    }
    return true;
  }
  return job.message_count == 0 || (usable(message, job.values, job.count, value_bytes) &&
                                    job.message_stride % section_alignment == 0 && job.value_stride % value_bytes == 0);
}

bool all_usable(const DecodeJob& job, std::size_t value_bytes) {
  return job.pool_fraction <= max_pool_fraction &&
         all_usable(job, job.messages, value_bytes,
                    [&](const DecodeItem& item) { return usable(item.message, item.values, item.count, value_bytes); });
}

// Whether a message of the job can have overflow.
template <typename Job>
bool can_overflow(const Job& job) {
  // Messages of a row are all alike.
  const std::uint32_t kinds = job.items != nullptr ? job.item_count : std::min(job.message_count, 1u);
  for (std::uint32_t m = 0; m < kinds; ++m) {
    if (Layout::of(message_of(job, m).count, job.pool_fraction).max_overflow_bytes() != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

static_assert(max_overflow_entry_bytes == raw_entry_units * unit_bytes);

Status validate(const EncodeJob& job, std::size_t value_bytes) {
  if (job.pool_fraction > max_pool_fraction || !all_usable(job, job.message, value_bytes, [&](const EncodeItem& item) {
        return usable(item.message, item.values, item.count, value_bytes);
      })) {
    return Status::invalid_argument;
  }
  if (!aligned(job.header_copy, alignof(MessageHeader))) {
    return Status::invalid_argument;
  }
  if (job.outbox != nullptr) {
    const bool complete = aligned(job.outbox, alignof(Outbox)) && job.outbox_capacity >= unit_bytes &&
                          job.outbox_capacity % unit_bytes == 0 && job.outbox_lock != nullptr && job.release != nullptr;
    return complete ? Status::ok : Status::invalid_argument;
  }
  if (!can_overflow(job)) {
    return Status::ok;
  }
  const bool single = job.items == nullptr && job.message_count == 1;
  const std::uint64_t needed = Layout::of(job.count, job.pool_fraction).max_overflow_bytes();
  const bool room = job.overflow != nullptr && job.overflow_bytes >= needed && aligned(job.overflow, unit_bytes);
  return single && room ? Status::ok : Status::invalid_argument;
}

Status validate(const DecodeJob& job, std::size_t value_bytes) {
  if (job.items != nullptr || !all_usable(job, value_bytes)) {
    return Status::invalid_argument;
  }
  if (job.overflow_size != 0 && (job.overflow == nullptr || !aligned(job.overflow, unit_bytes) ||
                                 job.overflow_stride % unit_bytes != 0 || job.overflow_begin % unit_bytes != 0)) {
    return Status::invalid_argument;
  }
  return Status::ok;
}

Status validate(const ReceiveJob& job, std::size_t value_bytes) {
  if (!all_usable(job.decode, value_bytes) || job.counters == nullptr ||
      !aligned(job.counters, alignof(ExchangeCounters)) || !aligned(job.own_header, alignof(MessageHeader))) {
    return Status::invalid_argument;
  }
  if (!can_overflow(job.decode)) {
    return Status::ok;
  }
  const bool mailbox = job.mailbox != nullptr && aligned(job.mailbox, alignof(Mailbox)) && job.release != nullptr &&
                       job.mailbox_capacity > max_overflow_entry_bytes && job.mailbox_capacity % unit_bytes == 0;
  const bool room = job.room != nullptr && aligned(job.room, section_alignment);
  return mailbox && room ? Status::ok : Status::invalid_argument;
}

Status validate(const ObserveJob& job, std::size_t value_bytes) {
  const bool values = job.count == 0 || (job.values != nullptr && aligned(job.values, value_bytes));
  const bool place = job.observation != nullptr && aligned(job.observation, alignof(Observation));
  return job.count <= max_count && job.pool_fraction <= max_pool_fraction && values && place ? Status::ok
                                                                                             : Status::invalid_argument;
}

}  // namespace zipccl::codec
