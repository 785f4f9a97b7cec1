// Calls in mode static that are captured into graphs, on a device that refuses what CUDA refuses: replayed with fresh
// data, between eager calls, from several streams; chains that every launch takes its place in.
#include <algorithm>
#include <vector>

#include "collectives/all_gather.hpp"
#include "test/support/data.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/static_ranks.hpp"

using namespace zipccl;
using namespace zipccl::collectives;
using test::Data;
using test::GatherRank;
using test::LoopbackDevice;
using test::StaticRanks;
using test::stream_of;

namespace {

constexpr std::uint64_t staging_bytes = 6 * Staging::smallest_chunk_bytes;  // the least for three ranks

// One all-gather whose buffers stay, on every rank.
class Buffers {
 public:
  Buffers(StaticRanks& ranks, std::uint64_t count, bool in_place)
      : ranks_(ranks), count_(count), in_place_(in_place), sent_(ranks.states.size()), received_(ranks.states.size()) {
    for (std::size_t rank = 0; rank < sent_.size(); ++rank) {
      sent_[rank].resize(count);
      received_[rank].resize(count * sent_.size());
    }
  }

  void refill(Data kind, std::uint64_t seed) {
    expected_.clear();
    for (std::size_t rank = 0; rank < sent_.size(); ++rank) {
      std::ranges::copy(test::make_data(kind, count_, seed * 100 + rank), sent_[rank].data());  // graphs know its place
      expected_.insert(expected_.end(), sent_[rank].begin(), sent_[rank].end());
      std::ranges::fill(received_[rank], 0xDEAD);
      if (in_place_) {
        std::ranges::copy(sent_[rank], received_[rank].data() + rank * count_);
      }
    }
  }
  AllGatherCall call(GatherRank& state, cudaStream_t stream) {
    const auto rank = static_cast<std::size_t>(state.rank.rank);
    std::uint16_t* output = received_[rank].data();
    AllGatherCall made = {&state.communicator, in_place_ ? output + rank * count_ : sent_[rank].data(), output, count_,
                          stream};
    REQUIRE(state.device.capture(stream, &made.capture) == Status::ok);
    return made;
  }
  void require_equal() const {
    for (const auto& received : received_) {
      REQUIRE((received == expected_));
    }
  }

 private:
  StaticRanks& ranks_;
  std::uint64_t count_;
  bool in_place_;
  std::vector<std::vector<std::uint16_t>> sent_;
  std::vector<std::vector<std::uint16_t>> received_;
  std::vector<std::uint16_t> expected_;
};

using Graphs = std::vector<LoopbackDevice::Graph>;  // by rank

template <typename Body>
Graphs capture(StaticRanks& ranks, cudaStream_t stream, Body body) {
  Graphs graphs;
  for (const auto& state : ranks.states) {
    state->device.begin_capture(stream);
    body(*state);
    graphs.push_back(state->device.end_capture(stream));
  }
  return graphs;
}

// A call of its own on the state's rank.
void gather(GatherRank& state, const std::vector<AllGatherCall>& calls) {
  REQUIRE(all_gather(calls, &state.status) == ncclSuccess);
}

void launch(StaticRanks& ranks, const Graphs& graphs, cudaStream_t stream) {
  ranks.run([&](GatherRank& state) {
    state.status = state.device.launch(graphs[static_cast<std::size_t>(state.rank.rank)], stream);
  });
  for (const auto& state : ranks.states) {
    REQUIRE(state->status == Status::ok);
  }
}

Data kind_of(std::uint64_t round) { return static_cast<Data>(round % test::data_kinds); }  // each fifth overflows

}  // namespace

