// The static exchange on the host engine: encode, receive and the CPU thread between them.
#include <thread>

#include "codec/host_exchange.hpp"
#include "test/unit/codec_exchange.hpp"

namespace zipccl::test {
namespace {

using Engine = codec::HostEngine<codec::Bf16Traits>;
using codec::load_acquire;
using codec::store_release;

}  // namespace

TEST_CASE("values of every kind cross in pieces of any size") {
  constexpr std::uint32_t ranks = 3;
  constexpr std::uint64_t count = 6 * codec::tile_values + 100;
  for (const std::uint32_t fraction : {0u, 600u}) {
    for (const std::uint64_t capacity : {1040u, 2064u, 4096u, 65536u}) {
      Exchange exchange({ranks, 1, count, fraction, capacity, capacity / 32 * 16});
      OverflowServer server(exchange.senders(), exchange.receivers());
      codec::ExchangeCounters expected{};
      std::uint64_t pieces = 0;
      for (const Fill fill : all_fills) {
        CAPTURE(fraction, capacity, static_cast<int>(fill));
        std::vector<Values> values;
        for (std::uint64_t rank = 0; rank < ranks; ++rank) {
          values.push_back(make_values(fill, count, rank));
        }
        exchange.encode(values);
        exchange.decode();
        CHECK(exchange.has_arrived(0, values));
        CHECK(is_untouched(exchange.output_of(1)));
        CHECK(exchange.has_arrived(2, values));
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          const std::uint64_t bytes = exchange.overflow_bytes(rank);
          expected.values += count;
          expected.escapes += exchange.header(rank)->escapes;
          expected.overflow_messages += bytes != 0;
          if (rank != 1) {
            expected.overflow_bytes += bytes;
            pieces += pieces_of(bytes, capacity);
          }
        }
      }
      const codec::ExchangeCounters& counters = exchange.counters;
      CHECK(counters.fault() == Status::ok);
      CHECK(counters.finished == exchange.sequence);
      CHECK(counters.values == expected.values);
      CHECK(counters.escapes == expected.escapes);
      CHECK(counters.overflow_messages == expected.overflow_messages);
      CHECK(counters.overflow_bytes == expected.overflow_bytes);
      CHECK(counters.wait_ns > 0);
      CHECK(counters.exchange_ns > counters.wait_ns);
      CHECK(exchange.mailbox().ticket == pieces);
    }
  }
}

TEST_CASE("without overflow nobody is asked") {
  constexpr std::uint64_t count = 3000;
  Exchange exchange({2, 0, count, codec::max_pool_fraction, 4096, 4096});
  const auto values = all_random(2, count);
  exchange.encode(values);
  exchange.decode();
  CHECK(exchange.has_arrived(1, values));
  CHECK(exchange.outbox(0).posted == 0);
  CHECK(exchange.mailbox().ticket == 0);
  CHECK(exchange.counters.finished == 1);
  CHECK(exchange.counters.values == 2 * count);
  CHECK(exchange.counters.overflow_messages == 0);
  CHECK(exchange.counters.wait_ns == 0);
}

TEST_CASE("sequences count on the device") {
  constexpr std::uint64_t count = 3 * codec::tile_values;
  Exchange exchange({2, 0, count, 0, 2048, 4096});
  OverflowServer server(exchange.senders(), exchange.receivers());
  std::uint64_t calls = 40;
  exchange.sequence = 2;
  exchange.counter = &calls;
  // A captured call that is replayed: the jobs stay what they are.
  for (std::uint64_t replay = 0; replay < 5; ++replay) {
    const auto values = all_random(2, count, replay);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      REQUIRE(Engine::encode(exchange.encode_job(rank, values[rank])) == Status::ok);
      CHECK(exchange.header(rank)->sequence == 42 + replay);
    }
    exchange.decode();
    CHECK(exchange.has_arrived(1, values));
    CHECK(exchange.counters.status == 0);
    CHECK(exchange.counters.finished == replay + 1);
    CHECK(calls == 41 + replay);
  }
  exchange.decode();
  CHECK(exchange.counters.status == number(Status::bad_sequence));
}

TEST_CASE("a release ends a job that waits") {
  constexpr std::uint64_t count = 3 * codec::tile_values;
  Exchange exchange({3, 0, count, 0, 1040, 4096});
  OverflowServer server(exchange.senders(), exchange.receivers());
  server.hold_answers = true;
  exchange.encode(all_random(3, count));
  auto receiving = std::async(std::launch::async, [&] { return exchange.try_decode(); });
  REQUIRE(becomes(exchange.mailbox().ticket, 1));
  CHECK(waits(receiving));
  CHECK(load_acquire(exchange.counters.finished) == 0);
  store_release(exchange.release, 1u);
  REQUIRE(ends(receiving));
  CHECK(receiving.get() == Status::ok);
  CHECK(exchange.counters.finished == 1);
  CHECK(exchange.counters.status == number(Status::aborted));
  CHECK(exchange.counters.overflow_messages == 3);
  CHECK(exchange.counters.overflow_bytes == 0);
  CHECK(exchange.mailbox().ticket == 1);
  CHECK(is_untouched(exchange.output));

  exchange.decode();  // another one asks no more
  CHECK(exchange.mailbox().ticket == 1);
}

