// Fence messages as payloads of peer frames (peer_wire.hpp): 40 bytes, little-endian.
//
//   offset  bytes
//        0      1  type
//        1      1  setting: 1 if compressed, else 0
//        2      2  zero
//        4      4  setting: pool fraction
//        8      8  round
//       16      8  call
//       24      8  setting: staging bytes
//       32      8  setting: history
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "switcher/fence.hpp"

namespace zipccl::switcher {

inline constexpr std::size_t fence_message_bytes = 40;
using FenceBytes = std::array<std::byte, fence_message_bytes>;

FenceBytes encode_fence(const FenceMessage& message);
// Nothing for unknown types and what should be zero and is not.
std::optional<FenceMessage> decode_fence(std::span<const std::byte> bytes);

}  // namespace zipccl::switcher
