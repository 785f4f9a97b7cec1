// How records leave through an outbox: their bytes, their order, releases.
#include <thread>

#include "codec/host_exchange.hpp"
#include "test/unit/codec_exchange.hpp"

namespace zipccl::test {
namespace {

using Engine = codec::HostEngine<codec::Bf16Traits>;
using codec::load_acquire;
using codec::store_release;

}  // namespace

TEST_CASE("hundreds of calls share one outbox") {
  constexpr std::uint64_t count = 2 * codec::tile_values;
  for (const std::uint64_t outbox_capacity : {528u, 1024u, 65536u}) {
    Exchange exchange({2, 0, count, 64, 1040, outbox_capacity});
    OverflowServer server(exchange.senders(), exchange.receivers());
    for (std::uint64_t call = 0; call < 60; ++call) {
      CAPTURE(outbox_capacity, call);
      auto values = all_random(2, count, call);
      if (call % 3 == 0) {
        values[1] = make_values(Fill::normal, count, call);
      }
      exchange.encode(values);
      exchange.decode();
      CHECK(exchange.has_arrived(1, values));
      CHECK(exchange.counters.finished == call + 1);
    }
    CHECK(exchange.counters.status == 0);
    CHECK(server.broken == 0);
    CHECK(exchange.lock(0) == 0);
  }
}

TEST_CASE("records are the same bytes whatever the pieces") {
  constexpr std::uint64_t count = 9 * codec::tile_values + 77;
  for (const std::uint32_t fraction : {0u, 300u, 2000u}) {
    for (const std::uint64_t outbox_capacity : {16u, 48u, 1008u, 1024u, 4096u, 1u << 20}) {
      Exchange exchange({1, 0, count, fraction, 4096, outbox_capacity});
      OverflowServer server(exchange.senders(), {});
      for (const Fill fill : all_fills) {
        CAPTURE(fraction, outbox_capacity, static_cast<int>(fill));
        const std::vector<Values> values = {make_values(fill, count, 5)};
        exchange.encode(values);
        const Message expected = encode(values[0], fraction, exchange.sequence, 3);
        const auto written = exchange.message(0);
        CHECK(std::ranges::equal(written, expected.bytes.bytes()));
        const std::uint64_t bytes = expected.overflow.size();
        if (bytes == 0) {
          continue;
        }
        while (load_acquire(exchange.outbox(0).taken) != exchange.outbox(0).posted) {
          std::this_thread::yield();
        }
        const OverflowServer::Record record = server.records().back();
        CHECK(record.sequence == exchange.sequence);
        CHECK(record.chunk == 3);
        CHECK(record.receiver == codec::all_receivers);
        // What lies before the first entry is undefined, but for the host engine.
        const auto reference = std::as_bytes(expected.overflow.bytes());
        CHECK(std::ranges::equal(record.bytes, reference));
      }
      CHECK(server.broken == 0);
    }
  }
}

TEST_CASE("encode leaves the outbox alone until its piece has been taken") {
  constexpr std::uint64_t count = 3 * codec::tile_values;
  Exchange exchange({1, 0, count, 0, 4096, 1 << 16});
  OverflowServer server(exchange.senders(), exchange.receivers());
  exchange.encode(all_random(1, count, 1));
  while (server.drained != 1) {
    std::this_thread::yield();
  }
  server.hold_drains = true;
  exchange.encode(all_random(1, count, 2));  // the first has been taken
  CHECK(exchange.outbox(0).posted == 2);
  const Block second(exchange.outbox_data(0));

  const Values zeros(count, 0);
  ++exchange.sequence;
  CHECK(Engine::encode(exchange.encode_job(0, zeros)) == Status::ok);  // has nothing to write there

  const Values third = make_values(Fill::random_bits, count, 3);
  const auto job = exchange.encode_job(0, third);
  auto encoding = std::async(std::launch::async, [&] { return Engine::encode(job); });
  CHECK(waits(encoding));
  CHECK(std::ranges::equal(second.bytes(), exchange.outbox_data(0)));
  server.hold_drains = false;
  REQUIRE(ends(encoding));
  CHECK(encoding.get() == Status::ok);
  CHECK(load_acquire(exchange.outbox(0).posted) == 3);
  CHECK(exchange.outbox(0).sequence == exchange.sequence);
  CHECK(exchange.outbox(0).record_bytes == exchange.overflow_bytes(0));
}

TEST_CASE("encodes of one outbox at the same time ship one record after the other") {
  constexpr std::uint64_t count = 5 * codec::tile_values;
  Exchange exchange({1, 0, count, 0, 4096, 512});
  OverflowServer server(exchange.senders(), exchange.receivers());
  constexpr std::uint64_t encodes = 4;
  std::vector<Values> values;
  std::vector<Message> expected;
  std::vector<Block> messages;
  for (std::uint64_t i = 0; i < encodes; ++i) {
    values.push_back(make_values(Fill::random_bits, count, i));
    expected.push_back(encode(values[i], 0, i + 1, 3));
    messages.emplace_back(expected[i].bytes.size());
  }
  std::vector<std::future<Status>> encoding;
  for (std::uint64_t i = 0; i < encodes; ++i) {
    codec::EncodeJob job = exchange.encode_job(0, values[i]);
    job.message = messages[i].data();
    job.sequence = i + 1;
    job.started_ns = nullptr;
    encoding.push_back(std::async(std::launch::async, [job] { return Engine::encode(job); }));
  }
  for (auto& work : encoding) {
    REQUIRE(work.get() == Status::ok);
  }
  while (server.drained != encodes) {
    std::this_thread::yield();
  }
  CHECK(server.broken == 0);
  const auto records = server.records();
  REQUIRE(records.size() == encodes);
  for (std::uint64_t i = 0; i < encodes; ++i) {
    CHECK(std::ranges::equal(records[i].bytes, std::as_bytes(expected[i].overflow.bytes())));
  }
}

TEST_CASE("a release ends an encode that waits; it posts nothing more") {
  constexpr std::uint64_t count = 3 * codec::tile_values;
  Exchange exchange({1, 0, count, 64, 4096, 1 << 16});
  const auto values = all_random(1, count, 1);
  exchange.encode(values);
  const Block first(exchange.outbox_data(0));
  const auto job = exchange.encode_job(0, values[0]);
  auto encoding = std::async(std::launch::async, [&] { return Engine::encode(job); });
  CHECK(waits(encoding));
  store_release(exchange.release, 1u);
  REQUIRE(ends(encoding));
  CHECK(encoding.get() == Status::ok);
  CHECK(exchange.outbox(0).posted == 1);
  CHECK(std::ranges::equal(first.bytes(), exchange.outbox_data(0)));
  CHECK(exchange.lock(0) == 0);
}

TEST_CASE("a release in the middle of a record ends the encode, and those that wait for their turn") {
  constexpr std::uint64_t count = 3 * codec::tile_values;
  Exchange exchange({1, 0, count, 0, 4096, 1024});
  const Values values = make_values(Fill::random_bits, count, 1);
  const auto job = exchange.encode_job(0, values);
  Block other(codec::Layout::of(count, 0).static_bytes);
  auto second_job = job;
  second_job.message = other.data();
  second_job.started_ns = nullptr;
  auto encoding = std::async(std::launch::async, [&] { return Engine::encode(job); });
  REQUIRE(becomes(exchange.outbox(0).posted, 1));
  CHECK(waits(encoding));
  auto second = std::async(std::launch::async, [&] { return Engine::encode(second_job); });
  CHECK(waits(second));
  CHECK(load_acquire(exchange.outbox(0).posted) == 1);
  store_release(exchange.outbox(0).taken, std::uint64_t{1});
  REQUIRE(becomes(exchange.outbox(0).posted, 2));
  CHECK(waits(encoding));
  CHECK(load_acquire(exchange.outbox(0).posted) == 2);
  store_release(exchange.release, 1u);
  REQUIRE(ends(encoding));
  REQUIRE(ends(second));
  CHECK(exchange.outbox(0).posted == 2);
  CHECK(exchange.outbox(0).offset == 1024);
}

}  // namespace zipccl::test
