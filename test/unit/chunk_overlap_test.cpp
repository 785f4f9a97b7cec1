// Chunks of calls in mode static that overlap on a side stream: what they must be ordered by, and what the caller's
// stream waits for, whatever fails.
#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

#include "collectives/all_gather.hpp"
#include "test/support/data.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/static_ranks.hpp"

using namespace zipccl;
using namespace zipccl::collectives;
using test::Data;
using test::LoopbackWorld;
using test::StaticRanks;
using test::stream_of;

namespace {

constexpr std::uint64_t staging_bytes = test::gather_staging_bytes;
constexpr std::uint64_t small_staging = 4 * Staging::smallest_chunk_bytes;  // the least for two ranks

}  // namespace

TEST_CASE("chunks of a call overlap on a side stream, in order") {
  for (const int count : {2, 3, 5}) {
    StaticRanks ranks(count, 16);
    const std::uint64_t chunk = Staging::chunk_values(staging_bytes, count, true, 16);
    for (const std::uint64_t chunks : {3, 4, 7}) {
      for (const bool in_place : {true, false}) {
        CAPTURE(count, chunks, in_place);
        const cudaStream_t stream = stream_of(1 + chunks % 2);
        ranks.world.gathers = 0;
        ranks.states[0]->device.pauses = 0;
        ranks.states[0]->device.together = 0;
        ranks.gather_group({{chunks * chunk - 5, in_place, stream}}, in_place ? Data::mixture : Data::random, chunks);
        ranks.require_equal();
        ranks.require_ordered(stream);
        REQUIRE(ranks.world.gathers == static_cast<int>(chunks));
        REQUIRE(ranks.states[0]->device.order.streams() >= 2);
        // One encode and all decodes but the last let an exchange start first.
        REQUIRE(ranks.states[0]->device.pauses == static_cast<int>(chunks));
        REQUIRE(ranks.states[0]->device.together == static_cast<int>(chunks) - 2);
      }
    }
  }
}

TEST_CASE("a call that fits into all of the staging is one chunk, with no other beside it") {
  for (const int count : {2, 3, 5}) {
    StaticRanks ranks(count, 16);
    const std::uint64_t half = Staging::chunk_values(staging_bytes, count, true, 16);
    const std::uint64_t whole = Staging::whole_values(staging_bytes, count, 16);
    REQUIRE(whole >= 2 * half);
    for (const std::uint64_t values : {half + 1, whole}) {
      for (const bool in_place : {true, false}) {
        CAPTURE(count, values, in_place);
        ranks.world.gathers = 0;
        ranks.gather_group({{values, in_place, stream_of(1)}}, Data::mixture, values);
        ranks.require_equal();
        REQUIRE(ranks.world.gathers == 1);
        ranks.gather_group({{half, in_place, stream_of(1)}, {values, in_place, stream_of(1)}, {7, true, stream_of(1)}},
                           Data::random, values);
        ranks.require_equal();
        ranks.require_ordered(stream_of(1));
        REQUIRE(ranks.world.gathers == 4);
        REQUIRE(ranks.states[0]->device.order.streams() == 1);
      }
    }
  }
}

TEST_CASE("copy engines need no head start, and slots where other ranks have them") {
  StaticRanks ranks(2, 16);
  for (const auto& state : ranks.states) {
    state->communicator.agreement.copy_engines = true;
  }
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, true, 16);
  for (const auto& [values, together] : {std::pair{4 * chunk, 2}, std::pair{4 * chunk - 5000, 1}}) {
    CAPTURE(values);
    ranks.states[0]->device.together = 0;
    ranks.gather_group({{values, false, stream_of(1)}}, Data::mixture, 1);
    ranks.require_equal();
    ranks.require_ordered(stream_of(1));
    REQUIRE(ranks.states[0]->device.order.streams() >= 2);
    REQUIRE(ranks.states[0]->device.pauses == 0);
    REQUIRE(ranks.states[0]->device.together == together);  // the last chunk's decode is no such one's
  }
}

TEST_CASE("copy engines move nothing on the default stream, which waits for all the same") {
  const bool copy_engines = GENERATE(true, false);
  StaticRanks ranks(2, 16);
  for (const auto& state : ranks.states) {
    state->communicator.agreement.copy_engines = copy_engines;
  }
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, true, 16);
  for (const std::uint64_t values : {chunk / 2, 3 * chunk + 1}) {
    for (const bool in_place : {true, false}) {
      CAPTURE(copy_engines, values, in_place);
      ranks.world.gathers_on_default_stream = 0;
      for (int call = 0; call < 2; ++call) {
        ranks.gather_group({{values, in_place, nullptr}, {1000, true, nullptr}}, Data::random, values);
        ranks.require_equal();
        ranks.use_outputs(nullptr);
      }
      ranks.require_ordered(nullptr);
      REQUIRE((ranks.world.gathers_on_default_stream == 0) == copy_engines);
    }
  }
}

TEST_CASE("a call of one chunk, or under rule R5's condition, stays on its stream") {
  StaticRanks ranks(2, 16);
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, true, 16);
  std::uint64_t values = chunk;
  SECTION("one chunk") {}
  SECTION("rule R5") {
    for (const auto& state : ranks.states) {
      state->communicator.agreement.overlap = false;
    }
    values = 3 * chunk;
  }
  ranks.gather_group({{values, false, stream_of(1)}}, Data::normal, 1);
  ranks.require_equal();
  ranks.require_ordered(stream_of(1));
  REQUIRE(ranks.states[0]->device.order.streams() == 1);
  REQUIRE(ranks.states[0]->device.pauses == 0);
}

