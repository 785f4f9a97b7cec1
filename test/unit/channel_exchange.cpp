// Records between ranks: contents, order, keys, and what one process or several make of it.
#include <algorithm>
#include <numeric>
#include <random>

#include "test/unit/catch.hpp"
#include "test/unit/channel_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;
using Record = switcher::Bytes;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

// Sizes that every rank knows: 0 B to 20 MB, most of them small.
std::size_t record_bytes(const RecordKey& key, std::uint32_t receiver) {
  std::mt19937_64 random(key.sender * 1000003 + receiver * 997 + key.sequence * 31 + key.chunk);
  switch (random() % 16) {
    case 0:
      return 0;
    case 1:
      return random() % (20 * mebibyte);
    case 2:
    case 3:
      return random() % mebibyte;
    default:
      return random() % 4096;
  }
}

struct Parcel {
  RecordKey key;
  std::uint32_t peer = 0;
};

std::vector<Parcel> shuffled(
    const std::function<Parcel(std::uint32_t peer, std::uint64_t sequence, std::uint32_t chunk)>& make,
    std::uint32_t rank, std::uint32_t rank_count, std::uint64_t calls, unsigned seed) {
  std::vector<Parcel> parcels;
  for (std::uint32_t peer = 0; peer < rank_count; ++peer) {
    for (std::uint64_t sequence = 0; peer != rank && sequence < calls; ++sequence) {
      for (std::uint32_t chunk = 0; chunk < 2; ++chunk) parcels.push_back(make(peer, sequence, chunk));
    }
  }
  std::shuffle(parcels.begin(), parcels.end(), std::mt19937(seed));
  return parcels;
}

// Everybody sends to everybody from three threads at once, while another takes. Returns the number of bad records.
int exchange(Channel& channel, std::uint32_t rank, std::uint32_t rank_count, std::uint64_t calls) {
  const auto outgoing = shuffled(
      [&](std::uint32_t peer, std::uint64_t sequence, std::uint32_t chunk) {
        return Parcel{{rank, sequence, chunk}, peer};
      },
      rank, rank_count, calls, rank);
  const auto incoming = shuffled(
      [&](std::uint32_t peer, std::uint64_t sequence, std::uint32_t chunk) {
        return Parcel{{peer, sequence, chunk}, rank};
      },
      rank, rank_count, calls, 77 + rank);
  std::atomic<int> bad = 0;
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> senders;
  for (int i = 0; i < 3; ++i) {
    senders.emplace_back([&] {
      for (std::size_t at = next++; at < outgoing.size(); at = next++) {
        const auto& [key, peer] = outgoing[at];
        bad += channel.send(peer, key, make_record(key, peer, record_bytes(key, peer))) != Status::ok;
      }
    });
  }
  for (const auto& [key, receiver] : incoming) {
    const Record record = await_record(channel, key);
    bad += record == nullptr || *record != *make_record(key, receiver, record_bytes(key, receiver));
    channel.drop(key);
    Record again;
    bad += channel.find(key, &again) == Arrival::arrived;
  }
  for (std::thread& sender : senders) sender.join();
  bad += !eventually([&] { return channel.flushed(); });
  bad += channel.buffered_bytes() != 0;
  return bad;
}

TEST_CASE("ranks of several processes exchange records of all sizes in any order") {
  const std::uint32_t rank_count = GENERATE(2u, 3u, 8u);
  CAPTURE(rank_count);
  const auto statuses = fork_ranks(rank_count, [](const ForkedRank& self) {
    const int bad = exchange(*self.channel, self.rank, self.rank_count, self.rank_count == 8 ? 6 : 24);
    self.barrier();
    return bad;
  });
  CHECK(statuses == std::vector<int>(rank_count, 0));
}

