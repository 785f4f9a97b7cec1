#include "switcher/session.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/session_fixture.hpp"

namespace zipccl::test {
namespace {

using switcher::Hello;
using switcher::link_between;
using switcher::LinkClass;

// Both directions must agree, whatever the pair.
LinkClass link(const Hello& one, const Hello& other) {
  REQUIRE(link_between(one, other) == link_between(other, one));
  return link_between(one, other);
}

TEST_CASE("ranks of one host connect by the fastest way that both allow") {
  Hello one = make_hello(0, 2);
  Hello other = make_hello(1, 2);
  CHECK(link(one, other) == LinkClass::pcie);

  SECTION("NVLink counts if either side lists the other") {
    one.nvlink_peers = {"0000:99:00.0", other.device};
    CHECK(link(one, other) == LinkClass::nvlink);
    other.nvlink_peers = {one.device};
    CHECK(link(one, other) == LinkClass::nvlink);
  }
  SECTION("NCCL_P2P_DISABLE on either side leaves shared memory") {
    one.nvlink_peers = {other.device};
    other.p2p_disabled = true;
    CHECK(link(one, other) == LinkClass::shared_memory);
    SECTION("NCCL_SHM_DISABLE too leaves the network") {
      one.shm_disabled = true;
      CHECK(link(one, other) == LinkClass::sockets);
      one.rdma = other.rdma = true;
      CHECK(link(one, other) == LinkClass::network);
    }
    SECTION("containers with a /dev/shm each are left the network") {
      other.shared_memory = "another";
      CHECK(link(one, other) == LinkClass::sockets);
    }
  }
  SECTION("the host runtime has no devices, so no peer access") {
    one.device.clear();
    other.device.clear();
    CHECK(link(one, other) == LinkClass::shared_memory);
  }
  SECTION("two ranks share a device") {
    other.device = one.device;
    other.p2p_disabled = true;
    CHECK(link(one, other) == LinkClass::same_device);
  }
}

TEST_CASE("different hosts connect over the network, whatever else is equal") {
  Hello one = make_hello(0, 2);
  Hello other = one;
  other.host = "the same machine under another NCCL_HOSTID";
  one.nvlink_peers = {other.device};
  CHECK(link(one, other) == LinkClass::sockets);
  one.rdma = true;
  CHECK(link(one, other) == LinkClass::sockets);
  other.rdma = true;
  CHECK(link(one, other) == LinkClass::network);
}

TEST_CASE("every link class has a name of its own") {
  CHECK(std::string(to_string(LinkClass::same_device)) == "same device");
  CHECK(std::string(to_string(LinkClass::nvlink)) == "NVLink");
  CHECK(std::string(to_string(LinkClass::pcie)) == "PCIe");
  CHECK(std::string(to_string(LinkClass::shared_memory)) == "shared memory");
  CHECK(std::string(to_string(LinkClass::network)) == "network");
  CHECK(std::string(to_string(LinkClass::sockets)) == "sockets");
}

}  // namespace
}  // namespace zipccl::test
