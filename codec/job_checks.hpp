// What both engines check before they work: jobs against device.hpp's contracts, headers against what was agreed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/device.hpp"
#include "codec/format.hpp"
#include "codec/overflow.hpp"
#include "codec/status.hpp"

namespace zipccl::codec {

// ok, or invalid_argument if the job breaks device.hpp's contracts (sizes, alignment, null pointers). Looks at the
// job's fields only, never at what they point to.
Status validate(const EncodeJob& job, std::size_t value_bytes);
Status validate(const DecodeJob& job, std::size_t value_bytes);
Status validate(const ReceiveJob& job, std::size_t value_bytes);
Status validate(const ObserveJob& job, std::size_t value_bytes);

// What a reader checks of a header before anything else; ok, or the status of FORMAT.md 7. With `any_sequence`
// sequence and chunk are not looked at. Runs in kernels too.
constexpr Status check_header(const MessageHeader& header, Dtype dtype, const Layout& layout, std::uint64_t sequence,
                              std::uint32_t chunk, bool any_sequence = false) {
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
  if (!any_sequence && (header.sequence != sequence || header.chunk != chunk)) {
    return Status::bad_sequence;
  }
  const bool consistent = header.entry_units <= layout.tiles * raw_entry_units && header.escapes <= header.count &&
                          header.far_escapes <= header.escapes && header.overflow_tiles <= layout.tiles &&
                          (header.overflow_tiles > 0) == (header.entry_units > layout.pool_units);
  return consistent ? Status::ok : Status::bad_totals;
}

}  // namespace zipccl::codec
