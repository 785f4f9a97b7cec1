// Frames between processes: what is read from a socket.
#include <array>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "switcher/fence_wire.hpp"
#include "switcher/limits.hpp"
#include "switcher/lineage.hpp"
#include "switcher/peer_wire.hpp"
#include "switcher/wire.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/session_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;

Hello full_hello() {
  Hello hello = make_hello(5, 9);
  hello.nvlink_peers = {"GPU-1", "", "GPU-3"};
  hello.process = 0xfedcba9876543210u;
  hello.staging_bytes = std::uint64_t{5} << 33;
  hello.max_connections = 32;
  hello.p2p_disabled = true;
  hello.nonblocking = true;
  hello.rdma = true;
  hello.copy_engines = true;
  hello.refusal = "no room";
  return hello;
}

ByteView body_of(const WireBytes& frame) { return ByteView(frame).subspan(frame_header_bytes); }

std::optional<Hello> decode_hello_body(ByteView body) {
  const auto prefix = decode_hello_prefix(body);
  if (!prefix) return std::nullopt;
  return decode_hello(*prefix, {}, body.subspan(hello_prefix_bytes));
}

TEST_CASE("a hello survives the wire") {
  const Hello hello = full_hello();
  const WireBytes frame = *encode_hello(make_ticket(), hello);
  const auto header = decode_frame_header(ByteView(frame).first(frame_header_bytes));
  REQUIRE(header);
  CHECK(header->type == MessageType::hello);
  CHECK(header->body_bytes == frame.size() - frame_header_bytes);
  const auto prefix = decode_hello_prefix(body_of(frame));
  REQUIRE(prefix);
  CHECK(prefix->protocol == protocol_version);
  CHECK(prefix->ticket.nonce == make_ticket().nonce);
  CHECK(same_secret(prefix->ticket, make_ticket()));
  const auto decoded = decode_hello_body(body_of(frame));
  REQUIRE(decoded);
  CHECK(decoded->rank == 5);
  CHECK(decoded->rank_count == 9);
  CHECK(decoded->library_version == hello.library_version);
  CHECK(decoded->configuration == hello.configuration);
  CHECK(decoded->host == hello.host);
  CHECK(decoded->shared_memory == hello.shared_memory);
  CHECK(decoded->device == hello.device);
  CHECK(decoded->nvlink_peers == hello.nvlink_peers);
  CHECK(decoded->process == hello.process);
  CHECK(decoded->staging_bytes == hello.staging_bytes);
  CHECK(decoded->max_connections == 32);
  CHECK(decoded->p2p_disabled);
  CHECK_FALSE(decoded->shm_disabled);
  CHECK(decoded->nonblocking);
  CHECK(decoded->rdma);
  CHECK(decoded->copy_engines);
  CHECK(decoded->refusal == "no room");
}

TEST_CASE("the wire's integers are little-endian at documented places") {
  const WireBytes frame = *encode_hello(make_ticket(), full_hello());
  CHECK(frame[4] == 1);
  CHECK(frame[5] == protocol_version);
  CHECK(frame[6] == 0);
  CHECK(frame[7] == 0xef);
  CHECK(frame[14] == 0x01);
  CHECK(frame[15] == 200);
  CHECK(frame[31] == 5);
  CHECK(frame[35] == 9);
  CHECK(encode_signal(MessageType::ask) == WireBytes{0, 0, 0, 0, 4});
}

TEST_CASE("every truncated or extended hello is rejected") {
  const WireBytes frame = *encode_hello(make_ticket(), full_hello());
  const ByteView body = body_of(frame);
  for (std::size_t size = 0; size < body.size(); ++size) {
    CAPTURE(size);
    REQUIRE_FALSE(decode_hello_body(body.first(size)));
  }
  WireBytes extended(body.begin(), body.end());
  extended.push_back(0);
  CHECK_FALSE(decode_hello_body(extended));
}