TEST_CASE("a captured call is replayed with fresh data, between eager calls") {
  for (const int count : {2, 3}) {
    StaticRanks ranks(count, 16, staging_bytes);
    const std::uint64_t chunk = Staging::chunk_values(staging_bytes, count, true, 16);
    const bool used_before = GENERATE(false, true);
    if (used_before) {
      ranks.gather_group({{1000, true, stream_of(9)}}, Data::random, 1);
    }
    Buffers one(ranks, chunk / 2, true);
    Buffers several(ranks, 3 * chunk + 1, false);
    const Graphs first =
        capture(ranks, stream_of(1), [&](GatherRank& state) { gather(state, {one.call(state, stream_of(1))}); });
    const Graphs second = capture(ranks, stream_of(1), [&](GatherRank& state) {
      gather(state, {several.call(state, stream_of(1))});
      gather(state, {one.call(state, stream_of(1))});
    });
    REQUIRE(ranks.world.gathers == (used_before ? 1 : 0));
    for (const LoopbackDevice::Node& node : second[0]) {
      REQUIRE(node.stream == stream_of(1));
    }
    for (std::uint64_t round = 0; round < 20; ++round) {
      CAPTURE(count, used_before, round);
      const cudaStream_t stream = stream_of(1 + round % 3);
      one.refill(kind_of(round), round);
      launch(ranks, first, stream);
      one.require_equal();
      ranks.require_ordered(stream);
      if (round % 2 == 0) {
        ranks.gather_group({{2 * chunk, round % 4 == 0, stream_of(5)}}, kind_of(round + 1), round);
        ranks.require_equal();
        ranks.require_ordered(stream_of(5));
      }
      one.refill(kind_of(round + 2), round);
      several.refill(kind_of(round + 3), round);
      launch(ranks, second, stream_of(2));
      one.require_equal();
      several.require_equal();
      ranks.require_ordered(stream_of(2));
    }
    REQUIRE(ranks.records.size() == 0);
  }
}

TEST_CASE("calls of one capture on streams of their own follow each other") {
  StaticRanks ranks(2, 16, staging_bytes);
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, true, 16);
  Buffers one(ranks, chunk, true);
  Buffers other(ranks, 2 * chunk, false);
  const Graphs graphs = capture(ranks, stream_of(1), [&](GatherRank& state) {
    codec::Event fork = nullptr;
    REQUIRE(state.device.create_event(&fork) == Status::ok);
    REQUIRE(state.device.record(fork, stream_of(1)) == Status::ok);
    REQUIRE(state.device.wait(fork, stream_of(2)) == Status::ok);
    gather(state, {one.call(state, stream_of(2))});
    gather(state, {other.call(state, stream_of(1))});
    REQUIRE(state.device.record(fork, stream_of(2)) == Status::ok);
    REQUIRE(state.device.wait(fork, stream_of(1)) == Status::ok);
    state.device.destroy_event(fork);
  });
  for (std::uint64_t round = 0; round < 6; ++round) {
    one.refill(kind_of(round), round);
    other.refill(kind_of(round + 1), round);
    launch(ranks, graphs, stream_of(3));
    one.require_equal();
    other.require_equal();
    ranks.require_ordered(stream_of(3));
  }
}

TEST_CASE("two captures of one communicator at once, each on two streams") {
  StaticRanks ranks(2, 16, staging_bytes);
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, true, 16);
  std::vector<Graphs> graphs(2);
  std::vector<std::vector<Buffers>> buffers(2);
  for (std::vector<Buffers>& own : buffers) {
    own.emplace_back(ranks, chunk, true);
    own.emplace_back(ranks, chunk - 1000, false);
  }
  for (const auto& state : ranks.states) {
    LoopbackDevice& device = state->device;
    const auto first_stream = [](std::uint64_t graph) { return stream_of(1 + 2 * graph); };
    const auto second_stream = [](std::uint64_t graph) { return stream_of(2 + 2 * graph); };
    codec::Event fork[2] = {};
    for (const std::uint64_t graph : {0, 1}) {
      REQUIRE(device.create_event(&fork[graph]) == Status::ok);
      device.begin_capture(first_stream(graph));
      REQUIRE(device.record(fork[graph], first_stream(graph)) == Status::ok);
      REQUIRE(device.wait(fork[graph], second_stream(graph)) == Status::ok);
    }
    for (const std::uint64_t graph : {0, 1}) {
      gather(*state, {buffers[graph][0].call(*state, first_stream(graph))});
    }
    for (const std::uint64_t graph : {0, 1}) {
      gather(*state, {buffers[graph][1].call(*state, second_stream(graph))});
    }
    for (const std::uint64_t graph : {0, 1}) {
      REQUIRE(device.record(fork[graph], second_stream(graph)) == Status::ok);
      REQUIRE(device.wait(fork[graph], first_stream(graph)) == Status::ok);
      device.destroy_event(fork[graph]);
      graphs[graph].push_back(device.end_capture(first_stream(graph)));
    }
  }
  for (std::uint64_t round = 0; round < 6; ++round) {
    for (std::size_t graph = 0; graph < 2; ++graph) {
      for (Buffers& own : buffers[graph]) {
        own.refill(kind_of(round), round);
      }
      launch(ranks, graphs[graph], stream_of(7));
      for (const Buffers& own : buffers[graph]) {
        own.require_equal();
      }
      ranks.require_ordered(stream_of(7));
    }
  }
}

