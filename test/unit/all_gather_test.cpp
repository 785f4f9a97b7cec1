// The compressed all-gather on a loopback NCCL: chunks, overflow, faults from NCCL, from the device and on the wire.
#include "collectives/all_gather.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "collectives/gather_chunks.hpp"
#include "collectives/sizes_first_exchange.hpp"
#include "test/support/data.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/gather_ranks.hpp"

using namespace zipccl;
using namespace zipccl::collectives;
using test::Data;
using test::LoopbackDevice;
using test::LoopbackRank;
using test::LoopbackWorld;

namespace {

constexpr std::uint64_t staging_bytes = test::gather_staging_bytes;

using RankState = test::GatherRank;

class Ranks : public test::GatherRanks {
 public:
  explicit Ranks(int count, std::uint32_t pool_fraction = 16, Exchange exchange = Exchange::exact)
      : GatherRanks(count, exchange, pool_fraction) {}

  // All ranks gather `count` values of `kind` each, in place.
  void gather(std::uint64_t count, Data kind, std::uint64_t seed = 1) {
    std::vector<std::vector<std::uint16_t>> shards;
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      shards.push_back(test::make_data(kind, count, seed * 100 + rank));
    }
    gather_shards(shards);
  }
};

}  // namespace

TEST_CASE("all-gather is exact for every rank count, size and kind of data") {
  const Exchange exchange = GENERATE(Exchange::exact, Exchange::sizes_first);
  const std::uint32_t pool = GENERATE(0u, 16u);
  for (const int count : {2, 3, 5, 8}) {
    Ranks ranks(count, pool, exchange);
    for (const std::uint64_t values : {1, 1023, 1024, 1025, 50000, pool == 0 ? 90001 : 300001}) {
      for (int kind = 0; kind < test::data_kinds; ++kind) {
        CAPTURE(count, values, kind);
        ranks.gather(values, static_cast<Data>(kind), values);
        ranks.require_equal();
        ranks.gather_group({{values, false, nullptr}, {values / 2 + 1, true, nullptr}}, static_cast<Data>(kind), 3);
        ranks.require_equal();
      }
    }
  }
}

TEST_CASE("overflow travels only when a pool is too small") {
  Ranks ranks(2, 0);
  ranks.gather(100000, Data::zeros);
  ranks.require_equal();
  REQUIRE(ranks.world.broadcasts == 0);
  ranks.gather(100000, Data::random);
  ranks.require_equal();
  REQUIRE(ranks.world.broadcasts == 2);
  const Bucket& bucket = ranks.states[0]->statistics.bucket(Collective::all_gather, 400000);
  REQUIRE(bucket.calls[0] == 2);
  REQUIRE(bucket.overflow_chunks == 1);
  REQUIRE(bucket.overflow_bytes > 90000);
  REQUIRE(bucket.raw_bytes == 400000);
  REQUIRE(bucket.wire_bytes > bucket.overflow_bytes);
}

TEST_CASE("large calls go in chunks of nearly equal size") {
  Ranks ranks(2);
  const std::uint64_t chunk = Staging::chunk_values(staging_bytes, 2, false, 16);
  REQUIRE(chunk > 0);
  REQUIRE(chunk % codec::tile_values == 0);
  ranks.gather(3 * chunk + 1, Data::mixture);
  ranks.require_equal();
  REQUIRE(ranks.world.gathers == 4);
}

TEST_CASE("sizes first: two exchanges a chunk, the second as large as the largest message") {
  Ranks ranks(2, 0, Exchange::sizes_first);
  const std::uint64_t slot = Staging::slot_bytes(staging_bytes, 2, false);
  const std::uint64_t chunk = SizesFirstLane::chunk_values(slot, 0);
  const codec::Layout layout = codec::Layout::of(chunk, 0);
  REQUIRE(layout.static_bytes + layout.max_overflow_bytes() <= slot);
  REQUIRE(layout.static_bytes + layout.max_overflow_bytes() > slot - 4096);
  ranks.gather(2 * chunk, Data::zeros);
  ranks.require_equal();
  REQUIRE(ranks.world.gathers == 4);
  const Bucket& bucket = ranks.states[0]->statistics.bucket(Collective::all_gather, 2 * 2 * chunk * value_bytes);
  REQUIRE(bucket.wire_bytes == 2 * (sizeof(codec::MessageHeader) + layout.static_bytes));
  REQUIRE(bucket.overflow_bytes == 0);
  // Rank 1 alone needs more, and both send as much.
  ranks.gather_shards({test::make_data(Data::zeros, chunk, 1), test::make_data(Data::random, chunk, 2)});
  ranks.require_equal();
  REQUIRE(ranks.world.gathers == 6);
  const Bucket& second = ranks.states[0]->statistics.bucket(Collective::all_gather, 2 * chunk * value_bytes);
  REQUIRE(second.overflow_bytes > chunk / 2);
  REQUIRE(second.wire_bytes == sizeof(codec::MessageHeader) + layout.static_bytes + second.overflow_bytes);
  REQUIRE(second.overflow_chunks == 1);
}

