// Groups of compressed sends and receives: exactness, stream order, staging that grows, faults wherever they can be.
#include "collectives/transfers.hpp"

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "test/unit/catch.hpp"
#include "test/unit/transfer_ranks.hpp"

using namespace zipccl;
using namespace zipccl::collectives;
using test::Data;
using test::GatherRank;
using test::LoopbackDevice;
using test::LoopbackWorld;
using test::Messages;
using test::ring;
using test::stream_of;
using test::TransferRanks;
using test::TransferShape;

namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

std::unique_ptr<Messages> make(TransferRanks& ranks, const std::vector<TransferShape>& shapes, std::uint64_t seed) {
  return std::make_unique<Messages>(ranks, shapes, seed);
}

// Sizes and streams in disorder; every fifth message is random bits.
std::vector<TransferShape> all_pairs(int ranks, std::uint64_t salt, std::uintptr_t streams, std::uint64_t most) {
  std::vector<TransferShape> shapes;
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      if (from == to) {
        continue;
      }
      const std::uint64_t bits = (salt * 64 + shapes.size()) * 0x9E3779B97F4A7C15u >> 20;
      shapes.push_back({from, to, 1 + bits % most, static_cast<Data>((salt + shapes.size()) % test::data_kinds),
                        1 + bits / most % streams, 16});
    }
  }
  return shapes;
}

void require_ordered(const TransferRanks& ranks, std::uintptr_t streams) {
  for (std::uintptr_t stream = 1; stream <= streams; ++stream) {
    CAPTURE(stream);
    ranks.require_ordered(stream_of(stream));
  }
}

std::vector<LoopbackDevice::Graph> capture(TransferRanks& ranks, std::uintptr_t stream, Messages& messages) {
  std::vector<LoopbackDevice::Graph> graphs;
  for (const auto& state : ranks.states) {
    state->device.begin_capture(stream_of(stream));
    messages.enqueue(*state);
    graphs.push_back(state->device.end_capture(stream_of(stream)));
  }
  return graphs;
}

void launch(TransferRanks& ranks, const std::vector<LoopbackDevice::Graph>& graphs, std::uintptr_t stream) {
  ranks.run([&](GatherRank& state) {
    state.status = state.device.launch(graphs[static_cast<std::size_t>(state.rank.rank)], stream_of(stream));
  });
  for (const auto& state : ranks.states) {
    REQUIRE(state->status == Status::ok);
  }
}

}  // namespace

TEST_CASE("groups are exact and ordered, on several streams, one after the other") {
  for (const int count : {2, 3, 5}) {
    TransferRanks ranks(count);
    std::vector<std::unique_ptr<Messages>> all;
    for (std::uint64_t round = 0; round < 12; ++round) {
      CAPTURE(count, round);
      // Round 0 uses all streams: later ones must know of all that ran on them.
      const std::uint64_t streams = 1 + (round + 2) % 3;
      all.push_back(make(ranks, all_pairs(count, round, streams, round % 4 == 3 ? 300000 : 9000), round));
      all.back()->run();
      all.back()->require_right();
      ranks.require_chained();
    }
    REQUIRE(ranks.records.size() == 0);
    REQUIRE(ranks.leaks() == 0);
  }
}

TEST_CASE("a group comes behind what its streams had, and they go on behind it") {
  TransferRanks ranks(2);
  const std::vector<TransferShape> each = {{0, 0, 5000, Data::mixture, 1},
                                           {0, 0, 2000, Data::random, 2},
                                           {0, 0, 70000, Data::normal, 3},
                                           {0, 0, 1, Data::zeros, 2}};
  const auto first = make(ranks, ring(2, {{0, 0, 3000, Data::normal, 4}}), 1);
  const auto second = make(ranks, ring(2, each), 2);
  const auto third = make(ranks, ring(2, each), 3);
  first->run();
  first->require_right();
  ranks.require_ordered(stream_of(4));
  second->run();
  second->require_right();
  require_ordered(ranks, 3);
  third->copies = true;
  third->run();
  third->require_right();
  for (const auto& state : ranks.states) {
    REQUIRE(state->device.order.faults() == std::vector<std::string>{});
    REQUIRE_FALSE(state->device.order.rejoined(stream_of(4)));  // it is no part of these groups
  }
}

