// Peers that die, lie, dawdle or are strangers, once the ranks are connected.
#include <sys/socket.h>

#include <barrier>
#include <csignal>
#include <fstream>

#include "switcher/fence_wire.hpp"
#include "switcher/limits.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/channel_fixture.hpp"
#include "test/unit/channel_raw.hpp"

namespace zipccl::test {
namespace {

using namespace std::chrono_literals;
using namespace zipccl::switcher;
using Record = switcher::Bytes;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

bool becomes_lost(Channel& channel, const RecordKey& key) {
  Record found;
  return eventually([&] { return channel.find(key, &found) == Arrival::lost; });
}

TEST_CASE("a killed process leaves what it had sent, and the rest is lost") {
  const int kill_after = GENERATE(0, 5, 30, 1000);  // records
  CAPTURE(kill_after);
  const auto statuses = fork_ranks(3, [kill_after](const ForkedRank& self) {
    constexpr std::uint64_t count = 60;
    const auto bytes = [](std::uint64_t sequence) { return sequence % 7 == 0 ? 3 * mebibyte : std::size_t{100}; };
    if (self.rank == 2) {
      for (std::uint64_t sequence = 0; sequence < count; ++sequence) {
        if (sequence == static_cast<std::uint64_t>(kill_after)) raise(SIGKILL);
        const RecordKey key{2, sequence, 0};
        for (std::uint32_t peer = 0; peer < 2; ++peer) {
          if (self.channel->send(peer, key, make_record(key, peer, bytes(sequence))) != Status::ok) return 1;
        }
      }
      if (!eventually([&] { return self.channel->flushed(); })) return 2;
      raise(SIGKILL);
    }
    if (!becomes_lost(*self.channel, {2, count, 0})) return 3;
    std::uint64_t arrived = 0;
    for (; arrived < count; ++arrived) {
      const RecordKey key{2, arrived, 0};
      Record record;
      if (self.channel->find(key, &record) != Arrival::arrived) break;
      if (*record != *make_record(key, self.rank, bytes(arrived))) return 4;
    }
    for (std::uint64_t sequence = arrived; sequence < count; ++sequence) {
      Record record;
      if (self.channel->find({2, sequence, 0}, &record) != Arrival::lost) return 5;
    }
    if (kill_after == 1000 && arrived != count) return 6;
    if (self.channel->send(2, {self.rank, 1, 0}, make_record({}, 2, 1)) != Status::connection_lost) return 7;
    // The others go on.
    const std::uint32_t other = 1 - self.rank;
    const RecordKey own{self.rank, 9, 9};
    if (self.channel->send(other, own, make_record(own, other, 5000)) != Status::ok) return 8;
    if (await_record(*self.channel, {other, 9, 9}) == nullptr) return 9;
    return eventually([&] { return self.channel->flushed(); }) ? 0 : 10;
  });
  CHECK(statuses == std::vector<int>{0, 0, 1000 + SIGKILL});
}

// Rank 0 is real and the root, rank 1 raw and connected with it.
struct RawPair {
  RawPair() : id(stamped_id(*rendezvous)), raw(id, 1, 2, RawRank::Role::dials) {
    std::barrier real_init(2);
    std::thread thread([&] { real = join(*rendezvous, id, 0, 2, [&] { real_init.arrive_and_wait(); }); });
    real_init.arrive_and_wait();
    try {
      raw.join(0);
    } catch (...) {
      raw.session() = Socket();
      thread.join();
      throw;
    }
    thread.join();
    INFO(real.why);
    REQUIRE(real.agreed);
  }
  Channel& channel() const { return *real.channel; }

