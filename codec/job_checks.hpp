// What both engines check before they work: jobs against device.hpp's contracts, headers against what was agreed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/device.hpp"
#include "codec/format.hpp"
#include "codec/status.hpp"

namespace zipccl::codec {

// ok, or invalid_argument if the job breaks device.hpp's contracts (sizes, alignment, null pointers). Looks at the
// job's fields only, never at what they point to.
Status validate(const EncodeJob& job, std::size_t value_bytes);
Status validate(const DecodeJob& job, std::size_t value_bytes);

// What a reader checks of a header before anything else; ok, or the status of FORMAT.md 7.
Status check_header(const MessageHeader& header, Dtype dtype, const Layout& layout, std::uint64_t sequence,
                    std::uint32_t chunk);

}  // namespace zipccl::codec