TEST_CASE("groups and all-gathers of one communicator take turns") {
  TransferRanks ranks(3);
  const std::uint64_t chunk = Staging::chunk_values(test::gather_staging_bytes, 3, true, 16);
  std::vector<std::unique_ptr<Messages>> all;
  for (std::uint64_t round = 0; round < 9; ++round) {
    CAPTURE(round);
    all.push_back(make(ranks, all_pairs(3, round, 2, 20000), round));
    all.back()->run();
    all.back()->require_right();
    ranks.gather_group({{round % 3 == 2 ? 3 * chunk : 1000, false, stream_of(5 + round % 2)}},
                       round % 2 == 0 ? Data::random : Data::normal, round);
    ranks.require_equal();
    ranks.require_ordered(stream_of(5 + round % 2));
    ranks.require_chained();
  }
}

TEST_CASE("staging grows to what the largest group takes, below 0.72 of its buffers") {
  TransferRanks ranks(2);
  const int before = ranks.states[0]->device.allocations;
  std::vector<std::unique_ptr<Messages>> all;
  std::uint64_t largest = 0;
  for (const std::uint64_t count : {1000u, 524288u, 600000u, 4000u, 1500000u, 524288u}) {
    CAPTURE(count);
    all.push_back(make(ranks, ring(2, {{0, 0, count, Data::normal, 1}, {0, 0, count, Data::normal, 2}}), count));
    all.back()->run();
    all.back()->require_right();
    require_ordered(ranks, 2);
    const std::uint64_t scratch = 2 * codec::encode_scratch_bytes;  // two sends
    largest = std::max(largest, all.back()->static_bytes(0));
    const std::uint64_t bytes = ranks.staging(0).bytes();
    REQUIRE(bytes == largest + scratch);
    REQUIRE(ranks.states[0]->communicator.transfer_staging_bytes == bytes);
    REQUIRE(ranks.states[0]->device.allocations == before + 1);
    if (count * value_bytes >= mebibyte && all.back()->static_bytes(0) == largest) {
      REQUIRE(static_cast<double>(bytes) < 0.72 * static_cast<double>(all.back()->buffer_bytes(0)));
    }
  }
  REQUIRE(ranks.leaks() == 0);
}

TEST_CASE("what is reserved is there before the first group, also for a captured one") {
  constexpr std::uint64_t reserved = mebibyte;
  TransferRanks ranks(2, reserved);
  const auto small = make(ranks, ring(2, {{0, 0, 100000, Data::mixture, 1}}), 1);
  const auto large = make(ranks, ring(2, {{0, 0, 600000, Data::mixture, 1}}), 2);
  const std::uint64_t bytes = ranks.staging(0).bytes();
  REQUIRE(bytes == reserved + codec::encode_scratch_messages * codec::encode_scratch_bytes);
  const int before = ranks.states[0]->device.allocations;
  const auto graphs = capture(ranks, 1, *small);
  for (std::uint64_t round = 0; round < 10; ++round) {
    small->refill(round, static_cast<int>(round));
    launch(ranks, graphs, 1 + round % 2);
    small->require_right();
    ranks.require_chained();
  }
  REQUIRE(ranks.staging(0).bytes() == bytes);
  REQUIRE(ranks.states[0]->device.allocations == before);
  const auto larger_graphs =
      capture(ranks, 1, *large);  // gets more beside the capture, and the first graph keeps its own
  REQUIRE(ranks.states[0]->device.allocations == before + 1);
  for (std::uint64_t round = 0; round < 6; ++round) {
    CAPTURE(round);
    Messages& messages = round % 3 == 1 ? *small : *large;
    messages.refill(round, static_cast<int>(round));
    launch(ranks, round % 3 == 1 ? graphs : larger_graphs, 1 + round % 2);
    messages.require_right();
    ranks.require_chained();
  }
  REQUIRE(ranks.leaks() == 0);
}

