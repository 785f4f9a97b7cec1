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

Status check_header(const MessageHeader& header, Dtype dtype, const Layout& layout, std::uint64_t sequence,
                    std::uint32_t chunk) {
  if (header.magic != format_magic) {
    return Status::bad_magic;
  }
  if (header.version != format_version) {
    return Status::bad_version;
  }
  if (header.dtype != static_cast<std::uint8_t>(dtype)) {
    return Status::bad_dtype;
  }
  if (header.count != layout.count) {
    return Status::bad_count;
  }
  if (header.pool_units != layout.pool_units) {
    return Status::bad_pool;
  }
  if (header.sequence != sequence || header.chunk != chunk) {
    return Status::bad_sequence;
  }
  const bool consistent = header.entry_units <= layout.tiles * raw_entry_units && header.escapes <= header.count &&
                          header.far_escapes <= header.escapes && header.overflow_tiles <= layout.tiles &&
                          (header.overflow_tiles > 0) == (header.entry_units > layout.pool_units);
  return consistent ? Status::ok : Status::bad_totals;
}

}  // namespace zipccl::codec