TEST_CASE("frame headers bound the body by its type") {
  const auto header = [](std::uint32_t size, std::uint8_t type) {
    WireBytes bytes(5);
    for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<std::uint8_t>(size >> (8 * i));
    bytes[4] = type;
    return decode_frame_header(bytes);
  };
  CHECK(header(max_hello_bytes, 1));
  CHECK_FALSE(header(max_hello_bytes + 1, 1));
  CHECK_FALSE(header(0xffffffffu, 1));
  CHECK(header(0, 2));
  CHECK_FALSE(header(1, 2));
  CHECK_FALSE(header(1, 4));
  CHECK_FALSE(header(1, 5));
  CHECK(header(4 + max_text_bytes, 3));
  CHECK_FALSE(header(5 + max_text_bytes, 3));
  CHECK_FALSE(header(0xffffffffu, 6));
  CHECK_FALSE(header(0, 0));
  CHECK(header(max_hello_bytes, 11));
  CHECK_FALSE(header(max_hello_bytes + 1, 11));
  CHECK(header(8, 12));
  CHECK_FALSE(header(9, 12));
  CHECK_FALSE(header(0, 13));
  CHECK_FALSE(decode_frame_header(WireBytes(4)));
}

// As the listener takes it apart.
std::optional<Hello> decode_child_body(ByteView body) {
  const auto prefix = decode_hello_prefix(body);
  if (!prefix || body.size() < hello_prefix_bytes + descent_bytes) return std::nullopt;
  const auto descent = decode_descent(body.subspan(hello_prefix_bytes, descent_bytes));
  if (!descent) return std::nullopt;
  return decode_hello(*prefix, *descent, body.subspan(hello_prefix_bytes + descent_bytes));
}

TEST_CASE("a hello to a child carries its descent, to a split also the choice") {
  Hello hello = full_hello();
  const auto kind = GENERATE(Descent::Kind::split, Descent::Kind::shrink);
  const Descent descent{kind, 0x0123456789abcdefu, 77, 0xfedcba9876543210u};
  const bool split = kind == Descent::Kind::split;
  CHECK_FALSE(encode_hello(make_ticket(), full_hello(), split ? descent : Descent{Descent::Kind::split, 1, 2, 3}));
  if (split) hello.choice = {-1, std::numeric_limits<std::int32_t>::min()};
  CHECK(encode_hello(make_ticket(), hello).has_value() == !split);
  const WireBytes frame = *encode_hello(make_ticket(), hello, descent);
  CHECK(decode_frame_header(ByteView(frame).first(frame_header_bytes))->type == MessageType::child);
  const ByteView body = body_of(frame);
  CHECK(decode_descent(body.subspan(hello_prefix_bytes, descent_bytes)) == descent);
  CHECK(decode_hello_prefix(body)->ticket.nonce == make_ticket().nonce);
  const auto decoded = decode_child_body(body);
  REQUIRE(decoded);
  CHECK(decoded->rank == hello.rank);
  CHECK(decoded->refusal == hello.refusal);
  REQUIRE(decoded->choice.has_value() == split);
  if (split) {
    CHECK(decoded->choice->color == -1);
    CHECK(decoded->choice->key == std::numeric_limits<std::int32_t>::min());
  }
  for (std::size_t size = 0; size < body.size(); ++size) REQUIRE_FALSE(decode_child_body(body.first(size)));
  WireBytes changed = frame;
  for (const int wrong : {0, 3, 255}) {
    changed[frame_header_bytes + hello_prefix_bytes + 8] = static_cast<std::uint8_t>(wrong);
    CHECK_FALSE(decode_child_body(body_of(changed)));
  }
  std::mt19937 random(3);
  for (int round = 0; round < 20'000; ++round) {
    changed = frame;
    for (unsigned flips = 1 + random() % 8; flips > 0; --flips) {
      changed[frame_header_bytes + random() % body.size()] = static_cast<std::uint8_t>(random());
    }
    static_cast<void>(decode_child_body(body_of(changed)));  // never more than rejects or decodes
  }
}

TEST_CASE("a place survives the wire and lies within its count") {
  const WireBytes frame = encode_place({3, 4});
  CHECK(decode_frame_header(ByteView(frame).first(frame_header_bytes))->type == MessageType::place);
  REQUIRE(decode_place(body_of(frame)));
  CHECK(decode_place(body_of(frame))->rank == 3);
  CHECK(decode_place(body_of(frame))->rank_count == 4);
  CHECK_FALSE(decode_place(body_of(encode_place({4, 4}))));
  CHECK_FALSE(decode_place(body_of(encode_place({0, max_rank_count + 1}))));
  CHECK_FALSE(decode_place(body_of(frame).first(7)));
}