TEST_CASE("a lost record ends a job, what came before stays") {
  constexpr std::uint64_t count = 3 * codec::tile_values;
  Exchange exchange({4, 0, count, 0, 1040, 4096});
  OverflowServer server(exchange.senders(), exchange.receivers());
  server.lost_sender = 2;
  const auto values = all_random(4, count);
  exchange.encode(values);
  exchange.decode();
  CHECK(exchange.counters.status == number(Status::connection_lost));
  CHECK(exchange.counters.finished == 1);
  CHECK(exchange.counters.overflow_bytes == exchange.overflow_bytes(1));
  CHECK(exchange.has_arrived(1, values));
  CHECK(is_untouched(exchange.output_of(2)));
  CHECK(is_untouched(exchange.output_of(3)));
}

TEST_CASE("what goes wrong with a later piece ends a job, what came before stays") {
  constexpr std::uint64_t count = 6 * codec::tile_values;
  Exchange exchange({2, 0, count, 0, 2064, 4096});
  OverflowServer server(exchange.senders(), exchange.receivers());
  server.good_answers = 2;
  Status expected = Status::bad_totals;
  SECTION("lost") {
    server.lost_sender = 1;
    expected = Status::connection_lost;
  }
  SECTION("record") { server.wrong_record = codec::unit_bytes; }
  SECTION("piece") { server.wrong_piece = codec::unit_bytes; }
  const auto values = all_random(2, count);
  exchange.encode(values);
  exchange.decode();
  CHECK(exchange.counters.status == number(expected));
  CHECK(exchange.counters.overflow_bytes == 0);
  CHECK(exchange.mailbox().ticket == 3);
  const auto out = exchange.output_of(1);
  CHECK(std::equal(out.begin(), out.begin() + codec::tile_values, values[1].begin()));
  CHECK(is_untouched(out.last(2 * codec::tile_values)));
}

TEST_CASE("a record or a piece of another size is refused") {
  constexpr std::uint64_t count = 3 * codec::tile_values;
  Exchange exchange({2, 0, count, 0, 1040, 4096});
  OverflowServer server(exchange.senders(), exchange.receivers());
  SECTION("record") { server.wrong_record = codec::unit_bytes; }
  SECTION("piece") { server.wrong_piece = codec::unit_bytes; }
  exchange.encode(all_random(2, count));
  exchange.decode();
  CHECK(exchange.counters.status == number(Status::bad_totals));
  CHECK(exchange.mailbox().ticket == 1);
  CHECK(is_untouched(exchange.output_of(1)));
}

TEST_CASE("a message with a bad header is not patched, the others are") {
  constexpr std::uint64_t count = 3 * codec::tile_values;
  Exchange exchange({4, 3, count, 0, 1040, 4096});
  OverflowServer server(exchange.senders(), exchange.receivers());
  const auto values = all_random(4, count);
  exchange.encode(values);
  SECTION("sequence") { exchange.header(1)->sequence = 77; }
  SECTION("magic") { exchange.header(1)->magic = 0; }
  SECTION("more units than tiles can need") { exchange.header(1)->entry_units = 1u << 20; }
  const bool is_totals = exchange.header(1)->entry_units == 1u << 20;
  const bool is_magic = exchange.header(1)->magic == 0;
  exchange.decode();
  const Status expected = is_totals ? Status::bad_totals : (is_magic ? Status::bad_magic : Status::bad_sequence);
  CHECK(exchange.counters.status == number(expected));
  CHECK(exchange.counters.finished == 1);
  CHECK(exchange.counters.values == 3 * count);
  CHECK(exchange.has_arrived(0, values));
  CHECK(is_untouched(exchange.output_of(1)));
  CHECK(exchange.has_arrived(2, values));
}

TEST_CASE("one's own bad header is a fault too") {
  constexpr std::uint64_t count = 2000;
  Exchange exchange({2, 0, count, codec::max_pool_fraction, 1040, 4096});
  exchange.encode(all_random(2, count));
  exchange.header(0)->version = 9;
  exchange.decode();
  CHECK(exchange.counters.status == number(Status::bad_version));
  CHECK(exchange.counters.values == count);
}

TEST_CASE("a bad tile in the overflow leaves its neighbours alone") {
  constexpr std::uint64_t count = 4 * codec::tile_values;
  Exchange exchange({2, 0, count, 0, 1040, 4096});
  OverflowServer server(exchange.senders(), exchange.receivers());
  const auto values = all_random(2, count);
  exchange.encode(values);
  // Its entry starts in the record's last unit: the first pass sees that as well, the patch must not read beyond.
  const auto units = static_cast<std::uint32_t>(exchange.header(1)->entry_units - 1);
  std::memcpy(exchange.tail(1, 2) + codec::tail_bytes - sizeof(units), &units, sizeof(units));
  exchange.decode();
  CHECK(exchange.counters.status == 0);
  CHECK(exchange.counters.fault() == Status::bad_tile);
  const auto out = exchange.output_of(1);
  CHECK(std::equal(values[1].begin(), values[1].begin() + 2048, out.begin()));
  CHECK(is_untouched(out.subspan(2048, 1024)));
  CHECK(std::equal(values[1].begin() + 3072, values[1].end(), out.begin() + 3072));
}

