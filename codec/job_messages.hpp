// The messages of a job, whichever form it has: row or list (device.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/device.hpp"

namespace zipccl::codec {

constexpr std::uint32_t message_total(const EncodeJob& job) {
  return job.items != nullptr ? job.item_count : job.message_count;
}
constexpr std::uint32_t message_total(const DecodeJob& job) {
  return job.items != nullptr ? job.item_count : job.message_count;
}

// Whether message `index` has no part in the job: never so in a list.
constexpr bool is_skipped(const EncodeJob& job, std::uint32_t index) {
  return job.items == nullptr && index == job.skip;
}
constexpr bool is_skipped(const DecodeJob& job, std::uint32_t index) {
  return job.items == nullptr && index == job.skip;
}

inline EncodeItem message_of(const EncodeJob& job, std::uint32_t index) {
  if (job.items != nullptr) {
    return job.items[index];
  }
  const bool to_all = job.message_count == 1 && job.broadcast;
  return {.values = static_cast<const std::byte*>(job.values) + index * job.value_stride,
          .count = job.count,
          .message = static_cast<std::byte*>(job.message) + index * job.message_stride,
          .receiver = to_all ? all_receivers : index};
}

inline DecodeItem message_of(const DecodeJob& job, std::uint32_t index) {
  if (job.items != nullptr) {
    return job.items[index];
  }
  return {.message = static_cast<const std::byte*>(job.messages) + index * job.message_stride,
          .values = static_cast<std::byte*>(job.values) + index * job.value_stride,
          .count = job.count,
          .sender = index};
}

}  // namespace zipccl::codec
