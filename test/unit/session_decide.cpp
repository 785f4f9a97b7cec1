#include <algorithm>

#include "switcher/session.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/session_fixture.hpp"

namespace zipccl::test {
namespace {

using switcher::decide;
using switcher::Hello;
using switcher::LinkClass;
using switcher::Verdict;

std::vector<Hello> make_hellos(std::uint32_t rank_count) {
  std::vector<Hello> hellos;
  for (std::uint32_t rank = 0; rank < rank_count; ++rank) hellos.push_back(make_hello(rank, rank_count));
  return hellos;
}

Verdict decide_without(const std::vector<Hello>& hellos, const std::vector<std::size_t>& missing = {}) {
  std::vector<const Hello*> pointers;
  for (const Hello& hello : hellos) pointers.push_back(&hello);
  for (const std::size_t rank : missing) pointers[rank] = nullptr;
  return decide(pointers);
}

std::string native_reason(const std::vector<Hello>& hellos, const std::vector<std::size_t>& missing = {}) {
  const Verdict verdict = decide_without(hellos, missing);
  CHECK_FALSE(verdict.compressed);
  CHECK(verdict.links.empty());
  return verdict.reason;
}

TEST_CASE("ranks that agree are compressed, with the smallest of what they have") {
  auto hellos = make_hellos(10);
  hellos[3].staging_bytes = 64u << 20;
  hellos[7].max_connections = 1;
  hellos[0].nvlink_peers = {hellos[1].device};
  const Verdict verdict = decide_without(hellos);
  CHECK(verdict.compressed);
  CHECK(verdict.reason.empty());
  CHECK(verdict.staging_bytes == 64u << 20);
  CHECK(verdict.max_connections == 1);
  CHECK(verdict.slowest_link == LinkClass::sockets);
  REQUIRE(verdict.links.size() == 100);
  CHECK(verdict.links[0] == LinkClass::same_device);
  CHECK(verdict.links[1] == LinkClass::nvlink);
  CHECK(verdict.links[10] == LinkClass::nvlink);
  CHECK(verdict.links[2] == LinkClass::pcie);
  CHECK(verdict.links[8] == LinkClass::sockets);
  CHECK(verdict.links[89] == LinkClass::pcie);
  CHECK(decide_without(make_hellos(8)).slowest_link == LinkClass::pcie);
}

TEST_CASE("copy engines need every rank, and NVLink between all of them") {
  auto hellos = make_hellos(3);
  for (Hello& hello : hellos) {
    hello.copy_engines = true;
    for (const Hello& other : hellos) hello.nvlink_peers.push_back(other.device);
  }
  CHECK(decide_without(hellos).copy_engines);
  hellos[1].copy_engines = false;
  CHECK(decide_without(hellos).compressed);
  CHECK_FALSE(decide_without(hellos).copy_engines);
  hellos[1].copy_engines = true;
  hellos[2].host = "elsewhere";
  CHECK_FALSE(decide_without(hellos).copy_engines);
}

TEST_CASE("a missing hello is a rank without zipccl") {
  const auto hellos = make_hellos(5);
  CHECK(native_reason(hellos, {3}) ==
        "rank 3 runs without zipccl or cannot connect to the process that made the ncclUniqueId");
  CHECK(native_reason(hellos, {0}) ==
        "rank 0 runs without zipccl or cannot connect to the process that made the ncclUniqueId");
  CHECK(native_reason(hellos, {1, 2, 4}) ==
        "rank 1 runs without zipccl or cannot connect to the process that made the ncclUniqueId, and so do 2 more");
  CHECK(native_reason({}) == "the communicator has no ranks");
}

TEST_CASE("a differing configuration is named by its settings") {
  auto hellos = make_hellos(4);
  SECTION("one value") {
    hellos[2].configuration = "ZIPCCL_COLLECTIVES=allgather\nZIPCCL_MIN_BYTES=65536\n";
    CHECK(native_reason(hellos) == "rank 2 has ZIPCCL_MIN_BYTES=65536, rank 0 has 1048576");
  }
  SECTION("two values, the first rank that differs") {
    hellos[1].configuration = "ZIPCCL_COLLECTIVES=p2p\nZIPCCL_MIN_BYTES=1\n";
    hellos[3].configuration = "ZIPCCL_COLLECTIVES=none\n";
    CHECK(native_reason(hellos) ==
          "rank 1 has ZIPCCL_COLLECTIVES=p2p, rank 0 has allgather; ZIPCCL_MIN_BYTES=1, rank 0 has 1048576");
  }
  SECTION("a setting that rank 0 lacks") {
    hellos[1].configuration += "ZIPCCL_VERIFY=1/64\n";
    CHECK(native_reason(hellos) == "rank 1 has ZIPCCL_VERIFY=1/64, rank 0 has none");
  }
  SECTION("a setting that only rank 0 has") {
    hellos[1].configuration = "ZIPCCL_COLLECTIVES=allgather\n";
    CHECK(native_reason(hellos) == "rank 1 has no ZIPCCL_MIN_BYTES, rank 0 has 1048576");
  }
  SECTION("the order of lines counts, for the text must be the same") {
    hellos[1].configuration = "ZIPCCL_MIN_BYTES=1048576\nZIPCCL_COLLECTIVES=allgather\n";
    CHECK(native_reason(hellos) == "rank 1 has the same settings as rank 0, written differently");
  }
  SECTION("control characters and long values do not leave the line") {
    hellos[1].configuration = "ZIPCCL_POLICY=a\rb" + std::string(1000, 'x') + "\n";
    const std::string reason = native_reason(hellos);
    CHECK(reason.find("ZIPCCL_POLICY=a?bxxx") != std::string::npos);
    CHECK(reason.size() < 400);
  }
}

TEST_CASE("ranks that cannot take part are named with their reason") {
  auto hellos = make_hellos(3);
  SECTION("another version") {
    hellos[1].library_version = "0.2.0";
    hellos[1].configuration = "NEW=1\n";
    CHECK(native_reason(hellos) == "rank 1 has zipccl 0.2.0, rank 0 has 0.1.0");
  }
  SECTION("no staging") {
    hellos[1].staging_bytes = 0;
    CHECK(native_reason(hellos) == "rank 1 could not reserve staging memory");
  }
  SECTION("nonblocking") {
    hellos[2].nonblocking = true;
    CHECK(native_reason(hellos) == "rank 2 uses a nonblocking communicator");
  }
  SECTION("its own words come before their consequences, on one line") {
    hellos[2].refusal = "ZIPCCL_MIN_BYTES=\"abc\" is no number\n";
    hellos[2].staging_bytes = 0;
    hellos[2].configuration.clear();
    CHECK(native_reason(hellos) == "rank 2: ZIPCCL_MIN_BYTES=\"abc\" is no number?");
  }
}

}  // namespace
}  // namespace zipccl::test