TEST_CASE("a tile whose entry contradicts it is found when the record is there") {
  constexpr std::uint64_t count = 2 * codec::tile_values;
  Exchange exchange({2, 0, count, 0, 1040, 4096});
  OverflowServer server(exchange.senders(), exchange.receivers());
  // 300 far escapes: mode entry.
  auto values = std::vector<Values>(2, Values(count, 0x3f80));
  for (std::size_t i = 0; i < 300; ++i) {
    values[1][3 * i] = static_cast<std::uint16_t>(0x0100 + 7 * i);
  }
  exchange.encode(values);
  REQUIRE((exchange.tail(1, 0)[1] & 3) == 1);
  exchange.tail(1, 0)[1] = static_cast<std::uint8_t>(exchange.tail(1, 0)[1] - 4);  // a unit less than it needs
  exchange.decode();
  CHECK(exchange.counters.status == 0);
  CHECK(exchange.counters.fault() == Status::bad_tile);
}

TEST_CASE("a corrupt tile is told apart from other faults, of which the first stays") {
  constexpr std::uint64_t count = 3000;
  Exchange exchange({2, 0, count, codec::max_pool_fraction, 1040, 4096});
  const auto break_tile = [&] { exchange.tail(1, 1)[0] = 255; };
  exchange.encode(all_random(2, count));
  break_tile();
  exchange.decode();
  CHECK(exchange.counters.status == 0);
  CHECK(exchange.counters.tile_status == number(Status::bad_tile));
  CHECK(exchange.counters.fault() == Status::bad_tile);
  exchange.encode(all_random(2, count));
  exchange.decode();
  CHECK(exchange.counters.fault() == Status::bad_tile);
  exchange.encode(all_random(2, count));
  exchange.header(1)->version = 9;
  exchange.decode();
  CHECK(exchange.counters.status == number(Status::bad_version));
  CHECK(exchange.counters.fault() == Status::bad_version);
  exchange.encode(all_random(2, count));
  exchange.header(1)->magic = 0;
  exchange.decode();
  CHECK(exchange.counters.status == number(Status::bad_version));
  CHECK(exchange.counters.finished == 4);
}

TEST_CASE("jobs of the static exchange that break their contracts are refused") {
  constexpr std::uint64_t count = 3000;
  Exchange exchange({2, 0, count, 0, 1040, 4096});
  const Values values(count, 0);
  const auto encode_refused = [&](auto change) {
    codec::EncodeJob job = exchange.encode_job(0, values);
    change(job);
    return Engine::encode(job) == Status::invalid_argument;
  };
  CHECK(encode_refused([](codec::EncodeJob& job) { job.release = nullptr; }));
  CHECK(encode_refused([](codec::EncodeJob& job) { job.outbox_lock = nullptr; }));
  CHECK(encode_refused([](codec::EncodeJob& job) { job.outbox_capacity = 0; }));
  CHECK(encode_refused([](codec::EncodeJob& job) { job.outbox_capacity = 24; }));
  CHECK(encode_refused([](codec::EncodeJob& job) { job.outbox = nullptr; }));
  const auto refused = [&](auto change) {
    codec::ReceiveJob job = exchange.receive_job();
    change(job);
    return Engine::receive(job) == Status::invalid_argument;
  };
  CHECK(refused([](codec::ReceiveJob& job) { job.counters = nullptr; }));
  CHECK(refused([](codec::ReceiveJob& job) { job.mailbox = nullptr; }));
  CHECK(refused([](codec::ReceiveJob& job) { job.mailbox_capacity = 0; }));
  CHECK(refused([](codec::ReceiveJob& job) { job.mailbox_capacity = 1048; }));
  CHECK(refused([](codec::ReceiveJob& job) { job.mailbox_capacity = codec::max_overflow_entry_bytes; }));
  CHECK(refused([](codec::ReceiveJob& job) { job.room = nullptr; }));
  CHECK(refused([](codec::ReceiveJob& job) { job.room = static_cast<std::byte*>(job.room) + 16; }));
  CHECK(refused([](codec::ReceiveJob& job) { job.release = nullptr; }));
  CHECK(refused([](codec::ReceiveJob& job) { job.decode.messages = nullptr; }));
  // What cannot overflow needs no mailbox.
  codec::ReceiveJob job;
  job.counters = &exchange.counters;
  CHECK(Engine::receive(job) == Status::ok);
  CHECK(exchange.counters.finished == 1);
}

}  // namespace zipccl::test