TEST_CASE("SipHash as its authors publish it") {
  std::array<std::uint8_t, secret_bytes> key{};
  std::iota(key.begin(), key.end(), std::uint8_t{0});
  const auto hash_of_count = [&](std::size_t bytes) {
    WireBytes message(bytes);
    std::iota(message.begin(), message.end(), std::uint8_t{0});
    return siphash(key, message);
  };
  CHECK(hash_of_count(15) == 0xa129ca6149be45e5u);
  CHECK(hash_of_count(0) == 0x726fdb47dd0e0e31u);
}

TEST_CASE("children's tickets depend on everything that tells them apart") {
  Ticket parent = make_ticket();
  std::set<std::pair<std::uint64_t, std::array<std::uint8_t, secret_bytes>>> seen;
  const auto add = [&](const Ticket& ticket) { seen.insert({ticket.nonce, ticket.secret}); };
  const Descent split{Descent::Kind::split, parent.nonce, 0, 0};
  add(descend(parent, split));
  add(descend(parent, split));
  CHECK(seen.size() == 1);
  add(descend(parent, {Descent::Kind::split, parent.nonce, 1, 0}));
  add(descend(parent, {Descent::Kind::shrink, parent.nonce, 0, 0}));
  add(descend(parent, {Descent::Kind::shrink, parent.nonce, 0, 1}));
  add(ticket_of_color(descend(parent, split), 0));
  add(ticket_of_color(descend(parent, split), 1));
  parent.secret[15] ^= 1;
  add(descend(parent, split));
  add(ticket_of_color(descend(parent, split), 0));
  CHECK(seen.size() == 8);
}

TEST_CASE("a hello above its limit is not encoded, one at the limit is") {
  Hello hello = make_hello(0, 1);
  const std::size_t rest = encode_hello(make_ticket(), hello)->size() - frame_header_bytes;
  hello.refusal.assign(max_hello_bytes - rest, 'x');
  CHECK(encode_hello(make_ticket(), hello));
  hello.refusal += 'x';
  CHECK_FALSE(encode_hello(make_ticket(), hello));
}

