// Exchange mode static on a loopback NCCL: calls that overflow and calls that do not, a CPU thread that ships records,
// lost peers, aborts, faults that kernels find.
#include <pthread.h>

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "codec/host_exchange.hpp"
#include "collectives/all_gather.hpp"
#include "test/support/data.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/failing_memory.hpp"
#include "test/unit/static_ranks.hpp"

using namespace zipccl;
using namespace zipccl::collectives;
using test::Data;
using test::LoopbackDevice;
using test::LoopbackRecords;
using test::LoopbackTransport;
using test::StaticRanks;

namespace {

constexpr std::uint64_t staging_bytes = test::gather_staging_bytes;

// A port by itself, which a test polls.
struct LonePort {
  LonePort(std::uint32_t own, std::uint32_t ranks) : transport(records, own, ranks) {
    REQUIRE(OverflowPort::create(device, &port) == Status::ok);
    port->open(own, &transport);
    transport.port = port.get();
  }
  LonePort(const LonePort&) = delete;
  LonePort& operator=(const LonePort&) = delete;

  LoopbackDevice device;
  LoopbackRecords records;
  LoopbackTransport transport;
  std::unique_ptr<OverflowPort> port;
};

// Tiles of random bits and room for their message without a pool, nearly all of which goes into a record.
struct RandomTiles {
  explicit RandomTiles(std::uint64_t tiles)
      : values(test::make_data(Data::random, tiles * codec::tile_values, 1)),
        message(codec::Layout::of(values.size(), 0).static_bytes + 128) {}

  codec::EncodeJob job() {
    codec::EncodeJob made;
    made.values = values.data();
    made.count = values.size();
    made.message = message.data() + (128 - reinterpret_cast<std::uintptr_t>(message.data()) % 128) % 128;
    return made;
  }

  std::vector<std::uint16_t> values;
  std::vector<std::byte> message;
};
constexpr std::uint64_t tiles_of_one_piece = 20;
constexpr std::uint64_t tiles_of_several_pieces = 1500;

}  // namespace

TEST_CASE("static all-gather is exact for every rank count, size, pool and kind of data") {
  for (const int count : {2, 3, 5}) {
    for (const std::uint32_t pool : {0u, 16u, 640u}) {
      StaticRanks ranks(count, pool);
      for (const std::uint64_t values : {1, 1025, 50000, 300001}) {
        for (int kind = 0; kind < test::data_kinds; ++kind) {
          CAPTURE(count, pool, values, kind);
          ranks.gather(values, static_cast<Data>(kind), values);
          ranks.require_equal();
        }
      }
      REQUIRE(ranks.records.size() == 0);  // every record was taken
    }
  }
}

TEST_CASE("nothing leaves by the channel unless a pool is too small") {
  StaticRanks ranks(2, 16);
  ranks.gather(100000, Data::normal, 1);
  ranks.require_equal();
  for (std::size_t rank = 0; rank < ranks.states.size(); ++rank) {
    REQUIRE(ranks.port(rank).sent_bytes() == 0);
    REQUIRE(ranks.port(rank).counters().overflow_messages == 0);
    REQUIRE(ranks.port(rank).counters().values == 200000);
    REQUIRE(ranks.port(rank).counters().escapes > 2000);
    REQUIRE(ranks.port(rank).flushed());
    REQUIRE(ranks.transports[rank]->wakes == 1);  // by the call; nobody else had to
  }
  ranks.gather(100000, Data::random, 2);
  ranks.require_equal();
  for (std::size_t rank = 0; rank < ranks.states.size(); ++rank) {
    REQUIRE(ranks.port(rank).sent_bytes() > 90000);
    REQUIRE(ranks.port(rank).counters().overflow_messages == 2);
    REQUIRE(ranks.port(rank).flushed());
  }
}

TEST_CASE("a port is not flushed before what its kernels have posted has left, also after a release") {
  const bool released = GENERATE(false, true);
  StaticRanks ranks(2, 0);
  OverflowPort& port = ranks.port(0);
  ranks.pause(0);
  std::thread gatherer([&] { ranks.gather(50000, Data::random, 1, 0); });
  while (port.counters().finished == 0) {
    std::this_thread::yield();
  }
  CHECK_FALSE(port.flushed());
  if (released) {
    port.release();
  }
  ranks.paused = -1;
  gatherer.join();
  ranks.require_equal();
  CHECK(port.flushed());
  CHECK_FALSE(ranks.transports[0]->flushed_too_early);
}

