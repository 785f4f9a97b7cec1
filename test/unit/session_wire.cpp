// Stamps, frames and interface patterns: everything that reads bytes or text from elsewhere.
#include <algorithm>
#include <random>

#include "switcher/interfaces.hpp"
#include "switcher/limits.hpp"
#include "switcher/stamp.hpp"
#include "switcher/wire.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/session_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;

Ticket make_ticket() {
  Ticket ticket{0x0123456789abcdefu, {}};
  for (std::size_t i = 0; i < secret_bytes; ++i) ticket.secret[i] = static_cast<std::uint8_t>(200 + i);
  return ticket;
}

Hello full_hello() {
  Hello hello = make_hello(5, 9);
  hello.nvlink_peers = {"GPU-1", "", "GPU-3"};
  hello.process = 0xfedcba9876543210u;
  hello.staging_bytes = std::uint64_t{5} << 33;
  hello.max_connections = 32;
  hello.p2p_disabled = true;
  hello.nonblocking = true;
  hello.refusal = "no room";
  return hello;
}

ByteView body_of(const WireBytes& frame) { return ByteView(frame).subspan(frame_header_bytes); }

std::optional<Hello> decode_hello_body(ByteView body) {
  const auto prefix = decode_hello_prefix(body);
  if (!prefix) return std::nullopt;
  return decode_hello(*prefix, body.subspan(hello_prefix_bytes));
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
  CHECK_FALSE(header(0, 11));
  CHECK_FALSE(decode_frame_header(WireBytes(4)));
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
  verdict.slowest_link = LinkClass::network;
  verdict.links.assign(1024 * 1024, LinkClass::network);
  for (std::size_t rank = 0; rank < 1024; ++rank) verdict.links[rank * 1025] = LinkClass::same_device;
  const WireBytes frame = encode_verdict(verdict);
  CHECK(frame.size() < 16'384);
  const auto decoded = decode_verdict(body_of(frame));
  REQUIRE(decoded);
  CHECK(decoded->compressed);
  CHECK(decoded->staging_bytes == 77);
  CHECK(decoded->max_connections == 8);
  CHECK(decoded->slowest_link == LinkClass::network);
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
  CHECK_FALSE(with(body.size() - 1, 5));
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

TEST_CASE("refusals arrive on one line") {
  const WireBytes frame = encode_text(MessageType::refuse, "no\nmore\tof\x1bthis");
  CHECK(decode_text(body_of(frame)) == "no?more?of?this");
  CHECK(encode_text(MessageType::refuse, std::string(100'000, 'x')).size() == frame_header_bytes + 4 + max_text_bytes);
  CHECK_FALSE(decode_text(WireBytes{5, 0, 0, 0, 'a'}));
}

TEST_CASE("secrets are compared in full") {
  const Ticket ticket = make_ticket();
  for (std::size_t i = 0; i < secret_bytes; ++i) {
    Ticket other = ticket;
    other.secret[i] ^= 0x10;
    CHECK_FALSE(same_secret(ticket, other));
  }
  CHECK(same_secret(ticket, make_ticket()));
}

TEST_CASE("a stamp takes the last 64 bytes and comes back") {
  Stamp stamp;
  stamp.ticket = make_ticket();
  stamp.listener.port = 0xabcd;
  SECTION("IPv4") { stamp.listener.address = {10, 1, 2, 3}; }
  SECTION("IPv6") {
    stamp.listener.ipv6 = true;
    stamp.listener.address = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  }
  UniqueId id;
  id.fill(0x5a);
  CHECK_FALSE(Rendezvous::stamped(id));
  write_stamp(stamp, id);
  CHECK(std::all_of(id.begin(), id.begin() + stamp_offset, [](std::uint8_t byte) { return byte == 0x5a; }));
  CHECK(Rendezvous::stamped(id));
  const auto read = read_stamp(id);
  REQUIRE(read);
  CHECK(read->listener == stamp.listener);
  CHECK(read->ticket.nonce == stamp.ticket.nonce);
  CHECK(same_secret(read->ticket, stamp.ticket));
  for (const std::size_t at : {64, 71, 72, 73, 74}) {
    UniqueId other = id;
    other[at] ^= 0x80;
    CAPTURE(at);
    CHECK_FALSE(Rendezvous::stamped(other));
  }
}

TEST_CASE("interface patterns follow NCCL_SOCKET_IFNAME") {
  CHECK(matches("eth", "eth0"));
  CHECK_FALSE(matches("eth", "bond0"));
  CHECK(matches("bond,eth", "eth1"));
  CHECK(matches("=eth0", "eth0"));
  CHECK_FALSE(matches("=eth0", "eth01"));
  CHECK(matches("=bond0,eth0", "eth0"));
  CHECK_FALSE(matches("^docker,lo", "docker0"));
  CHECK(matches("^docker,lo", "eth0"));
  CHECK(matches("^=eth0", "eth01"));
  CHECK_FALSE(matches("^=eth0", "eth0"));
  CHECK_FALSE(matches("eth0,", "lo"));
}

TEST_CASE("the listener's address is the first that the pattern selects") {
  const auto at = [](const char* name, std::uint8_t last) {
    Interface interface {
      name, {}
    };
    interface.address.address = {10, 0, 0, last};
    return interface;
  };
  const std::vector<Interface> all = {at("lo", 1), at("docker0", 2), at("eth0", 3), at("eth1", 4), at("ib0", 5)};
  const auto chosen = [](std::span<const Interface> interfaces, const std::string& pattern) {
    Endpoint address;
    std::string why;
    if (choose_address(interfaces, pattern, &address, &why) != Status::ok) return why;
    return address.text();
  };
  CHECK(chosen(all, "") == "10.0.0.5:0");
  CHECK(chosen(std::span(all).first(4), "") == "10.0.0.3:0");
  CHECK(chosen(std::span(all).first(2), "") == "10.0.0.2:0");
  CHECK(chosen(std::span(all).first(1), "") == "10.0.0.1:0");
  CHECK(chosen({}, "") == "no network interface is up");
  CHECK(chosen(all, "lo") == "10.0.0.1:0");
  CHECK(chosen(all, "=eth1") == "10.0.0.4:0");
  CHECK(chosen(all, "^lo,docker,eth0") == "10.0.0.4:0");
  CHECK(chosen(all, "wlan") == "no network interface that is up matches \"wlan\"");
}

TEST_CASE("this host has an interface that is up") {
  const auto interfaces = list_interfaces();
  REQUIRE_FALSE(interfaces.empty());
  CHECK(std::any_of(interfaces.begin(), interfaces.end(), [](const Interface& entry) { return entry.name == "lo"; }));
}

}  // namespace
}  // namespace zipccl::test