TEST_CASE("so do ranks that share processes") {
  const std::size_t process_count = GENERATE(1u, 2u, 3u);
  CAPTURE(process_count);
  const Processes processes(process_count);
  auto joined = join_all(processes.all(), 5);
  std::vector<std::thread> threads;
  std::atomic<int> bad = 0;
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    INFO(joined[rank].why);
    REQUIRE(joined[rank].agreed);
    threads.emplace_back([&, rank] { bad += exchange(*joined[rank].channel, rank, 5, 8); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(bad == 0);
}

TEST_CASE("records of a pair arrive in the order of their sending") {
  const Processes processes(2);
  auto joined = join_all(processes.all(), 2);
  REQUIRE(joined[0].agreed);
  constexpr std::uint64_t count = 2000;
  const auto record = make_record({}, 1, 100);
  for (std::uint64_t sequence = 0; sequence < count; ++sequence) {
    REQUIRE(joined[0].channel->send(1, {0, sequence, 0}, record) == Status::ok);
  }
  Record found;
  for (std::uint64_t last = count; last > 0; --last) {
    if (joined[1].channel->find({0, last - 1, 0}, &found) != Arrival::arrived) continue;
    for (std::uint64_t earlier = 0; earlier < last; ++earlier) {
      REQUIRE(joined[1].channel->find({0, earlier, 0}, &found) == Arrival::arrived);
    }
    break;
  }
  CHECK(await_record(*joined[1].channel, {0, count - 1, 0}) != nullptr);
}

TEST_CASE("keys differ by each of their parts, and communicators by their ids") {
  const Processes processes(2);
  auto one = join_all(processes.all(), 2);
  auto other = join_all(processes.all(), 2);
  REQUIRE(one[0].agreed);
  REQUIRE(other[0].agreed);
  const RecordKey key{0, 5, 1};
  REQUIRE(one[0].channel->send(1, key, make_record(key, 1, 10)) == Status::ok);
  REQUIRE(await_record(*one[1].channel, key) != nullptr);
  Record found;
  CHECK(one[1].channel->find({0, 5, 0}, &found) == Arrival::awaited);
  CHECK(one[1].channel->find({0, 4, 1}, &found) == Arrival::awaited);
  CHECK(one[0].channel->find({1, 5, 1}, &found) == Arrival::awaited);
  CHECK(other[1].channel->find(key, &found) == Arrival::awaited);
  CHECK(found == nullptr);
}

TEST_CASE("bytes are counted while they are held") {
  const Processes processes(2);
  auto joined = join_all(processes.all(), 2);
  REQUIRE(joined[0].agreed);
  Channel& receiver = *joined[1].channel;
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
    REQUIRE(joined[0].channel->send(1, {0, 1, chunk}, make_record({}, 1, 1000)) == Status::ok);
  }
  REQUIRE(await_record(receiver, {0, 1, 2}) != nullptr);
  CHECK(receiver.buffered_bytes() == 3000);
  CHECK(eventually([&] { return joined[0].channel->flushed(); }));
  CHECK(joined[0].channel->buffered_bytes() == 0);
  receiver.drop({0, 1, 1});
  receiver.drop({0, 1, 1});
  CHECK(receiver.buffered_bytes() == 2000);
}

TEST_CASE("what cannot be sent is refused") {
  const Processes processes(1);
  auto joined = join_all(processes.all(), 2);
  REQUIRE(joined[0].agreed);
  Channel& channel = *joined[0].channel;
  CHECK(channel.send(0, {0, 1, 0}, make_record({}, 0, 1)) == Status::invalid_argument);
  CHECK(channel.send(2, {0, 1, 0}, make_record({}, 2, 1)) == Status::invalid_argument);
  CHECK(channel.send(1, {1, 1, 0}, make_record({}, 1, 1)) == Status::invalid_argument);
  CHECK(channel.send(1, {0, 1, 0}, nullptr) == Status::invalid_argument);
  Record found;
  CHECK(channel.find({0, 1, 0}, &found) == Arrival::lost);
  CHECK(channel.find({2, 1, 0}, &found) == Arrival::lost);
}

TEST_CASE("a communicator of one rank has a channel too") {
  const Processes processes(1);
  auto joined = join_all(processes.all(), 1);
  INFO(joined[0].why);
  REQUIRE(joined[0].agreed);
  CHECK(joined[0].channel->flushed());
}

}  // namespace
}  // namespace zipccl::test