TEST_CASE("what an encode posts after a release leaves as soon as somebody asks for it") {
  LonePort lone(0, 2);
  RandomTiles tiles(tiles_of_one_piece);
  codec::EncodeJob job = tiles.job();
  lone.port->attach(0, &job);
  lone.port->release();
  REQUIRE_FALSE(lone.port->poll());  // the helper thread sleeps
  const std::uint32_t not_released = 0;
  job.release = &not_released;  // as an encode sees it that looked just before
  REQUIRE(lone.device.encode(job, nullptr) == Status::ok);
  const int wakes = lone.transport.wakes;
  REQUIRE_FALSE(lone.port->flushed());
  REQUIRE(lone.transport.wakes == wakes + 1);
  REQUIRE_FALSE(lone.port->poll());
  REQUIRE(lone.port->flushed());
  REQUIRE(lone.records.size() == 1);
}

TEST_CASE("a lost peer is an error only while its record is awaited") {
  StaticRanks ranks(2, 0);
  ranks.transports[1]->lost = true;
  ranks.gather(50000, Data::zeros, 1);  // nothing is awaited
  ranks.require_equal();
  ranks.transports[0]->mute = true;
  ranks.gather(50000, Data::random, 2);
  REQUIRE(ranks.port(0).status() == Status::ok);
  REQUIRE(ranks.port(1).status() == Status::connection_lost);
  const AllGatherCall call = {&ranks.states[1]->communicator, ranks.states[1]->output.data(),
                              ranks.states[1]->output.data(), 1000, nullptr};
  Status status = Status::ok;
  REQUIRE(all_gather({&call, 1}, &status) == ncclRemoteError);
  REQUIRE(status == Status::connection_lost);
}

TEST_CASE("a record that cannot be sent is the sender's fault too, and stays") {
  StaticRanks ranks(2, 0);
  ranks.transports[0]->broken = true;
  ranks.transports[1]->lost = true;
  ranks.gather(50000, Data::random, 1);
  REQUIRE(ranks.port(0).status() == Status::out_of_memory);
  REQUIRE(ranks.port(1).status() == Status::connection_lost);
}

TEST_CASE("an abort releases a decode that waits") {
  StaticRanks ranks(2, 0);
  ranks.transports[0]->mute = true;
  std::thread aborter([&] {
    while (ranks.transports[1]->wakes == 0) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.port(1).release();
  });
  ranks.gather(50000, Data::random, 1);
  aborter.join();
  REQUIRE(ranks.states[1]->result == ncclSuccess);  // NCCL's convention: the abort is the caller's to report
}

TEST_CASE("what kernels find wrong is kept, and the next call returns it") {
  StaticRanks ranks(2, 16);
  ranks.world.fault_rank = 1;
  ranks.world.fault_call = 1;
  ranks.world.fault_byte = 8;  // of the header: the count
  ranks.gather(5000, Data::normal, 1);
  REQUIRE(ranks.port(1).status() == Status::bad_count);
  const AllGatherCall call = {&ranks.states[1]->communicator, ranks.states[1]->output.data(),
                              ranks.states[1]->output.data(), 1000, nullptr};
  Status status = Status::ok;
  REQUIRE(all_gather({&call, 1}, &status) == ncclInternalError);
  REQUIRE(status == Status::bad_count);
}