  std::unique_ptr<Rendezvous> rendezvous = Rendezvous::create("lo");
  UniqueId id;
  RawRank raw;
  Joined real;
};

TEST_CASE("an incomplete record of a peer that closes, or half closes, is lost") {
  RawPair pair;
  pair.raw.send_record(0, {1, 1, 0}, WireBytes(500, 1));
  PeerHeader header = pair.raw.header(PeerFrame::record, 0, 1000);
  header.sequence = 2;
  pair.raw.send_frame(header, WireBytes(999, 2));
  REQUIRE(await_record(pair.channel(), {1, 1, 0}) != nullptr);
  Record record;
  CHECK(pair.channel().find({1, 2, 0}, &record) == Arrival::awaited);
  SECTION("closed") { pair.raw.link() = Socket(); }
  SECTION("half closed") { shutdown(pair.raw.link().descriptor(), SHUT_WR); }
  CHECK(becomes_lost(pair.channel(), {1, 2, 0}));
  CHECK(pair.channel().find({1, 1, 0}, &record) == Arrival::arrived);
  CHECK(pair.channel().buffered_bytes() == 500);
  CHECK(pair.channel().send(1, {0, 1, 0}, make_record({}, 1, 1)) == Status::connection_lost);
}

TEST_CASE("a record that trickles in arrives whole") {
  RawPair pair;
  PeerHeader header = pair.raw.header(PeerFrame::record, 0, 20);
  header.sequence = 3;
  WireBytes frame(peer_header_bytes + 20, 7);
  const PeerHeaderBytes encoded = encode_peer_header(header);
  std::copy(encoded.begin(), encoded.end(), frame.begin());
  for (const std::uint8_t byte : frame) {
    pair.raw.send(WireBytes{byte});
    std::this_thread::sleep_for(1ms);
  }
  const Record record = await_record(pair.channel(), {1, 3, 0});
  REQUIRE(record != nullptr);
  CHECK(*record == std::vector<std::byte>(20, std::byte{7}));
}

TEST_CASE("frames against the protocol end the connection") {
  RawPair pair;
  RawRank& raw = pair.raw;
  SECTION("garbage") { raw.send(WireBytes(4096, 0xa5)); }
  SECTION("a record above the limit") {
    auto header = raw.header(PeerFrame::record, 0, max_record_bytes + 1);
    raw.send_frame(header);
  }
  SECTION("a rank that the connection does not stand for") {
    auto header = raw.header(PeerFrame::record, 0, 0);
    header.sender = 0;
    raw.send_frame(header);
  }
  SECTION("a rank beyond the count") {
    auto header = raw.header(PeerFrame::record, 0, 0);
    header.sender = 2;
    raw.send_frame(header);
  }
  SECTION("a second proof") { raw.prove(0); }
  SECTION("a fence message of no known type") {
    raw.send_frame(raw.header(PeerFrame::fence, 0, fence_message_bytes), WireBytes(fence_message_bytes, 0xff));
  }
  SECTION("a fence message of another length") {
    raw.send_frame(raw.header(PeerFrame::fence, 0, fence_message_bytes - 1), WireBytes(fence_message_bytes - 1));
  }
  SECTION("a proof with another secret") {
    raw.send_frame(raw.header(PeerFrame::proof, 0, secret_bytes), WireBytes(secret_bytes, 1));
  }
  CHECK(raw.closed_within(10s));
  CHECK(becomes_lost(pair.channel(), {1, 1, 0}));
}

TEST_CASE("frames for a channel that is gone are discarded, the connection stays") {
  RawPair pair;
  auto header = pair.raw.header(PeerFrame::record, 0, 3 * mebibyte);
  header.nonce += 1;
  pair.raw.send_frame(header, WireBytes(3 * mebibyte));
  pair.raw.send_record(0, {1, 1, 0}, WireBytes(10));
  CHECK(await_record(pair.channel(), {1, 1, 0}) != nullptr);
  CHECK(pair.channel().buffered_bytes() == 10);
  pair.real.channel.reset();
  pair.raw.send_record(0, {1, 2, 0}, WireBytes(10));
  CHECK_FALSE(pair.raw.closed_within(200ms));
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages >> pages;
  return pages * 4096;
}

TEST_CASE("memory follows what has arrived, not what was announced") {
  RawPair pair;
  const std::size_t before = resident_bytes();
  pair.raw.send_frame(pair.raw.header(PeerFrame::record, 0, max_record_bytes), WireBytes(5 * mebibyte));
  std::this_thread::sleep_for(200ms);
  CHECK(resident_bytes() < before + 400 * mebibyte);
  Record record;
  CHECK(pair.channel().find({1, 0, 0}, &record) == Arrival::awaited);
}

TEST_CASE("a peer that does not read delays nobody but itself") {
  const auto root = Rendezvous::create("lo");
  const auto second = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*root);
  RawRank raw(id, 2, 3, RawRank::Role::dials);
  std::vector<Joined> joined(2);
  std::barrier real_init(3);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      joined[rank] = join(rank == 0 ? *root : *second, id, rank, 3, [&] { real_init.arrive_and_wait(); });
    });
  }
  real_init.arrive_and_wait();
  raw.take_verdict();
  raw.enter();
  raw.hear_peers();
  raw.dial(1);
  raw.send(encode_greeting(raw.greeting(1)));
  raw.prove(1);
  Socket to_second = std::move(raw.link());
  raw.dial(0);
  raw.send(encode_greeting(raw.greeting(0)));
  raw.prove(0);
  raw.report("");
  CHECK(raw.hear_result().agreed);
  for (std::thread& thread : threads) thread.join();
  REQUIRE(joined[0].agreed);
  Channel& channel = *joined[0].channel;
  const auto big = make_record({}, 2, 16 * mebibyte);
  for (std::uint64_t sequence = 0; sequence < 4; ++sequence) {
    REQUIRE(channel.send(2, {0, sequence, 0}, big) == Status::ok);
    REQUIRE(channel.send(1, {0, sequence, 0}, big) == Status::ok);
  }
  CHECK(await_record(*joined[1].channel, {0, 3, 0}) != nullptr);
  CHECK_FALSE(channel.flushed());
  CHECK(channel.buffered_bytes() >= 48 * mebibyte);
  raw.link() = Socket();
  CHECK(eventually([&] { return channel.flushed(); }));
  CHECK(channel.buffered_bytes() == 0);
}

TEST_CASE("a peer whose channel is destroyed is lost, what it sent is not") {
  const std::size_t process_count = GENERATE(1u, 2u);
  CAPTURE(process_count);
  const Processes processes(process_count);
  auto joined = join_all(processes.all(), 2);
  REQUIRE(joined[1].agreed);
  REQUIRE(joined[0].channel->send(1, {0, 1, 0}, make_record({}, 1, 2 * mebibyte)) == Status::ok);
  joined[0].channel.reset();
  CHECK(becomes_lost(*joined[1].channel, {0, 2, 0}));
  CHECK(await_record(*joined[1].channel, {0, 1, 0}) != nullptr);
  CHECK(joined[1].channel->send(0, {1, 1, 0}, make_record({}, 0, 1)) == Status::connection_lost);
  CHECK(joined[1].channel->flushed());
}

}  // namespace
}  // namespace zipccl::test