TEST_CASE("verdicts survive the wire, and their matrix is short there") {
  Verdict verdict;
  verdict.compressed = true;
  verdict.staging_bytes = 77;
  verdict.max_connections = 8;
  verdict.copy_engines = true;
  verdict.slowest_link = LinkClass::sockets;
  verdict.links.assign(1024 * 1024, LinkClass::sockets);
  for (std::size_t rank = 0; rank < 1024; ++rank) verdict.links[rank * 1025] = LinkClass::same_device;
  const WireBytes frame = encode_verdict(verdict);
  CHECK(frame.size() < 16'384);
  const auto decoded = decode_verdict(body_of(frame));
  REQUIRE(decoded);
  CHECK(decoded->compressed);
  CHECK(decoded->staging_bytes == 77);
  CHECK(decoded->max_connections == 8);
  CHECK(decoded->copy_engines);
  CHECK(decoded->slowest_link == LinkClass::sockets);
  CHECK(decoded->links == verdict.links);

  Verdict native;
  native.reason = "rank 3 runs without zipccl";
  const WireBytes native_frame = encode_verdict(native);
  const auto decoded_native = decode_verdict(body_of(native_frame));
  REQUIRE(decoded_native);
  CHECK_FALSE(decoded_native->compressed);
  CHECK(decoded_native->reason == native.reason);
  CHECK(decoded_native->links.empty());
}

TEST_CASE("matrices that do not add up are rejected") {
  Verdict verdict;
  verdict.links.assign(4, LinkClass::pcie);
  const WireBytes frame = encode_verdict(verdict);
  const WireBytes body(body_of(frame).begin(), body_of(frame).end());
  const std::size_t run_at = body.size() - 5;
  const std::size_t cells_at = run_at - 4;
  REQUIRE(decode_verdict(body));
  const auto with = [&body](std::size_t at, std::uint8_t value) {
    WireBytes changed = body;
    changed[at] = value;
    return decode_verdict(changed);
  };
  CHECK_FALSE(with(run_at, 3));
  CHECK_FALSE(with(run_at, 5));
  CHECK_FALSE(with(run_at, 0));
  CHECK_FALSE(with(body.size() - 1, 6));
  CHECK_FALSE(with(cells_at, 5));
  CHECK_FALSE(with(cells_at, 0));
  CHECK_FALSE(with(cells_at + 3, 0x80));
  CHECK_FALSE(with(0, 2));
  for (std::size_t size = 0; size < body.size(); ++size) REQUIRE_FALSE(decode_verdict(ByteView(body).first(size)));
}

TEST_CASE("random bytes are rejected or decoded, never more") {
  std::mt19937 random(7);
  const WireBytes hello = *encode_hello(make_ticket(), full_hello());
  Verdict verdict;
  verdict.links.assign(64, LinkClass::nvlink);
  const WireBytes good_verdict = encode_verdict(verdict);
  std::size_t accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    WireBytes changed = round % 2 == 0 ? hello : good_verdict;
    for (unsigned flips = 1 + random() % 8; flips > 0; --flips) {
      changed[frame_header_bytes + random() % (changed.size() - frame_header_bytes)] =
          static_cast<std::uint8_t>(random());
    }
    accepted += decode_hello_body(body_of(changed)).has_value();
    accepted += decode_verdict(body_of(changed)).has_value();
    accepted += decode_text(body_of(changed)).has_value();
  }
  CHECK(accepted > 0);
  CHECK(accepted < 20'000);
}

PeerAddress make_peer(std::uint8_t seed, bool ipv6) {
  PeerAddress peer;
  for (std::size_t i = 0; i < peer.process.size(); ++i) peer.process[i] = static_cast<std::uint8_t>(seed + i);
  peer.endpoint.ipv6 = ipv6;
  peer.endpoint.port = static_cast<std::uint16_t>(0x1200 + seed);
  peer.endpoint.address = {10, 0, 0, seed};
  peer.listener.ipv6 = !ipv6;
  peer.listener.port = static_cast<std::uint16_t>(0x2200 + seed);
  peer.listener.address = {10, 1, 0, seed};
  return peer;
}

bool same_peer(const PeerAddress& one, const PeerAddress& other) {
  return one.process == other.process && one.endpoint == other.endpoint && one.listener == other.listener;
}

TEST_CASE("peers' addresses survive the wire, alone and by rank") {
  const std::vector<PeerAddress> peers = {make_peer(1, false), make_peer(2, true), make_peer(3, false)};
  const WireBytes enter = encode_enter(peers[1]);
  CHECK(decode_frame_header(ByteView(enter).first(frame_header_bytes))->type == MessageType::enter);
  REQUIRE(decode_enter(body_of(enter)));
  CHECK(same_peer(*decode_enter(body_of(enter)), peers[1]));
  for (std::size_t size = 0; size < body_of(enter).size(); ++size) {
    CHECK_FALSE(decode_enter(body_of(enter).first(size)));
  }
  const WireBytes table = encode_peers(peers);
  const auto decoded = decode_peers(body_of(table));
  REQUIRE(decoded);
  REQUIRE(decoded->size() == 3);
  for (std::size_t rank = 0; rank < 3; ++rank) CHECK(same_peer((*decoded)[rank], peers[rank]));
  for (std::size_t size = 0; size < body_of(table).size(); ++size) {
    CHECK_FALSE(decode_peers(body_of(table).first(size)));
  }
  WireBytes changed = table;
  changed[frame_header_bytes + 4 + 16] = 5;  // the address family
  CHECK_FALSE(decode_peers(body_of(changed)));
  changed = table;
  changed[frame_header_bytes + 3] = 0xff;  // the count
  CHECK_FALSE(decode_peers(body_of(changed)));
  const std::vector<PeerAddress> most(max_rank_count);
  CHECK(decode_frame_header(ByteView(encode_peers(most)).first(frame_header_bytes)));
}

TEST_CASE("results survive the wire on one line") {
  const auto decoded = decode_result(body_of(encode_result({false, "rank 3: no\nport"})));
  REQUIRE(decoded);
  CHECK_FALSE(decoded->agreed);
  CHECK(decoded->reason == "rank 3: no?port");
  CHECK(decode_result(body_of(encode_result({true, ""})))->agreed);
  CHECK_FALSE(decode_result(WireBytes{2, 0, 0, 0, 0}));
  CHECK_FALSE(decode_result(WireBytes{1, 0, 0, 0}));
}

TEST_CASE("greetings of processes survive the wire, whatever their protocol") {
  Greeting greeting;
  greeting.protocol = 0x0908;
  greeting.ticket = make_ticket();
  greeting.sender = make_peer(7, false).process;
  greeting.receiver = make_peer(90, false).process;
  const WireBytes bytes = encode_greeting(greeting);
  REQUIRE(bytes.size() == greeting_bytes);
  const auto decoded = decode_greeting(bytes);
  REQUIRE(decoded);
  CHECK(decoded->protocol == 0x0908);
  CHECK(decoded->ticket.nonce == greeting.ticket.nonce);
  CHECK(same_secret(decoded->ticket, greeting.ticket));
  CHECK(decoded->sender == greeting.sender);
  CHECK(decoded->receiver == greeting.receiver);
  CHECK_FALSE(decode_greeting(ByteView(bytes).first(greeting_bytes - 1)));
  for (std::size_t at = 0; at < 8; ++at) {
    WireBytes changed = bytes;
    changed[at] ^= 1;
    CHECK_FALSE(decode_greeting(changed));
  }
}

TEST_CASE("frames between processes are as documented, and bounded by their type") {
  PeerHeader header;
  header.sender = 0x01020304;
  header.nonce = 0x1112131415161718u;
  header.receiver = 0x21222324;
  header.chunk = 0x31323334;
  header.sequence = 0x4142434445464748u;
  header.payload_bytes = max_record_bytes;
  const PeerHeaderBytes bytes = encode_peer_header(header);
  CHECK(bytes[0] == 2);
  CHECK(bytes[4] == 0x04);
  CHECK(bytes[8] == 0x18);
  CHECK(bytes[16] == 0x24);
  CHECK(bytes[20] == 0x34);
  CHECK(bytes[24] == 0x48);
  CHECK(bytes[36] == 1);
  const auto decoded = decode_peer_header(bytes);
  REQUIRE(decoded);
  CHECK(decoded->sender == header.sender);
  CHECK(decoded->nonce == header.nonce);
  CHECK(decoded->receiver == header.receiver);
  CHECK(decoded->chunk == header.chunk);
  CHECK(decoded->sequence == header.sequence);
  CHECK(decoded->payload_bytes == header.payload_bytes);

  const auto accepted = [](const PeerHeader& changed) {
    return decode_peer_header(encode_peer_header(changed)).has_value();
  };
  header.payload_bytes = max_record_bytes + 1;
  CHECK_FALSE(accepted(header));
  const auto unnumbered = [](PeerFrame type, std::uint64_t payload_bytes) {
    return PeerHeader{type, 1, 2, 3, 0, 0, payload_bytes};
  };
  CHECK(accepted(unnumbered(PeerFrame::proof, secret_bytes)));
  CHECK_FALSE(accepted(unnumbered(PeerFrame::proof, secret_bytes - 1)));
  CHECK(accepted(unnumbered(PeerFrame::leave, 0)));
  CHECK_FALSE(accepted(unnumbered(PeerFrame::leave, 1)));
  CHECK_FALSE(accepted({PeerFrame::leave, 1, 2, 3, 1, 0, 0}));
  CHECK_FALSE(accepted({PeerFrame::proof, 1, 2, 3, 0, 1, secret_bytes}));
  CHECK_FALSE(accepted(unnumbered(static_cast<PeerFrame>(0), 0)));
  CHECK(accepted({PeerFrame::fence, 1, 2, 3, 7, 8, fence_message_bytes}));
  CHECK_FALSE(accepted(unnumbered(PeerFrame::fence, fence_message_bytes - 1)));
  CHECK_FALSE(accepted(unnumbered(static_cast<PeerFrame>(5), 0)));
  for (const std::size_t reserved : {1, 2, 3}) {
    PeerHeaderBytes changed = bytes;
    changed[reserved] = 1;
    CHECK_FALSE(decode_peer_header(changed));
  }
  CHECK_FALSE(decode_peer_header(ByteView(bytes).first(peer_header_bytes - 1)));
}

TEST_CASE("refusals arrive on one line") {
  const WireBytes frame = encode_text(MessageType::refuse, "no\nmore\tof\x1bthis");
  CHECK(decode_text(body_of(frame)) == "no?more?of?this");
  CHECK(encode_text(MessageType::refuse, std::string(100'000, 'x')).size() == frame_header_bytes + 4 + max_text_bytes);
  CHECK_FALSE(decode_text(WireBytes{5, 0, 0, 0, 'a'}));
}

}  // namespace
}  // namespace zipccl::test
