// Calls of a group on their communicators' own streams: what they are ordered by, and that the callers' streams wait
// for them, whatever fails.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "interpose/apart.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/loopback.hpp"

using namespace zipccl;
using namespace zipccl::interpose;
using test::LoopbackDevice;

namespace {

codec::Stream stream_of(std::uintptr_t number) { return reinterpret_cast<codec::Stream>(number); }

// Two communicators of one device, and a group of calls of both. A call is a copy on its stream, from what its caller's
// stream has written to what that reads afterwards.
struct Apart {
  LoopbackDevice device;
  std::vector<CommPointer> owners;
  std::vector<EligibleAllGather> all_gathers;
  std::vector<EligibleTransfer> transfers;
  std::array<cudaStream_t, 2> native_streams{};
  std::vector<NativeStream> native;
  std::vector<codec::Stream> callers;  // by call, all-gathers first
  std::vector<std::vector<std::byte>> memory;

  Apart() {
    for (int index = 0; index < 2; ++index) {
      owners.push_back(std::make_shared<CommState>());
      owners.back()->communicator.device = &device;
      owners.back()->communicator.handle = handle_of(index);
      REQUIRE(collectives::CallChain::create(device, &owners.back()->communicator.chain) == Status::ok);
    }
    memory.resize(3 * 7);
    for (std::vector<std::byte>& bytes : memory) {
      bytes.resize(64);
    }
    add_all_gather(0, 1);
    add_all_gather(0, 2);
    add_all_gather(1, 1);
    add_transfer(0, 3);
    add_transfer(1, 1);
    add_native(0, 4);
    add_native(2, 2);  // of a communicator without compressed calls
  }

  static ncclComm_t handle_of(int number) { return reinterpret_cast<ncclComm_t>(std::uintptr_t{1} + number); }
  void add_native(int number, std::uintptr_t stream) {
    native_streams[native.size()] = stream_of(stream);
    native.push_back({handle_of(number), &native_streams[native.size()]});
    callers.push_back(stream_of(stream));
  }

  void add_all_gather(std::size_t owner, std::uintptr_t stream) {
    add(all_gathers, &EligibleAllGather::call, owner, stream);
  }
  void add_transfer(std::size_t owner, std::uintptr_t stream) {
    add(transfers, &EligibleTransfer::transfer, owner, stream);
  }
  template <typename Eligible, typename Plain>
  void add(std::vector<Eligible>& calls, Plain Eligible::*plain, std::size_t owner, std::uintptr_t stream) {
    Eligible call{{}, ncclBfloat16, owners[owner]};
    (call.*plain).communicator = &owners[owner]->communicator;
    (call.*plain).stream = stream_of(stream);
    calls.push_back(call);
    callers.push_back(stream_of(stream));
  }

  codec::Stream& stream(std::size_t call) {
    const std::size_t compressed = all_gathers.size() + transfers.size();
    return call >= compressed          ? native_streams[call - compressed]
           : call < all_gathers.size() ? all_gathers[call].call.stream
                                       : transfers[call - all_gathers.size()].transfer.stream;
  }
  Status copy(std::size_t call, std::size_t step, codec::Stream on) {
    return device.copy(memory[3 * call + step].data(), memory[3 * call + (step + 2) % 3].data(), 64, on);
  }

  ncclResult_t run() {
    for (std::size_t call = 0; call < callers.size(); ++call) {
      REQUIRE(copy(call, 0, callers[call]) == Status::ok);
    }
    device.operations = 0;
    device.fail_at = fail_at;
    const auto apart = make_apart(all_gathers, transfers, native);
    ncclResult_t result = apart->begin();
    for (std::size_t call = 0; call < callers.size() && result == ncclSuccess; ++call) {
      result = copy(call, 1, stream(call)) == Status::ok ? ncclSuccess : ncclSystemError;
    }
    result = apart->end(result);
    failed = device.fail_at != 0 && device.operations >= device.fail_at;
    device.fail_at = 0;
    for (std::size_t call = 0; call < callers.size(); ++call) {
      REQUIRE(copy(call, 2, callers[call]) == Status::ok);
    }
    return result;
  }

  // Each caller's stream is behind its communicators' calls, and nothing ran beside what it had to wait for.
  void require_ordered() const { REQUIRE(device.order.faults() == std::vector<std::string>{}); }

  int fail_at = 0;
  bool failed = false;  // an operation between the callers' has
};

}  // namespace

TEST_CASE("all of a communicator's calls run on one stream of its own") {
  Apart apart;
  REQUIRE(apart.run() == ncclSuccess);
  apart.require_ordered();
  for (const std::size_t call : {0, 1, 3, 5}) {
    REQUIRE(apart.stream(call) == apart.stream(0));
    REQUIRE(apart.stream(call) != apart.callers[call]);
  }
  for (const std::size_t call : {2, 4}) {
    REQUIRE(apart.stream(call) == apart.stream(2));
    REQUIRE(apart.stream(call) != apart.callers[call]);
  }
  REQUIRE(apart.stream(0) != apart.stream(2));
  REQUIRE(apart.stream(6) == apart.callers[6]);
}

TEST_CASE("whatever fails, and when, the callers' streams wait for calls on other streams") {
  bool failed = true;
  int step = 1;
  for (; failed; ++step) {
    CAPTURE(step);
    Apart apart;
    apart.fail_at = step;
    const ncclResult_t result = apart.run();
    failed = apart.failed;
    apart.require_ordered();
    REQUIRE((result == ncclSuccess) == !failed);
    REQUIRE((apart.owners[0]->communicator.failure == ncclSuccess || failed));
  }
  REQUIRE(step > 20);
}

TEST_CASE("a communicator that has failed or is aborted takes no call apart, and others' streams go on") {
  Apart apart;
  const bool aborted = GENERATE(false, true);
  if (aborted) {
    apart.owners[1]->communicator.aborted.store(true);
  } else {
    apart.owners[1]->communicator.failure = ncclRemoteError;
  }
  REQUIRE(apart.run() != ncclSuccess);
  apart.require_ordered();
  REQUIRE(apart.owners[0]->communicator.failure == ncclSuccess);
  REQUIRE(apart.owners[0]->callers.load() == 0);
  REQUIRE(apart.owners[1]->callers.load() == 0);
}

TEST_CASE("a captured group leaves no stream of its own in the capture") {
  Apart apart;
  for (std::size_t call = 0; call < apart.callers.size(); ++call) {
    apart.stream(call) = apart.callers[call] = stream_of(1);
  }
  apart.device.begin_capture(stream_of(1));
  REQUIRE(apart.run() == ncclSuccess);
  const LoopbackDevice::Graph graph = apart.device.end_capture(stream_of(1));
  for (int replay = 0; replay < 2; ++replay) {
    REQUIRE(apart.device.launch(graph, stream_of(1)) == Status::ok);
  }
  apart.require_ordered();
  REQUIRE(apart.device.order.rejoined(stream_of(1)));
}
