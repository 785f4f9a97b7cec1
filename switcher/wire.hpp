// Messages between a rank and the listener of its communicator. All integers are little-endian.
//
// A frame is a header of five bytes, body length (4) and message type (1), and its body:
//
//   type         from      body
//   hello        rank      protocol version (2), nonce (8), secret (16), rank (4), then Hello without its rank
//   acknowledge  listener  none; the hello is counted
//   refuse       listener  text; the listener counts the rank as native and closes
//   ask          rank      none; the rank's real init succeeded
//   withdraw     rank      none; the rank's real init failed
//   child        rank      instead of hello, to a child: the hello's first 30 bytes, then the parent's nonce (8), kind
//                          (1), number (8) and subset (8), then Hello without its rank; of a split color (4) and key
//                          (4)
//   place        listener  rank (4) and rank count (4) in the child; before the verdict of a split, if it is compressed
//   verdict      listener  Verdict; follows the first ask of any rank, unasked on all others. Unless it says
//                          compressed, the listener closes
//   enter        rank      process (16), address (20) at which the rank's process waits for the others, and that of
//                          its own listener (20)
//   peers        listener  list of what the ranks entered with, by rank, when all have
//   report       rank      text: why this rank is not connected with all others; empty: it is. Instead of enter, too
//   result       listener  flag: all ranks are connected; text: else why not. At any time after the verdict; closes
//
// An address is family, 4 or 6 (2), port (2) and address in network order, IPv4 in the first four bytes (16).
// The first 30 bytes of hello and child keep their layout in every protocol version, so that the listener can say who
// differs. Texts are a length (4) and bytes, lists a count (4) and elements. The link matrix is run-length coded:
// number of cells (4), then runs of length (4) and class (1) that must add up to it.
//
// Decoders accept any bytes: they return nothing for what is truncated, oversized or malformed, and allocate no more
// than a small multiple of the body's limit. std::bad_alloc is the only exception here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "switcher/session.hpp"
#include "switcher/socket.hpp"

namespace zipccl::switcher {

inline constexpr std::uint16_t protocol_version = 4;
inline constexpr std::size_t secret_bytes = 16;
inline constexpr std::size_t frame_header_bytes = 5;
inline constexpr std::size_t hello_prefix_bytes = 30;
inline constexpr std::size_t descent_bytes = 25;

using WireBytes = std::vector<std::uint8_t>;
using ByteView = std::span<const std::uint8_t>;

// What entitles a rank to take part: the id's number and the proof of having received the id.
struct Ticket {
  std::uint64_t nonce = 0;
  std::array<std::uint8_t, secret_bytes> secret{};
};

// Takes the same time wherever the two differ.
bool same_secret(const Ticket& one, const Ticket& other);

// Random, made once by a process (by each of its Rendezvous, strictly); a forked child makes its own.
using ProcessId = std::array<std::uint8_t, 16>;

// Where a rank's process waits for its peers, and for hellos to communicators whose root it is.
struct PeerAddress {
  ProcessId process{};
  Endpoint endpoint;
  Endpoint listener;
};

struct ConnectResult {
  bool agreed = false;
  std::string reason;  // unless agreed
};

enum class MessageType : std::uint8_t {
  hello = 1,
  acknowledge = 2,
  refuse = 3,
  ask = 4,
  withdraw = 5,
  verdict = 6,
  enter = 7,
  peers = 8,
  report = 9,
  result = 10,
  child = 11,
  place = 12
};

struct FrameHeader {
  MessageType type;
  std::uint32_t body_bytes;  // at most what the type allows
};
std::optional<FrameHeader> decode_frame_header(ByteView header);

struct HelloPrefix {
  std::uint16_t protocol = 0;
  Ticket ticket;
  std::uint32_t rank = 0;
};
std::optional<HelloPrefix> decode_hello_prefix(ByteView body);
std::optional<Descent> decode_descent(ByteView bytes);  // of kind split or shrink
// `rest` is the body after its prefix and descent.
std::optional<Hello> decode_hello(const HelloPrefix& prefix, const Descent& descent, ByteView rest);
std::optional<std::string> decode_text(ByteView body);  // of refuse or report, made printable
std::optional<Verdict> decode_verdict(ByteView body);
std::optional<PeerAddress> decode_enter(ByteView body);
std::optional<std::vector<PeerAddress>> decode_peers(ByteView body);
std::optional<ConnectResult> decode_result(ByteView body);
std::optional<Place> decode_place(ByteView body);

// Whole frames. encode_hello, which makes a child's too, returns nothing if the hello exceeds its limit or lacks a
// choice that the descent needs.
std::optional<WireBytes> encode_hello(const Ticket& ticket, const Hello& hello, const Descent& descent = {});
WireBytes encode_text(MessageType type, std::string_view text);  // refuse or report
WireBytes encode_verdict(const Verdict& verdict);
WireBytes encode_enter(const PeerAddress& address);
WireBytes encode_peers(std::span<const PeerAddress> peers);
WireBytes encode_result(const ConnectResult& result);
WireBytes encode_place(const Place& place);
WireBytes encode_signal(MessageType type);  // acknowledge, ask or withdraw

}  // namespace zipccl::switcher
