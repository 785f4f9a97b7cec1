// The static exchange on the host engine: encode, patch and the CPU thread between them.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "codec/host_engine.hpp"
#include "codec/host_exchange.hpp"
#include "codec/overflow.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/codec_messages.hpp"
#include "test/unit/codec_overflow_server.hpp"

namespace zipccl::test {
namespace {

using Engine = codec::HostEngine<codec::Bf16Traits>;
using Values = std::vector<std::uint16_t>;
using codec::load_acquire;
using codec::store_release;
using std::chrono::milliseconds;

constexpr std::int32_t number(Status status) { return static_cast<std::int32_t>(status); }

bool is_untouched(std::span<const std::uint16_t> values) {
  return std::all_of(values.begin(), values.end(), [](std::uint16_t value) { return value == untouched; });
}

// All senders and one receiver of an all-gather, the receiver being rank `own`.
class Exchange {
 public:
  struct Shape {
    std::uint32_t ranks = 2;
    std::uint32_t own = 0;
    std::uint64_t count = 0;
    std::uint32_t pool_fraction = 0;
    std::uint64_t capacity = 4096;         // of the mailbox
    std::uint64_t outbox_capacity = 4096;  // of each sender's
  };

  explicit Exchange(const Shape& shape)
      : shape_(shape),
        layout_(codec::Layout::of(shape.count, shape.pool_fraction)),
        messages_(layout_.static_bytes * shape.ranks),
        room_(aligned(shape.capacity)),
        mailbox_(sizeof(codec::Mailbox) + aligned(shape.capacity)),
        locks_(shape.ranks),
        summaries_(shape.ranks),
        output(shape.count * shape.ranks) {
    std::memset(mailbox_.data(), 0, sizeof(codec::Mailbox));
    for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
      std::memset(outboxes_.emplace_back(sizeof(codec::Outbox) + aligned(shape.outbox_capacity)).data(), 0,
                  sizeof(codec::Outbox));
    }
  }

  std::vector<OverflowServer::Sender> senders() {
    std::vector<OverflowServer::Sender> all;
    for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      all.push_back({rank, &outbox(rank)});
    }
    return all;
  }
  std::vector<OverflowServer::Receiver> receivers() { return {{shape_.own, &mailbox(), shape_.capacity}}; }

  codec::EncodeJob encode_job(std::uint32_t rank, const Values& values) {
    codec::EncodeJob job;
    job.values = values.data();
    job.count = shape_.count;
    job.pool_fraction = shape_.pool_fraction;
    job.message = messages_.data() + rank * layout_.static_bytes;
    job.sequence = sequence;
    job.sequence_counter = counter;
    job.chunk = 3;
    job.outbox = &outbox(rank);
    job.outbox_capacity = shape_.outbox_capacity;
    job.outbox_lock = &locks_[rank];
    job.release = &release;
    job.started_ns = &started_ns;
    return job;
  }

  codec::PatchJob patch_job() {
    codec::PatchJob job;
    job.decode.messages = messages_.data();
    job.decode.message_stride = layout_.static_bytes;
    job.decode.message_count = shape_.ranks;
    job.decode.skip = shape_.own;
    job.decode.values = output.data();
    job.decode.value_stride = shape_.count * sizeof(std::uint16_t);
    job.decode.count = shape_.count;
    job.decode.pool_fraction = shape_.pool_fraction;
    job.decode.sequence = sequence;
    job.decode.sequence_counter = counter;
    job.advance = counter;
    job.decode.chunk = 3;
    job.decode.summaries = summaries_.data();
    job.mailbox = &mailbox();
    job.mailbox_capacity = shape_.capacity;
    job.room = room_.data();
    job.release = &release;
    job.counters = &counters;
    job.started_ns = &started_ns;
    return job;
  }

