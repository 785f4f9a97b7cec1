#include "codec/job_checks.hpp"

namespace zipccl::codec {
namespace {

bool aligned(const void* pointer, std::uint64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

}  // namespace

Status validate(const EncodeJob& job, std::size_t value_bytes) {
  if (job.count > max_count || job.pool_fraction > max_pool_fraction) {
    return Status::invalid_argument;
  }
  if (job.message == nullptr || !aligned(job.message, section_alignment)) {
    return Status::invalid_argument;
  }
  if (job.count != 0 && (job.values == nullptr || !aligned(job.values, value_bytes))) {
    return Status::invalid_argument;
  }
  const std::uint64_t needed = Layout::of(job.count, job.pool_fraction).max_overflow_bytes();
  if (needed != 0 && (job.overflow == nullptr || job.overflow_bytes < needed || !aligned(job.overflow, unit_bytes))) {
    return Status::invalid_argument;
  }
  if (job.notice != nullptr && (job.release == nullptr || !aligned(job.notice, alignof(OverflowNotice)))) {
    return Status::invalid_argument;
  }
  return Status::ok;
}

Status validate(const DecodeJob& job, std::size_t value_bytes) {
  if (job.count > max_count || job.pool_fraction > max_pool_fraction) {
    return Status::invalid_argument;
  }
  if (job.message_count == 0) {
    return Status::ok;
  }
  if (job.messages == nullptr || !aligned(job.messages, section_alignment)) {
    return Status::invalid_argument;
  }
  if (job.message_stride % section_alignment != 0 || job.value_stride % value_bytes != 0) {
    return Status::invalid_argument;
  }
  if (job.count != 0 && (job.values == nullptr || !aligned(job.values, value_bytes))) {
    return Status::invalid_argument;
  }
  if (job.overflow_size != 0 && (job.overflow == nullptr || !aligned(job.overflow, unit_bytes) ||
                                 job.overflow_stride % unit_bytes != 0 || job.overflow_begin % unit_bytes != 0)) {
    return Status::invalid_argument;
  }
  return Status::ok;
}

Status validate(const PatchJob& job, std::size_t value_bytes) {
  DecodeJob first_pass = job.decode;
  first_pass.overflow_size = 0;
  if (const Status status = validate(first_pass, value_bytes); status != Status::ok) {
    return status;
  }
  if (job.counters == nullptr || !aligned(job.counters, alignof(ExchangeCounters))) {
    return Status::invalid_argument;
  }
  const std::uint64_t needed = Layout::of(job.decode.count, job.decode.pool_fraction).max_overflow_bytes();
  if (needed == 0) {
    return Status::ok;
  }
  if (job.mailbox == nullptr || !aligned(job.mailbox, alignof(Mailbox)) || job.mailbox_capacity == 0 ||
      job.mailbox_capacity % unit_bytes != 0 || job.release == nullptr) {
    return Status::invalid_argument;
  }
  if (job.room == nullptr || !aligned(job.room, section_alignment) || job.room_bytes < needed) {
    return Status::invalid_argument;
  }
  return Status::ok;
}

}  // namespace zipccl::codec
