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
  LoopbackDevice device;
  LoopbackRecords records;
  LoopbackTransport transport(records, 0, 2);
  std::unique_ptr<OverflowPort> port;
  REQUIRE(OverflowPort::create(device, &port) == Status::ok);
  port->open(0, &transport);
  transport.port = port.get();
  constexpr std::uint64_t count = 20 * codec::tile_values;  // of random bits: a record of one piece
  const auto values = test::make_data(Data::random, count, 1);
  std::vector<std::byte> message(codec::Layout::of(count, 0).static_bytes + 128);
  codec::EncodeJob job;
  job.values = values.data();
  job.count = count;
  job.message = message.data() + (128 - reinterpret_cast<std::uintptr_t>(message.data()) % 128) % 128;
  port->attach(0, &job);
  port->release();
  REQUIRE_FALSE(port->poll());  // the helper thread sleeps
  const std::uint32_t not_released = 0;
  job.release = &not_released;  // as an encode sees it that looked just before
  REQUIRE(device.encode(job, nullptr) == Status::ok);
  const int wakes = transport.wakes;
  REQUIRE_FALSE(port->flushed());
  REQUIRE(transport.wakes == wakes + 1);
  REQUIRE_FALSE(port->poll());
  REQUIRE(port->flushed());
  REQUIRE(records.size() == 1);
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
  LoopbackDevice device;
  LoopbackRecords records;
  LoopbackTransport transport(records, 0, 3);
  std::unique_ptr<OverflowPort> port;
  REQUIRE(OverflowPort::create(device, &port) == Status::ok);
  port->open(0, &transport);
  transport.port = port.get();
  constexpr std::uint64_t count = 1500 * codec::tile_values;  // of random bits: a record of more than one piece
  const auto values = test::make_data(Data::random, count, 1);
  const codec::Layout layout = codec::Layout::of(count, 0);
  std::vector<std::byte> message(layout.static_bytes + 128);
  codec::EncodeJob job;
  job.values = values.data();
  job.count = count;
  job.message = message.data() + (128 - reinterpret_cast<std::uintptr_t>(message.data()) % 128) % 128;
  job.sequence = 5;
  port->attach(0, &job);
  REQUIRE(port->poll());  // what has been enqueued has not begun
  std::thread encoder([&] { static_cast<void>(device.encode(job, nullptr)); });
  while (codec::load_acquire(job.outbox->posted) == 0) {
    std::this_thread::yield();
  }
  REQUIRE_FALSE(port->flushed());
  if (released) {
    port->release();
    encoder.join();
  }
  do {
    static_cast<void>(port->poll());
  } while (!port->flushed());
  if (!released) {
    encoder.join();
  }
  REQUIRE(records.size() == (released ? 0 : 2));
  if (!released) {
    const auto record = records.get({1, 0, 5, 0});
    REQUIRE(record->size() > OverflowPort::outbox_bytes);
    REQUIRE(port->sent_bytes() == record->size());
    REQUIRE(record == records.get({2, 0, 5, 0}));
  }
  REQUIRE(port->status() == Status::ok);
  REQUIRE_FALSE(transport.flushed_too_early);
}

TEST_CASE("a record whose helper thread lacks memory for an instant leaves later, and whole") {
  const bool broadcast = GENERATE(false, true);
  constexpr std::uint64_t count = 1500 * codec::tile_values;  // of random bits: a record of more than one piece
  const auto values = test::make_data(Data::random, count, 1);
  std::vector<std::byte> message(codec::Layout::of(count, 0).static_bytes + 128);
  RecordTransport::Record expected;
  bool failed = true;
  for (int step = -1; failed; ++step) {
    CAPTURE(broadcast, step);
    LoopbackDevice device;
    LoopbackRecords records;
    LoopbackTransport transport(records, 1, 2);
    std::unique_ptr<OverflowPort> port;
    REQUIRE(OverflowPort::create(device, &port) == Status::ok);
    port->open(1, &transport);
    transport.port = port.get();
    codec::EncodeJob job;
    job.values = values.data();
    job.count = count;
    job.message = message.data() + (128 - reinterpret_cast<std::uintptr_t>(message.data()) % 128) % 128;
    job.broadcast = broadcast;
    port->attach(0, &job);
    if (step >= 0) {
      test::FailingMemory::fail_at(step, false, "helper");
    }
    std::thread encoder([&] { static_cast<void>(device.encode(job, nullptr)); });
    std::atomic<bool> left = false;
    std::thread helper([&] {
      pthread_setname_np(pthread_self(), "helper");
      while (!left) {
        try {
          static_cast<void>(port->poll());
        } catch (const std::bad_alloc&) {
        }
      }
    });
    encoder.join();
    while (!port->flushed()) {
      std::this_thread::yield();
    }
    failed = test::FailingMemory::heal();
    left = true;
    helper.join();
    const auto record = records.get({0, 1, 0, 0});
    REQUIRE(port->status() == Status::ok);
    REQUIRE(record != nullptr);
    REQUIRE(record->size() > OverflowPort::outbox_bytes);
    REQUIRE(port->sent_bytes() == record->size());
    REQUIRE(port->sent_to(0).records == (broadcast ? 0 : 1));
    REQUIRE(port->sent_to(0).bytes == (broadcast ? 0 : record->size()));
    if (step < 0) {
      expected = record;
      failed = true;
    }
    REQUIRE(*record == *expected);
    REQUIRE((failed || step > 2));
  }
}

TEST_CASE("a port is busy while anything runs, and for good once captured") {
  LoopbackDevice device;
  LoopbackRecords records;
  LoopbackTransport transport(records, 0, 2);
  std::unique_ptr<OverflowPort> port;
  REQUIRE(OverflowPort::create(device, &port) == Status::ok);
  port->open(0, &transport);
  transport.port = port.get();
  REQUIRE_FALSE(port->poll());
  codec::EncodeJob encode;
  encode.message_count = 0;
  port->attach(1, &encode);
  REQUIRE(port->poll());
  codec::DecodeJob nothing;
  const codec::ReceiveJob receive = port->receive_job(1, nothing);
  REQUIRE(device.encode(encode, nullptr) == Status::ok);
  REQUIRE(port->poll());
  REQUIRE(device.receive(receive, nullptr) == Status::ok);
  REQUIRE_FALSE(port->poll());
  // Of a graph's replay the host knows nothing.
  const int wakes = transport.wakes;
  port->set_captured();
  REQUIRE(transport.wakes == wakes + 1);
  REQUIRE(port->poll());
  port->release();
  REQUIRE_FALSE(port->poll());
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