  void encode(const std::vector<Values>& values) {
    ++sequence;
    for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      REQUIRE(Engine::encode(encode_job(rank, values[rank])) == Status::ok);
    }
  }

  // Both passes; may run on another thread than the test's.
  Status try_decode() {
    std::fill(output.begin(), output.end(), untouched);
    std::fill(summaries_.begin(), summaries_.end(), codec::MessageSummary{});
    const codec::PatchJob job = patch_job();
    const Status status = Engine::decode(job.decode);
    return status == Status::ok ? Engine::patch(job) : status;
  }
  void decode() { REQUIRE(try_decode() == Status::ok); }

  std::span<const std::uint16_t> output_of(std::uint32_t rank) const {
    return std::span(output).subspan(rank * shape_.count, shape_.count);
  }
  bool has_arrived(std::uint32_t rank, const std::vector<Values>& values) const {
    return std::equal(values[rank].begin(), values[rank].end(), output_of(rank).begin());
  }

  codec::Mailbox& mailbox() { return *reinterpret_cast<codec::Mailbox*>(mailbox_.data()); }
  codec::MessageHeader* header(std::uint32_t rank) {
    return reinterpret_cast<codec::MessageHeader*>(messages_.data() + rank * layout_.static_bytes);
  }
  std::uint8_t* tail(std::uint32_t rank, std::uint64_t tile) {
    return messages_.data() + rank * layout_.static_bytes + layout_.tails + tile * codec::tail_bytes;
  }
  std::span<const std::uint8_t> message(std::uint32_t rank) {
    return messages_.bytes().subspan(rank * layout_.static_bytes, layout_.static_bytes);
  }
  std::span<const std::uint8_t> outbox_data(std::uint32_t rank) {
    return outboxes_[rank].bytes().subspan(sizeof(codec::Outbox));
  }
  std::uint64_t overflow_bytes(std::uint32_t rank) { return layout_.overflow_bytes(header(rank)->entry_units); }

 private:
  static std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + codec::section_alignment - 1) / codec::section_alignment * codec::section_alignment;
  }

  Shape shape_;
  codec::Layout layout_;
  Block messages_;
  Block room_;
  Block mailbox_;
  std::vector<Block> outboxes_;
  std::vector<std::uint32_t> locks_;
  std::vector<codec::MessageSummary> summaries_;

 public:
  Values output;
  std::uint64_t sequence = 0;
  std::uint64_t* counter = nullptr;
  std::uint32_t release = 0;
  std::uint64_t started_ns = 0;
  codec::ExchangeCounters counters{};

  codec::Outbox& outbox(std::uint32_t rank) { return *reinterpret_cast<codec::Outbox*>(outboxes_[rank].data()); }
  std::uint32_t lock(std::uint32_t rank) const { return locks_[rank]; }
  codec::MessageSummary& summary(std::uint32_t rank) { return summaries_[rank]; }
};

// What a patch asks for: pieces that overlap by the largest entry.
std::uint64_t pieces_of(std::uint64_t bytes, std::uint64_t capacity) {
  const std::uint64_t step = capacity - codec::max_overflow_entry_bytes;
  return bytes == 0 ? 0 : bytes <= capacity ? 1 : 1 + (bytes - capacity + step - 1) / step;
}

std::vector<Values> all_random(std::uint32_t ranks, std::uint64_t count, std::uint64_t seed = 1) {
  std::vector<Values> values;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    values.push_back(make_values(Fill::random_bits, count, seed * 100 + rank));
  }
  return values;
}

// Whether the work ends without being let go.
bool waits(const std::future<Status>& work) { return work.wait_for(milliseconds(50)) == std::future_status::timeout; }
bool ends(const std::future<Status>& work) { return work.wait_for(milliseconds(1000)) == std::future_status::ready; }

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
      CHECK(counters.status == 0);
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
      CHECK(exchange.outbox(0).started == call + 1);
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
  CHECK(exchange.outbox(0).started == encodes);
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
  CHECK(waits(encoding));
  auto second = std::async(std::launch::async, [&] { return Engine::encode(second_job); });
  CHECK(waits(second));
  CHECK(load_acquire(exchange.outbox(0).posted) == 1);
  store_release(exchange.outbox(0).taken, std::uint64_t{1});
  CHECK(waits(encoding));
  CHECK(load_acquire(exchange.outbox(0).posted) == 2);
  store_release(exchange.release, 1u);
  REQUIRE(ends(encoding));
  REQUIRE(ends(second));
  CHECK(exchange.outbox(0).posted == 2);
  CHECK(exchange.outbox(0).offset == 1024);
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