TEST_CASE("sizes first: what a decode finds wrong is the next call's error") {
  Ranks ranks(2, 16, Exchange::sizes_first);
  ranks.world.fault_rank = 1;
  ranks.world.fault_call = 2;  // the messages
  ranks.world.fault_byte = 0;
  ranks.gather(5000, Data::normal);
  REQUIRE(ranks.states[1]->result == ncclSuccess);
  RankState& state = *ranks.states[1];
  std::thread other([&] {  // it must not wait for a rank that fails before its second exchange
    const AllGatherCall call = {&ranks.states[0]->communicator, ranks.states[0]->output.data(),
                                ranks.states[0]->output.data(), 1000, nullptr};
    Status status = Status::ok;
    static_cast<void>(all_gather({&call, 1}, &status));
  });
  const AllGatherCall call = {&state.communicator, state.output.data(), state.output.data(), 1000, nullptr};
  const ncclResult_t result = all_gather({&call, 1}, &state.status);
  ranks.world.barrier.arrive_and_drop();
  other.join();
  REQUIRE(result == ncclInternalError);
  REQUIRE(state.status == Status::bad_magic);
}

TEST_CASE("sizes first: a size that no message can have is refused before anything is received") {
  Ranks ranks(2, 16, Exchange::sizes_first);
  ranks.world.fault_rank = LoopbackWorld::every_rank;
  ranks.world.fault_call = 1;
  ranks.world.fault_byte = offsetof(codec::MessageHeader, entry_units) + 5;
  ranks.world.fault_sender = LoopbackWorld::every_rank;
  ranks.gather(5000, Data::normal);
  for (const auto& state : ranks.states) {
    REQUIRE(state->result == ncclInternalError);
    REQUIRE(state->status == Status::bad_totals);
  }
  REQUIRE(ranks.world.gathers == 1);
}

TEST_CASE("an error from NCCL is returned as it is and stays") {
  Ranks ranks(2);
  ranks.world.fault_rank = 1;
  ranks.world.fault_call = 1;
  ranks.world.fault_result = ncclSystemError;
  // Rank 0 must not wait for a rank that never comes: only rank 1 calls.
  RankState& state = *ranks.states[1];
  state.output.assign(2000, 0);
  const AllGatherCall call = {&state.communicator, state.output.data() + 1000, state.output.data(), 1000, nullptr};
  REQUIRE(all_gather({&call, 1}, &state.status) == ncclSystemError);
  REQUIRE(state.status == Status::nccl_error);
  REQUIRE(state.communicator.failure == ncclSystemError);
  REQUIRE(all_gather({&call, 1}, &state.status) == ncclSystemError);
}

TEST_CASE("a corrupt byte of a header is found, never followed") {
  // magic, version, dtype, count, sequence, chunk, pool
  for (const std::size_t byte : {0, 4, 6, 8, 16, 24, 28}) {
    Ranks ranks(2);
    ranks.world.fault_rank = 1;
    ranks.world.fault_call = 1;
    ranks.world.fault_byte = byte;
    ranks.gather(5000, Data::normal);
    CAPTURE(byte);
    REQUIRE(ranks.states[0]->result == ncclSuccess);
    REQUIRE(ranks.states[1]->result == ncclInternalError);
    REQUIRE(ranks.states[1]->status >= Status::bad_magic);
    REQUIRE(ranks.states[1]->status <= Status::bad_tile);
    REQUIRE(ranks.states[1]->communicator.failure == ncclInternalError);
  }
}

// Every tile has 84 escapes one below its window. 32 of their nibbles, 0 each, fill the one unit of its entry; a byte
// of these inverted is two far escapes, for which the unit has no room.
TEST_CASE("a corrupt byte of an overflow is the error of its own call") {
  constexpr std::uint64_t count = codec::tile_values;
  constexpr std::size_t first_entry = (codec::raw_entry_units - 1) * codec::unit_bytes;
  for (const std::size_t byte : {first_entry, first_entry + codec::unit_bytes - 1}) {
    Ranks ranks(2, 0);
    ranks.world.fault_rank = 1;
    ranks.world.fault_call = 2;  // rank 0's broadcast
    ranks.world.fault_byte = byte;
    std::vector<std::uint16_t> shard(count, 120 << 7);
    std::fill_n(shard.begin(), 84, 113 << 7);
    ranks.gather_shards({shard, shard});
    CAPTURE(byte);
    REQUIRE(ranks.world.broadcasts == 2);
    REQUIRE(ranks.states[0]->result == ncclSuccess);
    REQUIRE(ranks.states[1]->result == ncclInternalError);
    REQUIRE(ranks.states[1]->status == Status::bad_tile);
    REQUIRE(ranks.states[1]->statistics.bucket(Collective::all_gather, 2 * 2 * count).calls[0] == 0);
  }
}