TEST_CASE("a captured group keeps its staging when a later one needs more") {
  TransferRanks ranks(2);
  const auto shapes = ring(2, {{0, 0, 5000, Data::normal, 1}, {0, 0, 4000, Data::mixture, 1}});
  std::vector<std::unique_ptr<Messages>> all;
  std::vector<std::vector<LoopbackDevice::Graph>> graphs;
  for (std::uint64_t step = 0; step < 3; ++step) {
    auto sized = shapes;
    for (TransferShape& shape : sized) {
      shape.count *= 1 + step * 4;
    }
    all.push_back(make(ranks, sized, step));
    all.back()->run();  // makes room
    all.back()->require_right();
    graphs.push_back(capture(ranks, 1, *all.back()));
  }
  const auto eager = make(ranks, ring(2, {{0, 0, 90000, Data::normal, 2}}), 7);
  eager->run();
  eager->require_right();
  for (std::uint64_t round = 0; round < 10; ++round) {
    for (std::size_t graph = 0; graph < graphs.size(); ++graph) {
      CAPTURE(round, graph);
      all[graph]->refill(round, static_cast<int>(round));
      launch(ranks, graphs[graph], 1 + (round + graph) % 3);
      all[graph]->require_received();
      ranks.require_chained();
    }
    eager->refill(round, static_cast<int>(round));
    eager->run();
    eager->require_right();
    ranks.require_chained();
  }
  REQUIRE(ranks.records.size() == 0);
  REQUIRE(ranks.leaks() == 0);
}

TEST_CASE("messages with unlike rooms for outliers share a group") {
  TransferRanks ranks(3);
  std::vector<TransferShape> each;
  for (const std::uint32_t room : {16u, 0u, 640u, 16u, 0u}) {
    each.push_back({0, 0, 20000 + room, static_cast<Data>(each.size()), 1 + each.size() % 2, room});
  }
  std::vector<std::unique_ptr<Messages>> all;
  for (std::uint64_t round = 0; round < 5; ++round) {
    all.push_back(make(ranks, ring(3, each), round));
    all.back()->refill(round, static_cast<int>(round));
    all.back()->run();
    all.back()->require_right();
    require_ordered(ranks, 2);
  }
  for (std::size_t rank = 0; rank < 3; ++rank) {
    while (ranks.port(rank).counters().finished < ranks.port(rank).enqueued()) {
      std::this_thread::yield();
    }
    REQUIRE(ranks.port(rank).enqueued() == 15);  // three rooms a group
    REQUIRE(ranks.port(rank).flushed());
  }
  REQUIRE(ranks.records.size() == 0);
}

TEST_CASE("overflow goes to the receiver alone") {
  TransferRanks ranks(4);
  const auto messages = make(ranks,
                             {{0, 2, 60000, Data::random},
                              {0, 1, 60000, Data::normal},
                              {3, 2, 9000, Data::zeros},
                              {2, 0, 50000, Data::random},
                              {2, 3, 40000, Data::random}},
                             1);
  messages->run();
  messages->require_right();
  const auto sent = [&](std::size_t from) {
    std::vector<int> by_receiver;
    for (std::size_t to = 0; to < 4; ++to) {
      by_receiver.push_back(ranks.transports[from]->sent[to]);
    }
    return by_receiver;
  };
  REQUIRE(sent(0) == std::vector<int>{0, 0, 1, 0});
  REQUIRE(sent(1) == std::vector<int>{0, 0, 0, 0});
  REQUIRE(sent(2) == std::vector<int>{1, 0, 0, 1});
  REQUIRE(sent(3) == std::vector<int>{0, 0, 0, 0});
  REQUIRE(ranks.port(1).counters().overflow_messages == 0);
  REQUIRE(ranks.port(2).counters().overflow_messages == 1);
  REQUIRE(ranks.records.size() == 0);
}

TEST_CASE("a group of more messages than one launch takes") {
  TransferRanks ranks(2);
  std::vector<TransferShape> each;
  for (std::uint64_t message = 0; message < 600; ++message) {
    each.push_back({0, 0, 200 + message, message % 100 == 7 ? Data::random : Data::normal, 1, 16});
  }
  static_assert(600 > codec::encode_scratch_messages);
  const auto messages = make(ranks, ring(2, each), 1);
  for (std::uint64_t round = 0; round < 2; ++round) {
    messages->refill(round);
    messages->run();
    messages->require_right();
    ranks.require_ordered(stream_of(1));
  }
  REQUIRE(ranks.staging(0).bytes() ==
          messages->static_bytes(0) + codec::encode_scratch_messages * codec::encode_scratch_bytes);
}

