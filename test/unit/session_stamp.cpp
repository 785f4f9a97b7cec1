// Where the listener is found: stamps in ids, their secrets, and the interface that its address is of.
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "switcher/interfaces.hpp"
#include "switcher/stamp.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/session_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;

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