TEST_CASE("a captured group of calls is one call with chunks numbered through") {
  StaticRanks ranks(2, 0, staging_bytes);
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, true, 0);
  Buffers one(ranks, 1000, true);
  Buffers other(ranks, 2 * chunk, false);
  const Graphs graphs = capture(ranks, stream_of(1), [&](GatherRank& state) {
    gather(state, {one.call(state, stream_of(1)), other.call(state, stream_of(1))});
  });
  for (std::uint64_t round = 0; round < 6; ++round) {
    one.refill(Data::random, round);
    other.refill(Data::random, round);
    launch(ranks, graphs, stream_of(1));
    one.require_equal();
    other.require_equal();
    ranks.require_ordered(stream_of(1));
    REQUIRE(*ranks.port(0).sequence_counter() == round + 1);  // a number of its own for every replay
  }
  REQUIRE(ranks.records.size() == 0);
}

TEST_CASE("a capture disturbs neither staging's state nor the port's") {
  StaticRanks ranks(2, 16, staging_bytes);
  Buffers one(ranks, 1000, true);
  const auto busy = [&] {
    return std::ranges::all_of(std::vector<std::size_t>{0, 1},
                               [&](std::size_t rank) { return ranks.port(rank).poll(); });
  };
  ranks.gather_group({{1000, true, stream_of(1)}}, Data::normal, 1);
  static_cast<void>(
      capture(ranks, stream_of(1), [&](GatherRank& state) { gather(state, {one.call(state, stream_of(1))}); }));
  for (const auto& state : ranks.states) {
    bool idle = false;
    REQUIRE(state->communicator.chain->idle(&idle) == Status::ok);
    REQUIRE(idle);
  }
  ranks.stop = true;
  ranks.helper.join();
  REQUIRE(busy());
  ranks.helper = std::thread([] {});
}

TEST_CASE("a communicator's own stream takes part in one capture at a time, and another serves the rest") {
  StaticRanks ranks(2, 0, staging_bytes);
  LoopbackDevice& device = ranks.states[0]->device;
  CallChain& chain = *ranks.states[0]->communicator.chain;
  OwnStreams streams(device);
  const auto find = [&](codec::Stream caller) {
    codec::Stream own = nullptr;
    REQUIRE(streams.find(caller, &own) == Status::ok);
    return own;
  };
  const codec::Stream own = find(stream_of(1));
  REQUIRE(own != stream_of(1));
  REQUIRE(find(stream_of(2)) == own);
  device.begin_capture(stream_of(1));
  REQUIRE(find(stream_of(1)) == own);
  REQUIRE(chain.order(stream_of(1), own) == Status::ok);
  REQUIRE(find(stream_of(1)) == own);
  REQUIRE(find(stream_of(2)) != own);  // whose calls are not the graph's
  REQUIRE(chain.order(own, stream_of(1)) == Status::ok);
  static_cast<void>(device.end_capture(stream_of(1)));
  REQUIRE(find(stream_of(2)) == own);
}