// One group that must grow, with a joined stream and two rooms, fails at each operation in turn.
TEST_CASE("whatever fails, and when, the streams are rejoined, nothing leaks and the error stays") {
  const bool in_nccl = GENERATE(false, true);
  bool failed = true;
  for (int step = 1; failed; ++step) {
    CAPTURE(in_nccl, step);
    TransferRanks ranks(2);
    const auto first = make(ranks, ring(2, {{0, 0, 1000, Data::normal, 3}}), 1);
    first->run();
    first->require_right();
    for (const auto& state : ranks.states) {
      state->device.operations = state->device.decodes = 0;
      state->device.fail_at = in_nccl ? 0 : step;
      state->rank.calls = 0;
    }
    if (in_nccl) {
      ranks.world.fault_rank = LoopbackWorld::every_rank;
      ranks.world.fault_call = step;
      ranks.world.fault_result = ncclSystemError;
    }
    const auto second = make(
        ranks,
        ring(2,
             {{0, 0, 5000, Data::random, 1, 16}, {0, 0, 7000, Data::normal, 2, 0}, {0, 0, 9000, Data::random, 4, 16}}),
        2);
    second->run();
    failed = ranks.states[0]->result != ncclSuccess;
    for (const auto& state : ranks.states) {
      state->device.fail_at = 0;
    }
    for (const std::uintptr_t stream : {1, 2, 4}) {
      CAPTURE(stream);
      ranks.require_ordered(stream_of(stream));
    }
    ranks.require_chained();
    for (const auto& state : ranks.states) {  // the helper thread sleeps
      REQUIRE(state->communicator.port->counters().finished == state->communicator.port->enqueued());
    }
    if (!failed) {
      second->require_right();
      REQUIRE(step > (in_nccl ? 7 : 16));
    }
    for (const auto& state : ranks.states) {
      if (!failed) {
        continue;
      }
      if (in_nccl) {
        REQUIRE(state->result == ncclSystemError);
        REQUIRE(state->status == Status::nccl_error);
        REQUIRE(state->device.decodes == 0);
      } else {
        REQUIRE(state->result == ncclUnhandledCudaError);
        REQUIRE((state->status == Status::device_error || state->status == Status::out_of_memory));
      }
      const int operations = state->device.operations;
      const ncclResult_t result = state->result;
      second->enqueue(*state);
      REQUIRE(state->result == result);
      REQUIRE(state->status == Status::ok);  // said before
      REQUIRE(state->device.operations == operations);
    }
    REQUIRE(ranks.leaks() == 0);
  }
}

TEST_CASE("a group that NCCL drops leaves the communicator as it was") {
  TransferRanks ranks(2);
  const auto messages = make(ranks, ring(2, {{0, 0, 5000, Data::normal, 1, 16}, {0, 0, 7000, Data::normal, 2, 0}}), 1);
  for (int call = 1; call <= 4; ++call) {
    CAPTURE(call);
    ranks.world.fault_rank = LoopbackWorld::every_rank;
    ranks.world.fault_call = call;
    ranks.world.fault_result = ncclInvalidArgument;
    for (const auto& state : ranks.states) {
      state->rank.calls = state->device.decodes = 0;
    }
    messages->drops = true;
    messages->refill(static_cast<std::uint64_t>(call));
    messages->run();
    for (const auto& state : ranks.states) {
      REQUIRE(state->result == ncclInvalidArgument);
      REQUIRE(state->communicator.failure == ncclSuccess);
      REQUIRE(state->device.decodes == 0);
      REQUIRE(state->communicator.port->counters().finished == state->communicator.port->enqueued());
    }
    require_ordered(ranks, 2);
    ranks.require_chained();
    ranks.world.fault_call = 0;
    messages->run();
    messages->require_right();
    require_ordered(ranks, 2);
  }
  REQUIRE(ranks.leaks() == 0);
}

TEST_CASE("memory that is refused is NCCL's error for memory") {
  TransferRanks ranks(2);
  const auto messages = make(ranks, ring(2, {{0, 0, 700000, Data::normal, 1}}), 1);
  for (const auto& state : ranks.states) {
    state->device.memory_limit = mebibyte;
  }
  messages->run();
  for (const auto& state : ranks.states) {
    REQUIRE(state->result == ncclUnhandledCudaError);
    REQUIRE(state->status == Status::out_of_memory);
  }
  REQUIRE(ranks.leaks() == 0);
}

TEST_CASE("an abort releases a receive that waits for its record, and later groups return it") {
  TransferRanks ranks(2);
  ranks.transports[0]->mute = true;
  const auto messages = make(ranks, {{0, 1, 50000, Data::random}}, 1);
  std::thread aborter([&] {
    while (ranks.transports[1]->wakes == 0) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.states[1]->communicator.aborted = true;
    ranks.port(1).release();
  });
  messages->run();
  aborter.join();
  REQUIRE(ranks.states[1]->result == ncclSuccess);  // the abort is the caller's to report
  messages->enqueue(*ranks.states[1]);
  REQUIRE(ranks.states[1]->status == Status::aborted);
}