TEST_CASE("the calls of a group overlap if they share a stream") {
  StaticRanks ranks(2, 16);
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, true, 16);
  const bool shared = GENERATE(true, false);
  const cudaStream_t other = stream_of(shared ? 1 : 2);
  for (const bool in_place : {true, false}) {
    for (const std::uint64_t last : {chunk / 2, 2 * chunk + 1}) {
      CAPTURE(shared, in_place, last);
      ranks.gather_group({{1000, in_place, stream_of(1)},
                          {3 * chunk, !in_place, other},
                          {1, in_place, other},
                          {last, in_place, stream_of(1)}},
                         Data::random, last);
      ranks.require_equal();
      ranks.require_ordered(stream_of(1));
      REQUIRE(ranks.states[0]->device.order.streams() == 2);
    }
  }
}

TEST_CASE("a large shard is copied beside the exchange of its one chunk") {
  constexpr std::uint64_t room = 64 << 20;
  StaticRanks ranks(2, 16, room);
  ranks.gather_group({{4 << 20, true, stream_of(1)}}, Data::zeros, 1);
  ranks.use_outputs(stream_of(1));  // the copy comes after that
  ranks.world.gathers = 0;
  ranks.gather_group({{4 << 20, false, stream_of(1)}}, Data::normal, 1);
  ranks.require_equal();
  ranks.require_ordered(stream_of(1));
  REQUIRE(ranks.world.gathers == 1);
  REQUIRE(ranks.states[0]->device.order.streams() == 2);
  REQUIRE(ranks.states[0]->device.pauses == 1);
}

TEST_CASE("random groups of calls, whatever their sizes and streams, and what the ranks have agreed on") {
  std::mt19937_64 random(11);
  const auto pick = [&](std::uint64_t choices) { return random() % choices; };
  int together = 0;
  for (int round = 0; round < 40; ++round) {
    const int count = 2 + static_cast<int>(pick(5));
    const auto pool = static_cast<std::uint32_t>(std::array{0, 1, 5, 16, 64}[pick(5)]);
    const std::uint64_t room =
        2 * static_cast<std::uint64_t>(count) * (Staging::smallest_chunk_bytes + 256 * pick(300));
    StaticRanks ranks(count, pool, room);
    const bool copy_engines = pick(4) == 0;
    const bool overlap = pick(6) != 0;
    const std::uint64_t call_ns = std::array<std::uint64_t, 3>{5, 25'000, 130'000}[pick(3)];
    for (const auto& state : ranks.states) {
      state->communicator.agreement.copy_engines = copy_engines;
      state->communicator.agreement.overlap = overlap;
      state->communicator.agreement.call_ns = call_ns;
    }
    const std::uint64_t chunk = Staging::chunk_values(room, count, true, pool);
    for (int group = 0; group < 4; ++group) {
      CAPTURE(round, group, count, pool, room, copy_engines, overlap, call_ns);
      const bool one_stream = pick(4) != 0;
      const std::uint64_t stream = pick(4);
      std::vector<test::GatherShape> shapes(1 + pick(4));
      for (test::GatherShape& shape : shapes) {
        shape.count =
            std::max<std::uint64_t>(1, std::array{pick(2000), chunk * (1 + pick(4)), pick(5 * chunk)}[pick(3)]);
        shape.in_place = pick(2) == 0;
        shape.stream = stream_of(one_stream ? stream : pick(4));
      }
      ranks.gather_group(shapes, static_cast<Data>(pick(test::data_kinds)), random());
      ranks.require_equal();
      if (one_stream) {
        ranks.require_ordered(stream_of(stream));
      }
      for (const auto& state : ranks.states) {
        REQUIRE(state->device.order.faults().empty());
        REQUIRE(state->communicator.port->counters().finished == state->communicator.port->enqueued());
      }
    }
    REQUIRE(ranks.records.size() == 0);
    together += ranks.states[0]->device.together;
  }
  REQUIRE(together > 50);
}

// The next call on another stream must find the half free, the caller's buffers are his again, and nothing is left for
// the helper thread to look after.
TEST_CASE("whatever fails, and when, the caller's stream waits for all that was enqueued") {
  const std::uint64_t chunk = Staging::chunk_values(small_staging, 2, true, 16);
  const bool in_nccl = GENERATE(false, true);
  const bool substituted = GENERATE(false, true);  // copy engines, on the default stream
  const cudaStream_t stream = substituted ? nullptr : stream_of(1);
  bool failed = true;
  for (int step = 1; failed; ++step) {
    CAPTURE(in_nccl, substituted, step);
    StaticRanks ranks(2, 16, small_staging);
    ranks.gather_group({{1000, true, substituted ? stream : stream_of(2)}}, Data::normal, 1);
    for (const auto& state : ranks.states) {
      state->communicator.agreement.copy_engines = substituted;
      state->device.operations = 0;
      state->device.fail_at = in_nccl ? 0 : step;
      state->rank.calls = 0;
    }
    if (in_nccl) {
      ranks.world.fault_rank = LoopbackWorld::every_rank;
      ranks.world.fault_call = step;
      ranks.world.fault_result = ncclSystemError;
    }
    ranks.gather_group({{3 * chunk + 1, false, stream}, {500, true, stream}}, Data::mixture, 2);
    failed = ranks.states[0]->result != ncclSuccess;
    ranks.require_ordered(stream);
    for (const auto& state : ranks.states) {  // the helper thread sleeps
      REQUIRE(state->communicator.port->counters().finished == state->communicator.port->enqueued());
    }
    if (failed) {
      for (const auto& state : ranks.states) {
        REQUIRE(state->result == (in_nccl ? ncclSystemError : ncclUnhandledCudaError));
      }
    } else {
      ranks.require_equal();
      REQUIRE(step > (in_nccl ? 4 : 30));
    }
  }
}