TEST_CASE("the pieces of a record leave together, and a record that a release cuts short does not") {
  const bool released = GENERATE(false, true);
  LonePort lone(0, 3);
  RandomTiles tiles(tiles_of_several_pieces);
  codec::EncodeJob job = tiles.job();
  job.sequence = 5;
  lone.port->attach(0, &job);
  REQUIRE(lone.port->poll());  // what has been enqueued has not begun
  std::thread encoder([&] { static_cast<void>(lone.device.encode(job, nullptr)); });
  while (codec::load_acquire(job.outbox->posted) == 0) {
    std::this_thread::yield();
  }
  REQUIRE_FALSE(lone.port->flushed());
  if (released) {
    lone.port->release();
    encoder.join();
  }
  do {
    static_cast<void>(lone.port->poll());
  } while (!lone.port->flushed());
  if (!released) {
    encoder.join();
  }
  REQUIRE(lone.records.size() == (released ? 0 : 2));
  if (!released) {
    const auto record = lone.records.get({1, 0, 5, 0});
    REQUIRE(record->size() > OverflowPort::outbox_bytes);
    REQUIRE(lone.port->sent_bytes() == record->size());
    REQUIRE(record == lone.records.get({2, 0, 5, 0}));
  }
  REQUIRE(lone.port->status() == Status::ok);
  REQUIRE_FALSE(lone.transport.flushed_too_early);
}

TEST_CASE("a record whose helper thread lacks memory for an instant leaves later, and whole") {
  const bool broadcast = GENERATE(false, true);
  RandomTiles tiles(tiles_of_several_pieces);
  RecordTransport::Record expected;
  bool failed = true;
  for (int step = -1; failed; ++step) {
    CAPTURE(broadcast, step);
    LonePort lone(1, 2);
    codec::EncodeJob job = tiles.job();
    job.broadcast = broadcast;
    lone.port->attach(0, &job);
    if (step >= 0) {
      test::FailingMemory::fail_at(step, false, "helper");
    }
    std::thread encoder([&] { static_cast<void>(lone.device.encode(job, nullptr)); });
    std::atomic<bool> left = false;
    std::thread helper([&] {
      pthread_setname_np(pthread_self(), "helper");
      while (!left) {
        try {
          static_cast<void>(lone.port->poll());
        } catch (const std::bad_alloc&) {
        }
      }
    });
    encoder.join();
    while (!lone.port->flushed()) {
      std::this_thread::yield();
    }
    failed = test::FailingMemory::heal();
    left = true;
    helper.join();
    const auto record = lone.records.get({0, 1, 0, 0});
    REQUIRE(lone.port->status() == Status::ok);
    REQUIRE(record != nullptr);
    REQUIRE(record->size() > OverflowPort::outbox_bytes);
    REQUIRE(lone.port->sent_bytes() == record->size());
    REQUIRE(lone.port->sent_to(0).records == (broadcast ? 0 : 1));
    REQUIRE(lone.port->sent_to(0).bytes == (broadcast ? 0 : record->size()));
    if (step < 0) {
      expected = record;
      failed = true;
    }
    REQUIRE(*record == *expected);
    REQUIRE((failed || step > 2));
  }
}

TEST_CASE("a port is busy while anything runs, and for good once captured") {
  LonePort lone(0, 2);
  REQUIRE_FALSE(lone.port->poll());
  codec::EncodeJob encode;
  encode.message_count = 0;
  lone.port->attach(1, &encode);
  REQUIRE(lone.port->poll());
  codec::DecodeJob nothing;
  const codec::ReceiveJob receive = lone.port->receive_job(1, nothing);
  REQUIRE(lone.device.encode(encode, nullptr) == Status::ok);
  REQUIRE(lone.port->poll());
  REQUIRE(lone.device.receive(receive, nullptr) == Status::ok);
  REQUIRE_FALSE(lone.port->poll());
  // Of a graph's replay the host knows nothing.
  const int wakes = lone.transport.wakes;
  lone.port->set_captured();
  REQUIRE(lone.transport.wakes == wakes + 1);
  REQUIRE(lone.port->poll());
  lone.port->release();
  REQUIRE_FALSE(lone.port->poll());
}

TEST_CASE("mapped memory that is refused refuses the port") {
  LoopbackDevice device;
  std::unique_ptr<OverflowPort> port;
  constexpr std::uint64_t data = OverflowPort::outbox_bytes + OverflowPort::mailbox_bytes;
  device.memory_limit = data + 4096;
  REQUIRE(OverflowPort::create(device, &port) == Status::ok);
  REQUIRE(port->mapped_bytes() <= data + 4096);
  port.reset();
  device.memory_limit = data;
  REQUIRE(OverflowPort::create(device, &port) == Status::out_of_memory);
  REQUIRE(device.allocations == 0);
}
