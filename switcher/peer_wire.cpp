#include "switcher/peer_wire.hpp"

#include <algorithm>
#include <concepts>
#include <string_view>

#include "switcher/fence_wire.hpp"
#include "switcher/limits.hpp"

namespace zipccl::switcher {
namespace {

constexpr std::string_view magic = "zipcclPC";

template <std::unsigned_integral T>
void put(std::span<std::uint8_t> bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
}

template <std::unsigned_integral T>
T get(ByteView bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | (T{bytes[at + i]} << (8 * i)));
  return value;
}

bool valid(const PeerHeader& header) {
  const bool unnumbered = header.chunk == 0 && header.sequence == 0;
  switch (header.type) {
    case PeerFrame::proof:
      return unnumbered && header.payload_bytes == secret_bytes;
    case PeerFrame::record:
      return header.payload_bytes <= max_record_bytes;
    case PeerFrame::fence:
      return header.payload_bytes == fence_message_bytes;
    case PeerFrame::leave:
      return unnumbered && header.payload_bytes == 0;
  }
  return false;
}

}  // namespace

WireBytes encode_greeting(const Greeting& greeting) {
  WireBytes bytes(greeting_bytes);
  std::copy(magic.begin(), magic.end(), bytes.begin());
  put(bytes, 8, greeting.protocol);
  put(bytes, 10, greeting.ticket.nonce);
  std::copy(greeting.ticket.secret.begin(), greeting.ticket.secret.end(), bytes.begin() + 18);
  std::copy(greeting.sender.begin(), greeting.sender.end(), bytes.begin() + 34);
  std::copy(greeting.receiver.begin(), greeting.receiver.end(), bytes.begin() + 50);
  return bytes;
}

std::optional<Greeting> decode_greeting(ByteView bytes) {
  if (bytes.size() != greeting_bytes || !std::equal(magic.begin(), magic.end(), bytes.begin())) return std::nullopt;
  Greeting greeting;
  greeting.protocol = get<std::uint16_t>(bytes, 8);
  greeting.ticket.nonce = get<std::uint64_t>(bytes, 10);
  std::copy_n(bytes.begin() + 18, secret_bytes, greeting.ticket.secret.begin());
  std::copy_n(bytes.begin() + 34, greeting.sender.size(), greeting.sender.begin());
  std::copy_n(bytes.begin() + 50, greeting.receiver.size(), greeting.receiver.begin());
  return greeting;
}

PeerHeaderBytes encode_peer_header(const PeerHeader& header) {
  PeerHeaderBytes bytes{};
  bytes[0] = static_cast<std::uint8_t>(header.type);
  put(bytes, 4, header.sender);
  put(bytes, 8, header.nonce);
  put(bytes, 16, header.receiver);
  put(bytes, 20, header.chunk);
  put(bytes, 24, header.sequence);
  put(bytes, 32, header.payload_bytes);
  return bytes;
}

std::optional<PeerHeader> decode_peer_header(ByteView bytes) {
  if (bytes.size() != peer_header_bytes || bytes[1] != 0 || bytes[2] != 0 || bytes[3] != 0) return std::nullopt;
  PeerHeader header;
  header.type = static_cast<PeerFrame>(bytes[0]);
  header.sender = get<std::uint32_t>(bytes, 4);
  header.nonce = get<std::uint64_t>(bytes, 8);
  header.receiver = get<std::uint32_t>(bytes, 16);
  header.chunk = get<std::uint32_t>(bytes, 20);
  header.sequence = get<std::uint64_t>(bytes, 24);
  header.payload_bytes = get<std::uint64_t>(bytes, 32);
  if (!valid(header)) return std::nullopt;
  return header;
}

}  // namespace zipccl::switcher
