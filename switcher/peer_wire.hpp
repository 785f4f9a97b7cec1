// Messages between the processes of a communicator, on the connection that joins each pair. All integers are
// little-endian.
//
// The process that dialled starts with a greeting of 66 bytes, once: magic "zipcclPC" (8), protocol version (2), nonce
// (8) and secret (16) of a communicator that both belong to, identity of the sender (16) and of the receiver (16).
// Then both send frames: a header of 40 bytes and a payload.
//
//   offset  bytes
//        0      1  type
//        1      3  zero
//        4      4  sending rank
//        8      8  nonce of the communicator
//       16      4  receiving rank
//       20      4  chunk
//       24      8  sequence
//       32      8  bytes of payload
//
//   type    payload
//   proof   secret of the communicator (16); the first frame from a rank to a rank of this communicator
//   record  the record
//   fence   fence message (fence_wire.hpp); chunk and sequence say of which class: kind and detail
//   leave   none; the sender's channel is destroyed, nothing will follow
//
// Chunk and sequence are zero in proof and leave.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "switcher/wire.hpp"

namespace zipccl::switcher {

inline constexpr std::size_t greeting_bytes = 66;
inline constexpr std::size_t peer_header_bytes = 40;

struct Greeting {
  std::uint16_t protocol = protocol_version;
  Ticket ticket;
  ProcessId sender{};
  ProcessId receiver{};
};

enum class PeerFrame : std::uint8_t { proof = 1, record = 2, leave = 3, fence = 4 };

struct PeerHeader {
  PeerFrame type = PeerFrame::record;
  std::uint32_t sender = 0;
  std::uint64_t nonce = 0;
  std::uint32_t receiver = 0;
  std::uint32_t chunk = 0;
  std::uint64_t sequence = 0;
  std::uint64_t payload_bytes = 0;
};
using PeerHeaderBytes = std::array<std::uint8_t, peer_header_bytes>;

WireBytes encode_greeting(const Greeting& greeting);
std::optional<Greeting> decode_greeting(ByteView bytes);  // of any protocol version

PeerHeaderBytes encode_peer_header(const PeerHeader& header);
// Nothing for unknown types, payloads above the type's limit and what should be zero and is not.
std::optional<PeerHeader> decode_peer_header(ByteView bytes);

}  // namespace zipccl::switcher
