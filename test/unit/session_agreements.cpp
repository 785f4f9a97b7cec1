#include <set>

#include "switcher/agreements.hpp"
#include "switcher/limits.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/session_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;

// Records its rank when it is answered.
class Recorder final : public Participant {
 public:
  Recorder(std::uint32_t rank, std::vector<std::uint32_t>* order) : rank_(rank), order_(order) {}
  void answer(const std::shared_ptr<const WireBytes>& frame, More) override {
    verdict = decode_verdict(ByteView(*frame).subspan(frame_header_bytes));
    order_->push_back(rank_);
  }
  std::optional<Verdict> verdict;

 private:
  std::uint32_t rank_;
  std::vector<std::uint32_t>* order_;
};

struct Room {
  Room() { REQUIRE(agreements.issue(&ticket) == Status::ok); }

  std::string join(std::uint32_t rank, std::uint32_t rank_count) {
    recorders.push_back(std::make_shared<Recorder>(rank, &order));
    return agreements.join(ticket.nonce, make_hello(rank, rank_count), recorders.back());
  }
  std::string reason() const {
    REQUIRE_FALSE(order.empty());
    CHECK_FALSE(recorders.front()->verdict->compressed);
    return recorders.front()->verdict->reason;
  }

  Agreements agreements;
  Ticket ticket;
  std::vector<std::uint32_t> order;
  std::vector<std::shared_ptr<Recorder>> recorders;
};

TEST_CASE("the first question answers all, the asking rank last, and closes the id") {
  Room room;
  for (std::uint32_t rank = 0; rank < 4; ++rank) REQUIRE(room.join(rank, 4).empty());
  room.agreements.decide(room.ticket.nonce, 1);
  CHECK(room.order == std::vector<std::uint32_t>{0, 2, 3, 1});
  for (const auto& recorder : room.recorders) CHECK(recorder->verdict->compressed);
  CHECK_FALSE(room.agreements.check(room.ticket).empty());
  room.agreements.decide(room.ticket.nonce, 0);
  CHECK(room.order.size() == 4);
  CHECK_FALSE(room.join(2, 4).empty());
}

TEST_CASE("a rank that is missing at the first question makes it native, and is refused later") {
  Room room;
  REQUIRE(room.join(0, 3).empty());
  REQUIRE(room.join(2, 3).empty());
  room.agreements.decide(room.ticket.nonce, 2);
  CHECK(room.reason() == "rank 1 runs without zipccl or cannot connect to the process that made the ncclUniqueId");
  CHECK(room.join(1, 3) == "unknown id or secret, or a verdict was given without this rank");
}

TEST_CASE("ranks that contradict each other are refused, and the verdict says so") {
  Room room;
  REQUIRE(room.join(1, 2).empty());
  std::string refusal;
  SECTION("the same rank twice") {
    refusal = room.join(1, 2);
    CHECK(refusal == "rank 1 said hello twice");
  }
  SECTION("another rank count") {
    refusal = room.join(0, 3);
    CHECK(refusal == "rank 0 counts 3 ranks, rank 1 2");
  }
  SECTION("a rank beyond the count") {
    refusal = room.join(2, 2);
    CHECK(refusal == "rank 2 is not below its rank count, 2");
  }
  SECTION("too many ranks") {
    refusal = room.join(0, max_rank_count + 1);
    CHECK(refusal == "4097 ranks are more than a session holds, 4096");
  }
  SECTION("another protocol") {
    refusal = "rank 0 speaks session protocol 9, the root 1";
    room.agreements.object(room.ticket.nonce, refusal);
  }
  room.agreements.object(room.ticket.nonce, "a later objection");
  room.agreements.decide(room.ticket.nonce, 1);
  CHECK(room.reason() == refusal);
}

TEST_CASE("a rank that leaves before the question makes it native") {
  Room room;
  for (std::uint32_t rank = 0; rank < 3; ++rank) REQUIRE(room.join(rank, 3).empty());
  room.agreements.leave(room.ticket.nonce, 2, "withdrew");
  room.agreements.decide(room.ticket.nonce, 0);
  CHECK(room.reason() == "rank 2 withdrew");
  CHECK(room.order == std::vector<std::uint32_t>{1, 0});
}

TEST_CASE("an id ends with the last rank that leaves it") {
  Room room;
  REQUIRE(room.join(0, 2).empty());
  REQUIRE(room.join(1, 2).empty());
  room.agreements.leave(room.ticket.nonce, 0, "withdrew");
  CHECK(room.agreements.check(room.ticket).empty());
  room.agreements.leave(room.ticket.nonce, 1, "withdrew");
  CHECK_FALSE(room.agreements.check(room.ticket).empty());
}

TEST_CASE("a connection that died unnoticed is not answered") {
  Room room;
  REQUIRE(room.join(0, 2).empty());
  REQUIRE(room.join(1, 2).empty());
  room.recorders.pop_back();
  room.agreements.decide(room.ticket.nonce, 0);
  CHECK(room.order == std::vector<std::uint32_t>{0});
}

TEST_CASE("ids have secrets of their own, and the oldest unused is forgotten first") {
  Room room;
  REQUIRE(room.join(0, 2).empty());
  Ticket oldest_unused;
  Ticket last;
  REQUIRE(room.agreements.issue(&oldest_unused) == Status::ok);
  std::set<std::array<std::uint8_t, secret_bytes>> secrets = {room.ticket.secret, oldest_unused.secret};
  for (std::size_t i = 2; i < max_unused_ids; ++i) {
    REQUIRE(room.agreements.issue(&last) == Status::ok);
    secrets.insert(last.secret);
  }
  CHECK(secrets.size() == max_unused_ids);
  CHECK(room.agreements.check(oldest_unused).empty());
  REQUIRE(room.agreements.issue(&last) == Status::ok);
  CHECK_FALSE(room.agreements.check(oldest_unused).empty());
  CHECK(room.agreements.check(room.ticket).empty());
  CHECK(room.agreements.check(last).empty());
  last.secret[15] ^= 1;
  CHECK_FALSE(room.agreements.check(last).empty());
}

}  // namespace
}  // namespace zipccl::test
