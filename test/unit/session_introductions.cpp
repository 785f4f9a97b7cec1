// The root's part in connecting the ranks, without sockets.
#include "switcher/introductions.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/session_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;

// Keeps what its rank was told.
class Listening final : public Participant {
 public:
  Listening(std::uint32_t rank, std::vector<std::uint32_t>* order) : rank_(rank), order_(order) {}
  void answer(const std::shared_ptr<const WireBytes>& frame, More more) override {
    const ByteView body = ByteView(*frame).subspan(frame_header_bytes);
    if (more == More::expected) {
      peers = decode_peers(body);
    } else {
      result = decode_result(body);
      order_->push_back(rank_);
    }
  }
  void move(std::uint64_t, const Place&) override {}
  std::optional<std::vector<PeerAddress>> peers;
  std::optional<ConnectResult> result;

 private:
  std::uint32_t rank_;
  std::vector<std::uint32_t>* order_;
};

constexpr std::uint64_t nonce = 17;

PeerAddress address_of(std::uint32_t rank) {
  PeerAddress address;
  address.endpoint.port = static_cast<std::uint16_t>(1000 + rank);
  return address;
}

struct Room {
  explicit Room(std::uint32_t rank_count) {
    Participants participants;
    for (std::uint32_t rank = 0; rank < rank_count; ++rank) {
      ranks.push_back(std::make_shared<Listening>(rank, &order));
      participants.emplace(rank, ranks.back());
    }
    introductions.begin(nonce, participants);
  }
  bool enter(std::uint32_t rank) { return introductions.enter(nonce, rank, address_of(rank)); }
  bool report(std::uint32_t rank, const std::string& failure = "") {
    return introductions.report(nonce, rank, failure);
  }
  void check_native(const std::string& reason) const {
    for (const std::uint32_t rank : order) {
      CHECK_FALSE(ranks[rank]->result->agreed);
      CHECK(ranks[rank]->result->reason == reason);
    }
  }

  Introductions introductions;
  std::vector<std::uint32_t> order;  // in which ranks heard the result
  std::vector<std::shared_ptr<Listening>> ranks;
};

TEST_CASE("all hear of all when the last has entered, and agree when the last has reported") {
  Room room(3);
  CHECK(room.enter(2));
  CHECK(room.enter(0));
  CHECK_FALSE(room.ranks[0]->peers);
  CHECK(room.enter(1));
  for (const auto& rank : room.ranks) {
    REQUIRE(rank->peers);
    REQUIRE(rank->peers->size() == 3);
    for (std::uint32_t peer = 0; peer < 3; ++peer) CHECK((*rank->peers)[peer].endpoint.port == 1000 + peer);
  }
  CHECK(room.report(1));
  CHECK(room.report(1));
  CHECK(room.report(0));
  CHECK(room.order.empty());
  CHECK(room.report(2));
  CHECK(room.order == std::vector<std::uint32_t>{2, 1, 0});
  for (const auto& rank : room.ranks) CHECK(rank->result->agreed);
}

TEST_CASE("one rank that fails decides for all at once") {
  Room room(3);
  SECTION("before it entered") {
    CHECK(room.enter(0));
    CHECK(room.report(1, "no port"));
  }
  SECTION("after all have entered") {
    for (std::uint32_t rank = 0; rank < 3; ++rank) CHECK(room.enter(rank));
    CHECK(room.report(0));
    CHECK(room.report(1, "no port"));
  }
  CHECK(room.order == std::vector<std::uint32_t>{2, 1, 0});
  room.check_native("rank 1: no port");
  // What crosses the result is no fault.
  CHECK(room.enter(2));
  CHECK(room.report(2));
  CHECK(room.order.size() == 3);
}

TEST_CASE("a rank that leaves decides for the others") {
  Room room(3);
  CHECK(room.enter(0));
  room.introductions.leave(nonce, 2, "is gone");
  CHECK(room.order == std::vector<std::uint32_t>{1, 0});
  room.check_native("rank 2 is gone");
  room.introductions.leave(nonce, 1, "is gone, too");
  CHECK(room.order.size() == 2);
}

TEST_CASE("when time is up the first rank that is missing is blamed") {
  Room room(3);
  CHECK(room.enter(0));
  SECTION("for not entering") {
    CHECK(room.enter(2));
    room.introductions.expire(nonce);
    room.check_native("rank 1 did not connect in time");
  }
  SECTION("for not reporting") {
    CHECK(room.enter(1));
    CHECK(room.enter(2));
    CHECK(room.report(0));
    CHECK(room.report(1));
    room.introductions.expire(nonce);
    room.check_native("rank 2 was not connected with all others in time");
  }
  CHECK(room.order.size() == 3);
  room.introductions.expire(nonce);
  CHECK(room.order.size() == 3);
}

TEST_CASE("ranks can neither enter twice nor report before all have entered") {
  Room room(2);
  CHECK(room.enter(0));
  CHECK_FALSE(room.enter(0));
  CHECK_FALSE(room.report(0));
  CHECK(room.order.empty());
}

TEST_CASE("a connection that died unnoticed is not told") {
  Room room(2);
  room.ranks.pop_back();
  CHECK(room.enter(0));
  CHECK(room.report(0, "alone"));
  CHECK(room.order == std::vector<std::uint32_t>{0});
}

}  // namespace
}  // namespace zipccl::test