TEST_CASE("a failing device ends the call with an error") {
  for (int operation = 1; operation <= 4; ++operation) {
    Ranks ranks(2);
    RankState& state = *ranks.states[0];
    state.device.fail_at = operation;
    if (operation > 1) {  // past the encode both ranks have met in NCCL
      ranks.gather(5000, Data::normal);
      REQUIRE(ranks.states[1]->result == ncclSuccess);
    } else {
      state.output.assign(2000, 0);
      const AllGatherCall call = {&state.communicator, state.output.data(), state.output.data(), 1000, nullptr};
      state.result = all_gather({&call, 1}, &state.status);
    }
    CAPTURE(operation);
    REQUIRE(state.result == ncclUnhandledCudaError);
    REQUIRE(state.status == Status::device_error);
  }
}

TEST_CASE("the host's wait ends with an abort or an asynchronous error") {
  Ranks ranks(2);
  RankState& state = *ranks.states[0];
  state.device.never_done = true;
  ncclResult_t expected = ncclInvalidUsage;
  std::thread aborter;
  SECTION("abort") {
    aborter = std::thread([&] {
      while (ranks.world.gathers == 0) {
        std::this_thread::yield();
      }
      state.communicator.aborted = true;
    });
  }
  SECTION("asynchronous error") {
    ranks.world.fault_rank = 0;
    ranks.world.fault_call = -1;
    ranks.world.fault_result = expected = ncclRemoteError;
  }
  ranks.gather(5000, Data::normal);
  if (aborter.joinable()) {
    aborter.join();
  }
  REQUIRE(state.result == expected);
  REQUIRE(ranks.states[1]->result == ncclSuccess);
}

// Its handle may be gone: NCCL must not be called with it, nor asked about it.
TEST_CASE("a call on an aborted communicator touches neither its handle nor its data") {
  Ranks ranks(2);
  RankState& state = *ranks.states[0];
  state.communicator.aborted = true;
  state.communicator.handle = nullptr;
  const std::vector<std::uint16_t> send(1000, 0x3F80);
  const std::vector<std::uint16_t> before(2000, 0xDEAD);
  state.output = before;
  const AllGatherCall call = {&state.communicator, send.data(), state.output.data(), 1000, nullptr};
  REQUIRE(all_gather({&call, 1}, &state.status) == ncclInvalidUsage);
  REQUIRE(state.status == Status::aborted);
  REQUIRE((state.output == before));
}

TEST_CASE("routes depend on what all ranks share") {
  Ranks ranks(2);
  Communicator& communicator = ranks.states[0]->communicator;
  communicator.agreement.min_bytes = 4000;
  REQUIRE(route_all_gather(communicator, 1000, ncclBfloat16) == Route::compressed);
  REQUIRE(route_all_gather(communicator, 999, ncclBfloat16) == Route::small);
  REQUIRE(route_all_gather(communicator, 0, ncclBfloat16) == Route::small);
  REQUIRE(route_all_gather(communicator, 1000, ncclFloat16) == Route::dtype);
  REQUIRE(route_all_gather(communicator, 1000, ncclUint8) == Route::dtype);
  communicator.agreement.all_gather = false;
  REQUIRE(route_all_gather(communicator, 1000, ncclBfloat16) == Route::disabled);
}

TEST_CASE("staging of unlike sizes works alike when limited to the smallest") {
  Ranks ranks(2);
  RankState& larger = *ranks.states[1];
  REQUIRE(Staging::create(larger.device, 3 * staging_bytes, 2, false, &larger.communicator.staging) == Status::ok);
  larger.communicator.staging->limit(staging_bytes, 2);
  REQUIRE(larger.communicator.staging->slot_bytes() == ranks.states[0]->communicator.staging->slot_bytes());
  REQUIRE(larger.communicator.staging->bytes() == 3 * staging_bytes);
  ranks.gather(3 * Staging::chunk_values(staging_bytes, 2, false, 16) + 1, Data::random);
  ranks.require_equal();
}

// A lane of two chunks that has no memory for one of its steps.
struct PoorLane {
  Communicator& own;
  std::string lacking;
  std::vector<std::string>& steps;
  int left = 2;

