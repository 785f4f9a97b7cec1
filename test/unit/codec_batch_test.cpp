// Batches of messages on the host engine: rows and lists, of which any may overflow.
#include "test/unit/codec_batch.hpp"

#include <cstring>
#include <random>

#include "codec/host_engine.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/codec_host_machine.hpp"

namespace zipccl::test {
namespace {

using Engine = codec::HostEngine<codec::Bf16Traits>;

}  // namespace

TEST_CASE("all-to-all in rows, of which any may overflow") {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 5u}) {
    for (const std::uint32_t pool_fraction : {0u, 16u, 2000u}) {
      HostMachine machine;
      BatchRanks batch(machine, {ranks, pool_fraction, 1008, 2064});
      std::mt19937_64 random(ranks);
      for (const std::uint64_t count : {0u, 1u, 1024u, 5000u, 20000u}) {
        std::vector<Fill> fills;
        for (std::uint32_t i = 0; i < ranks * ranks; ++i) {
          fills.push_back(random() % 2 == 0 ? Fill::normal : all_fills[random() % std::size(all_fills)]);
        }
        CAPTURE(ranks, pool_fraction, count);
        REQUIRE(batch.all_to_all(count, fills, count % 3 == 0 ? 0 : 3) == "");
      }
    }
  }
}

TEST_CASE("lists of any counts between any ranks") {
  std::mt19937_64 random(7);
  for (const std::uint32_t ranks : {2u, 4u}) {
    for (const std::uint32_t pool_fraction : {0u, 16u, 1000u}) {
      HostMachine machine;
      BatchRanks batch(machine, {ranks, pool_fraction, 8000, 8192});
      for (int round = 0; round < 8; ++round) {
        std::vector<Transfer> transfers;
        const std::uint64_t messages = round == 0 ? 0 : random() % 12;
        for (std::uint64_t i = 0; i < messages; ++i) {
          constexpr std::uint64_t counts[] = {0, 1, 7, 1000, 1024, 1025, 3333, 30000};
          const auto sender = static_cast<std::uint32_t>(random() % ranks);
          const auto receiver = static_cast<std::uint32_t>(random() % ranks);
          transfers.push_back({sender, receiver, counts[random() % std::size(counts)],
                               all_fills[random() % std::size(all_fills)], random() % 1000,
                               static_cast<std::uint32_t>(random() % 2 == 0 ? 0 : random() % 9)});
        }
        CAPTURE(ranks, pool_fraction, round);
        REQUIRE(batch.exchange(transfers) == "");
      }
    }
  }
}

TEST_CASE("a list longer than a launch") {
  HostMachine machine;
  BatchRanks batch(machine, {2, 0, 4096, 4096});
  std::vector<Transfer> transfers;
  for (std::uint32_t i = 0; i < 1200; ++i) {
    transfers.push_back({0, 1, i % 97, i % 100 == 0 ? Fill::random_bits : Fill::normal, i, 0});
  }
  REQUIRE(batch.exchange(transfers) == "");
  REQUIRE(batch.exchange(transfers, 3) == "");
}

TEST_CASE("batches that break their contracts are refused") {
  constexpr std::uint64_t count = 100;
  const std::vector<std::uint16_t> values(count);
  const auto layout = codec::Layout::of(count, codec::max_pool_fraction);
  Block message(layout.static_bytes);
  codec::EncodeItem item{values.data(), count, message.data(), 0};
  codec::EncodeJob job;
  job.items = &item;
  job.item_count = 1;
  job.pool_fraction = codec::max_pool_fraction;
  CHECK(Engine::encode(job) == Status::ok);
  const auto refused = [&](auto change) {
    codec::EncodeItem bad = item;
    codec::EncodeJob bad_job = job;
    bad_job.items = &bad;
    change(bad, bad_job);
    return Engine::encode(bad_job) == Status::invalid_argument;
  };
  CHECK(refused([](codec::EncodeItem& bad, codec::EncodeJob&) { bad.values = nullptr; }));
  CHECK(refused([](codec::EncodeItem& bad, codec::EncodeJob&) { bad.message = nullptr; }));
  CHECK(refused(
      [](codec::EncodeItem& bad, codec::EncodeJob&) { bad.message = static_cast<std::uint8_t*>(bad.message) + 16; }));
  CHECK(refused([](codec::EncodeItem& bad, codec::EncodeJob&) { bad.count = codec::max_count + 1; }));
  // What may overflow needs an outbox: there is no overflow buffer for several messages.
  Block overflow(layout.max_overflow_bytes() + 100 * 1024);
  CHECK(refused([&](codec::EncodeItem&, codec::EncodeJob& bad) {
    bad.pool_fraction = 0;
    bad.overflow = overflow.data();
    bad.overflow_bytes = overflow.size();
  }));

  std::vector<std::uint16_t> out(count);
  codec::DecodeItem received{message.data(), out.data(), count, 0};
  codec::ExchangeCounters counters{};
  codec::ReceiveJob receive_job;
  receive_job.decode.items = &received;
  receive_job.decode.item_count = 1;
  receive_job.decode.pool_fraction = codec::max_pool_fraction;
  receive_job.decode.any_sequence = true;
  receive_job.counters = &counters;
  CHECK(Engine::receive(receive_job) == Status::ok);
  CHECK(out == values);
  CHECK(Engine::decode(receive_job.decode) == Status::invalid_argument);  // rows only
  received.values = nullptr;
  CHECK(Engine::receive(receive_job) == Status::invalid_argument);
}

TEST_CASE("an observation finds what an encode finds") {
  HostMachine machine;
  for (const std::uint32_t pool_fraction : {0u, 16u, 1000u}) {
    codec::Observation observation{};
    codec::Observation expected{};
    for (const Fill fill : all_fills) {
      for (const std::uint64_t count : {0u, 1u, 1024u, 5555u}) {
        CAPTURE(pool_fraction, static_cast<int>(fill), count);
        const auto values = make_values(fill, count, 3);
        Message message = encode(values, pool_fraction);
        const codec::MessageHeader header = message.header();
        expected.values += count;
        expected.escapes += header.escapes;
        expected.far_escapes += header.far_escapes;
        expected.entry_units += header.entry_units;
        expected.overflow_units += header.entry_units > header.pool_units ? header.entry_units - header.pool_units : 0;
        for (std::uint64_t tile = 0; tile < message.layout().tiles; ++tile) {
          expected.entry_tiles += (message.tail(tile)[1] & 3) != 0;
        }
        ++expected.finished;
        codec::ObserveJob job;
        job.values = values.data();
        job.count = count;
        job.pool_fraction = pool_fraction;
        job.observation = &observation;
        REQUIRE(machine.run(job) == Status::ok);
        REQUIRE(std::memcmp(&observation, &expected, sizeof(expected)) == 0);
      }
    }
  }
  codec::ObserveJob job;
  CHECK(machine.run(job) == Status::invalid_argument);
  codec::Observation observation{};
  job.observation = &observation;
  CHECK(machine.run(job) == Status::ok);
  job.count = 5;
  CHECK(machine.run(job) == Status::invalid_argument);
}

}  // namespace zipccl::test
