// Bounds of the session. None of them decides a verdict: they end waits for peers that are gone or broken.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace zipccl::switcher {

struct Limits {
  // A TCP connect to the listener or to a peer. Long enough for five SYN retries against a crowded backlog.
  std::chrono::milliseconds connect{30'000};
  // A rank's wait for an acknowledgement or a verdict, which the root's helper thread sends at once.
  std::chrono::milliseconds answer{120'000};
  // The root's wait, from a compressed verdict on, for all ranks to be connected. Below `answer`, so that all ranks
  // hear who was late.
  std::chrono::milliseconds introduction{90'000};
  // The listener's wait for a whole hello, and for the peer to close after its last message.
  std::chrono::milliseconds stranger{30'000};
};

inline constexpr std::uint32_t max_rank_count = 4096;  // larger communicators are refused: the link matrix is N x N
inline constexpr std::size_t max_unused_ids = 65'536;  // ids that nobody said hello to; the oldest is forgotten
inline constexpr std::size_t max_parents = 65'536;     // communicators that may have children; the oldest is forgotten
inline constexpr std::size_t max_strangers = 4096;     // connections without a valid hello; the oldest is closed
inline constexpr std::uint32_t max_hello_bytes = 65'536;
inline constexpr std::size_t max_dials = 64;  // connections to peers being made by a process at a time
inline constexpr std::uint64_t max_record_bytes = std::uint64_t{1} << 32;
inline constexpr std::uint32_t max_text_bytes = 4096;  // refusals and reasons

}  // namespace zipccl::switcher