TEST_CASE("a release ends a patch that waits") {
  constexpr std::uint64_t count = 3 * codec::tile_values;
  Exchange exchange({3, 0, count, 0, 1040, 4096});
  OverflowServer server(exchange.senders(), exchange.receivers());
  server.hold_answers = true;
  exchange.encode(all_random(3, count));
  auto patching = std::async(std::launch::async, [&] { return exchange.try_decode(); });
  CHECK(waits(patching));
  CHECK(load_acquire(exchange.counters.finished) == 0);
  store_release(exchange.release, 1u);
  REQUIRE(ends(patching));
  CHECK(patching.get() == Status::ok);
  CHECK(exchange.counters.finished == 1);
  CHECK(exchange.counters.status == number(Status::aborted));
  CHECK(exchange.counters.overflow_messages == 3);
  CHECK(exchange.counters.overflow_bytes == 0);
  CHECK(exchange.mailbox().ticket == 1);
  CHECK(is_untouched(exchange.output));

  exchange.decode();  // another one asks no more
  CHECK(exchange.mailbox().ticket == 1);
}

TEST_CASE("a lost record ends a patch, what came before stays") {
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
  CHECK(exchange.counters.status == number(Status::bad_tile));
  CHECK(exchange.summary(1).status == number(Status::bad_tile));
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
  CHECK(exchange.counters.status == number(Status::bad_tile));
  CHECK(exchange.summary(1).status == number(Status::bad_tile));
}

TEST_CASE("the first pass's faults reach the counters, the first one stays") {
  constexpr std::uint64_t count = 3000;
  Exchange exchange({2, 0, count, codec::max_pool_fraction, 1040, 4096});
  exchange.encode(all_random(2, count));
  exchange.tail(1, 1)[0] = 255;
  exchange.decode();
  CHECK(exchange.counters.status == number(Status::bad_tile));
  exchange.encode(all_random(2, count));
  exchange.header(1)->magic = 0;
  exchange.decode();
  CHECK(exchange.counters.status == number(Status::bad_tile));
  CHECK(exchange.counters.finished == 2);
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
    codec::PatchJob job = exchange.patch_job();
    change(job);
    return Engine::patch(job) == Status::invalid_argument;
  };
  CHECK(refused([](codec::PatchJob& job) { job.counters = nullptr; }));
  CHECK(refused([](codec::PatchJob& job) { job.mailbox = nullptr; }));
  CHECK(refused([](codec::PatchJob& job) { job.mailbox_capacity = 0; }));
  CHECK(refused([](codec::PatchJob& job) { job.mailbox_capacity = 1048; }));
  CHECK(refused([](codec::PatchJob& job) { job.mailbox_capacity = codec::max_overflow_entry_bytes; }));
  CHECK(refused([](codec::PatchJob& job) { job.room = nullptr; }));
  CHECK(refused([](codec::PatchJob& job) { job.room = static_cast<std::byte*>(job.room) + 16; }));
  CHECK(refused([](codec::PatchJob& job) { job.release = nullptr; }));
  CHECK(refused([](codec::PatchJob& job) { job.decode.messages = nullptr; }));
  // What cannot overflow needs no mailbox.
  codec::PatchJob job;
  job.counters = &exchange.counters;
  CHECK(Engine::patch(job) == Status::ok);
  CHECK(exchange.counters.finished == 1);
}

}  // namespace zipccl::test