  Outcome step(const char* name) {
    steps.emplace_back(name);
    if (left == 1 && lacking == name) {
      throw std::bad_alloc();
    }
    return {};
  }
  Communicator& communicator() const { return own; }
  bool has_next() const { return left > 0; }
  Outcome alive() const { return {}; }
  Outcome encode_next() { return step("encode"); }
  Outcome exchange() { return step("exchange"); }
  Outcome decode_next() {
    const Outcome outcome = step("decode");
    --left;
    return outcome;
  }
  void abandon() const { steps.emplace_back("abandon"); }
};

TEST_CASE("a call for which memory runs out is ended as one that fails, and no real group stays open") {
  static int open = 0;
  NcclTable nccl;
  nccl.ncclGroupStart = [] { return ++open, ncclSuccess; };
  nccl.ncclGroupEnd = [] { return --open, ncclSuccess; };
  Communicator communicator;
  communicator.nccl = &nccl;
  for (const std::string lacking : {"encode", "exchange", "decode", "round"}) {
    CAPTURE(lacking);
    std::vector<std::string> steps;
    std::vector<std::unique_ptr<PoorLane>> lanes;
    lanes.emplace_back(new PoorLane{communicator, lacking, steps});
    lanes.emplace_back(new PoorLane{communicator, "", steps});
    const Outcome outcome = run_lanes(std::move(lanes), [&](const auto& all) {
      return lacking == "round" && all.front()->left == 1 ? throw std::bad_alloc() : Outcome{};
    });
    REQUIRE(outcome.status == Status::out_of_memory);
    REQUIRE(outcome.result == ncclUnhandledCudaError);
    REQUIRE(open == 0);
    REQUIRE(std::count(steps.begin(), steps.end(), "abandon") == 2);
    REQUIRE(steps.back() == "abandon");
  }
}

// What a window's memory comes from, and goes back to.
struct WindowMemory {
  static inline int alive = 0;
  static inline bool refuses = false;
  static ncclResult_t allocate(void** pointer, std::size_t bytes) {
    if (refuses) {
      return ncclUnhandledCudaError;
    }
    ++alive;
    *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return ncclSuccess;
  }
  static ncclResult_t release(void* pointer) {
    --alive;
    std::free(pointer);
    return ncclSuccess;
  }
};

TEST_CASE("staging that is to be a window is NCCL's memory, the same part of it on all ranks") {
  NcclTable windows;
  windows.ncclMemAlloc = WindowMemory::allocate;
  windows.ncclMemFree = WindowMemory::release;
  LoopbackDevice device;
  std::unique_ptr<Staging> staging;
  REQUIRE(Staging::create(device, 3 << 20, 2, true, &staging, &windows) == Status::ok);
  REQUIRE(WindowMemory::alive == 1);
  REQUIRE(staging->memory().bytes == 3 << 20);
  staging->limit(2 << 20, 2);
  REQUIRE(staging->memory().bytes == 2 << 20);
  REQUIRE(staging->memory().data == staging->half(0).slots);
  const auto offset = static_cast<std::uint64_t>(staging->half(1).slots - staging->half(0).slots);
  REQUIRE(offset == 2 * staging->slot_bytes());
  REQUIRE(2 * offset <= staging->memory().bytes);
  staging.reset();
  REQUIRE(WindowMemory::alive == 0);
  WindowMemory::refuses = true;
  REQUIRE(Staging::create(device, 3 << 20, 2, true, &staging, &windows) == Status::out_of_memory);
  WindowMemory::refuses = false;
  REQUIRE(device.allocations == 0);
}

TEST_CASE("staging is refused whole") {
  LoopbackDevice device;
  std::unique_ptr<Staging> staging;
  SECTION("too little memory") {
    device.memory_limit = 1 << 20;
    REQUIRE(Staging::create(device, 2 << 20, 2, false, &staging) == Status::out_of_memory);
  }
  SECTION("mapped memory fails after device memory") {
    device.memory_limit = 2 << 20;
    REQUIRE(Staging::create(device, 2 << 20, 1 << 4, false, &staging) != Status::ok);
  }
  SECTION("slots below the smallest chunk") {
    REQUIRE(Staging::slot_bytes(1 << 20, 8, false) == 0);
    REQUIRE(Staging::slot_bytes(1 << 20, 8, true) == 64 << 10);  // one slot fewer
    REQUIRE(Staging::chunk_values(1 << 20, 8, false, 0) == 0);
    // A chunk's overflow is a record that the transport takes, however large the slots are.
    const std::uint64_t chunk = Staging::chunk_values(std::uint64_t{65536} << 20, 2, true, 0);
    REQUIRE(codec::Layout::of(chunk, 0).max_overflow_bytes() <= RecordTransport::most_bytes);
    REQUIRE(chunk > 0);
    REQUIRE(Staging::create(device, 1 << 20, 8, false, &staging) == Status::invalid_argument);
  }
  REQUIRE(staging == nullptr);
  REQUIRE(device.allocations == 0);
}