TEST_CASE("a lost sender is an error only of what waits for its records") {
  TransferRanks ranks(3);
  ranks.transports[1]->lost = true;
  const auto calm = make(ranks, all_pairs(3, 0, 1, 5000), 1);
  auto shapes = all_pairs(3, 0, 1, 5000);
  for (TransferShape& shape : shapes) {
    shape.kind = Data::zeros;
  }
  const auto zeros = make(ranks, shapes, 2);
  zeros->run();
  zeros->require_right();
  ranks.transports[0]->mute = true;
  const auto wild = make(ranks, {{0, 1, 50000, Data::random}, {2, 0, 3000, Data::normal}}, 3);
  wild->run();
  REQUIRE(ranks.port(0).status() == Status::ok);
  REQUIRE(ranks.port(1).status() == Status::connection_lost);
  wild->enqueue(*ranks.states[1]);
  REQUIRE(ranks.states[1]->result == ncclRemoteError);
  REQUIRE(ranks.states[1]->status == Status::connection_lost);
}

TEST_CASE("a message that arrives corrupt is found, and the next group returns it") {
  TransferRanks ranks(2);
  ranks.world.fault_rank = 1;
  ranks.world.fault_call = 2;  // rank 1's receive
  ranks.world.fault_byte = 8;  // of the header: the count
  const auto messages = make(ranks, {{1, 0, 4000, Data::normal}, {0, 1, 4000, Data::normal}}, 1);
  messages->run();
  REQUIRE(ranks.port(0).status() == Status::ok);
  REQUIRE(ranks.port(1).status() == Status::bad_count);
  messages->enqueue(*ranks.states[1]);
  REQUIRE(ranks.states[1]->result == ncclInternalError);
  REQUIRE(ranks.states[1]->status == Status::bad_count);
}

TEST_CASE("a route depends on what both ends share, and on the call") {
  TransferRanks ranks(3);
  Communicator& communicator = ranks.states[1]->communicator;
  communicator.link_min_bytes = {2048, never, never};
  REQUIRE(route_transfer(communicator, 0, 1024, ncclBfloat16) == Route::compressed);
  REQUIRE(route_transfer(communicator, 0, 1023, ncclBfloat16) == Route::small);
  REQUIRE(route_transfer(communicator, 0, 0, ncclBfloat16) == Route::small);
  // Whatever the values, the overflow of what is compressed is a record that the transport takes.
  constexpr std::uint64_t most = (std::uint64_t{1} << 32) - codec::tile_values;
  static_assert(codec::Layout::of(most, 0).max_overflow_bytes() <= RecordTransport::most_bytes);
  REQUIRE(route_transfer(communicator, 0, most, ncclBfloat16) == Route::compressed);
  for (const std::uint64_t count : {most + 1, most * 2, codec::max_count, codec::max_count + 1}) {
    REQUIRE(route_transfer(communicator, 0, count, ncclBfloat16) == Route::large);
    REQUIRE(route_all_to_all(communicator, count, ncclBfloat16) == Route::large);
  }
  REQUIRE(route_transfer(communicator, 0, 1024, ncclFloat16) == Route::dtype);
  REQUIRE(route_transfer(communicator, 2, 1024, ncclBfloat16) == Route::link);
  for (const int peer : {1, -1, 3}) {
    REQUIRE(route_transfer(communicator, peer, 1024, ncclBfloat16) == Route::single_rank);
  }
  communicator.agreement.min_bytes = 1 << 20;
  REQUIRE(route_all_to_all(communicator, (1 << 20) / 6 + 1, ncclBfloat16) == Route::compressed);
  REQUIRE(route_all_to_all(communicator, (1 << 20) / 6, ncclBfloat16) == Route::small);
  communicator.agreement.min_bytes = 65536;  // so many ranks that a part is below it
  REQUIRE(route_all_to_all(communicator, 32767, ncclBfloat16) == Route::small);
  REQUIRE(route_all_to_all(communicator, 32768, ncclBfloat16) == Route::compressed);
  communicator.agreement.point_to_point = communicator.agreement.all_to_all = false;
  REQUIRE(route_transfer(communicator, 0, 1024, ncclBfloat16) == Route::disabled);
  REQUIRE(route_all_to_all(communicator, 32768, ncclBfloat16) == Route::disabled);
}
