#include <map>
#include <set>

#include "switcher/agreements.hpp"
#include "switcher/limits.hpp"
#include "switcher/lineage.hpp"
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
  void move(std::uint64_t nonce, const Place& to) override {
    child = nonce;
    place = to;
  }
  std::optional<Verdict> verdict;
  std::uint64_t child = 0;
  std::optional<Place> place;

 private:
  std::uint32_t rank_;
  std::vector<std::uint32_t>* order_;
};

struct Room {
  Room() { REQUIRE(agreements.issue(&ticket) == Status::ok); }

  std::string join(std::uint32_t rank, std::uint32_t rank_count) {
    recorders.push_back(std::make_shared<Recorder>(rank, &order));
    return agreements.join(ticket, {}, make_hello(rank, rank_count), recorders.back());
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

// Children of a communicator that was agreed.
struct Family {
  Family() { agreements.admit_children(parent); }

  // Parent's rank `rank` of `rank_count` says hello to the parent's split `number`.
  std::string split(std::uint32_t rank, std::uint32_t rank_count, std::int32_t color, std::int32_t key = 0,
                    std::uint64_t number = 0) {
    const Descent descent{Descent::Kind::split, parent.nonce, number, 0};
    Hello hello = make_hello(rank, rank_count);
    hello.choice = {color, key};
    return join(descent, hello);
  }
  std::string shrink(std::uint32_t rank, std::uint32_t rank_count) {
    return join({Descent::Kind::shrink, parent.nonce, 0, 5}, make_hello(rank, rank_count));
  }
  std::string join(const Descent& descent, const Hello& hello) {
    ranks[hello.rank] = std::make_shared<Recorder>(hello.rank, &order);
    const Ticket ticket = descend(parent, descent);
    const std::string refusal = agreements.check(ticket, descent);
    return refusal.empty() ? agreements.join(ticket, descent, hello, ranks[hello.rank]) : refusal;
  }
  Ticket split_ticket(std::uint64_t number = 0) const {
    return descend(parent, {Descent::Kind::split, parent.nonce, number, 0});
  }
  std::vector<Agreed> ask(std::uint32_t rank, std::uint64_t number = 0) {
    return agreements.decide(split_ticket(number).nonce, rank);
  }
  void check_place(std::uint32_t rank, std::uint32_t place, std::uint32_t count) {
    CAPTURE(rank);
    REQUIRE(ranks[rank]->verdict);
    CHECK(ranks[rank]->verdict->compressed);
    CHECK(ranks[rank]->verdict->links.size() == std::size_t{count} * count);
    REQUIRE(ranks[rank]->place);
    CHECK(ranks[rank]->place->rank == place);
    CHECK(ranks[rank]->place->rank_count == count);
  }
  void check_native(std::uint32_t rank, const std::string& reason) {
    CAPTURE(rank);
    REQUIRE(ranks[rank]->verdict);
    CHECK_FALSE(ranks[rank]->verdict->compressed);
    CHECK(ranks[rank]->verdict->reason == reason);
    CHECK_FALSE(ranks[rank]->place);
  }

  Agreements agreements;
  Ticket parent{4711, {1, 2, 3}};
  std::vector<std::uint32_t> order;
  std::map<std::uint32_t, std::shared_ptr<Recorder>> ranks;
};

TEST_CASE("a split is decided for all its colors at once, each ranked by key and by rank in the parent") {
  Family family;
  REQUIRE(family.split(3, 6, 7, 5).empty());
  REQUIRE(family.split(0, 6, 7, 5).empty());
  REQUIRE(family.split(1, 6, 0, -2).empty());
  REQUIRE(family.split(2, 6, 7, -1).empty());
  REQUIRE(family.split(4, 6, -1).empty());
  REQUIRE(family.split(5, 6, 0, -3).empty());
  CHECK(family.agreements.child_is_open());
  const auto agreed = family.ask(1);
  CHECK_FALSE(family.agreements.child_is_open());
  CHECK(family.order.back() == 1);
  CHECK(family.order.size() == 6);
  family.check_place(2, 0, 3);
  family.check_place(0, 1, 3);
  family.check_place(3, 2, 3);
  family.check_place(5, 0, 2);
  family.check_place(1, 1, 2);
  family.check_native(4, "it takes no part in the split");
  REQUIRE(agreed.size() == 2);
  CHECK(agreed[0].nonce == ticket_of_color(family.split_ticket(), 0).nonce);
  CHECK(agreed[0].nonce == family.ranks[5]->child);
  CHECK(agreed[0].participants.at(1).lock() == family.ranks[1]);
  CHECK(agreed[1].nonce == family.ranks[3]->child);
  CHECK(agreed[1].participants.at(2).lock() == family.ranks[3]);

  // And each may have children of its own.
  const Ticket child = ticket_of_color(family.split_ticket(), 7);
  const Descent descent{Descent::Kind::split, child.nonce, 0, 0};
  CHECK(family.agreements.check(descend(child, descent), descent).empty());
}

TEST_CASE("two splits of a parent do not mix, whichever is decided first") {
  Family family;
  REQUIRE(family.split(0, 2, 0, 0, 0).empty());
  REQUIRE(family.split(1, 2, 0, 0, 1).empty());
  REQUIRE(family.split(1, 2, 0, 0, 0).empty());
  const auto first_of_rank_1 = family.ranks[1];
  REQUIRE(family.split(0, 2, 0, 9, 1).empty());
  REQUIRE(family.ask(0, 1).size() == 1);
  family.check_place(0, 1, 2);
  CHECK_FALSE(first_of_rank_1->verdict);
  REQUIRE(family.ask(1, 0).size() == 1);
  CHECK(first_of_rank_1->place->rank == 1);
}

TEST_CASE("a rank of the parent that says no hello to a split makes all its children native") {
  Family family;
  REQUIRE(family.split(0, 3, 0).empty());
  REQUIRE(family.split(1, 3, 1).empty());
  CHECK(family.ask(0).empty());
  family.check_native(0, "rank 2 of its parent said no hello to the split");
  family.check_native(1, "rank 2 of its parent said no hello to the split");
  // It comes later: nobody waits for it, nor it for anyone.
  REQUIRE(family.split(2, 3, 1).empty());
  CHECK(family.ask(2).empty());
  family.check_native(2, "rank 0 of its parent said no hello to the split");
}

TEST_CASE("a rank that leaves a split makes its own child native, and none if it has none") {
  Family family;
  REQUIRE(family.split(0, 5, 0).empty());
  REQUIRE(family.split(1, 5, 0).empty());
  REQUIRE(family.split(2, 5, 1).empty());
  REQUIRE(family.split(3, 5, 1).empty());
  REQUIRE(family.split(4, 5, -1).empty());
  family.agreements.leave(family.split_ticket().nonce, 4, "left");
  family.agreements.leave(family.split_ticket().nonce, 3, "withdrew");
  CHECK(family.ask(0).size() == 1);
  family.check_place(0, 0, 2);
  family.check_place(1, 1, 2);
  family.check_native(2, "rank 3 of its parent withdrew");
}

TEST_CASE("a split that all have left is forgotten") {
  Family family;
  REQUIRE(family.split(0, 2, 0).empty());
  REQUIRE(family.split(1, 2, -1).empty());
  family.agreements.leave(family.split_ticket().nonce, 0, "withdrew");
  CHECK(family.agreements.child_is_open());
  family.agreements.leave(family.split_ticket().nonce, 1, "left");
  CHECK_FALSE(family.agreements.child_is_open());
  REQUIRE(family.split(1, 2, 0).empty());
  REQUIRE(family.split(0, 2, 0).empty());
  CHECK(family.ask(1).size() == 1);
}

TEST_CASE("refusals and differences of a split's ranks concern their child") {
  Family family;
  Hello refusing = make_hello(1, 4);
  refusing.choice = {0, 0};
  refusing.refusal = "no device";
  REQUIRE(family.split(0, 4, 0).empty());
  REQUIRE(family.join({Descent::Kind::split, family.parent.nonce, 0, 0}, refusing).empty());
  REQUIRE(family.split(2, 4, 1).empty());
  REQUIRE(family.split(3, 4, 1).empty());
  CHECK(family.ask(2).size() == 1);
  family.check_native(0, "rank 1: no device");
  family.check_place(3, 1, 2);
}

TEST_CASE("nobody waits at exit for a nonblocking child, about which nobody asks") {
  Family family;
  Hello hello = make_hello(0, 2);
  hello.choice = {0, 0};
  hello.nonblocking = true;
  REQUIRE(family.join({Descent::Kind::split, family.parent.nonce, 0, 0}, hello).empty());
  CHECK_FALSE(family.agreements.child_is_open());
}

TEST_CASE("a shrink is agreed like a communicator of its own, and may have children") {
  Family family;
  REQUIRE(family.shrink(1, 2).empty());
  REQUIRE(family.shrink(0, 2).empty());
  const Ticket child = descend(family.parent, {Descent::Kind::shrink, family.parent.nonce, 0, 5});
  const auto agreed = family.agreements.decide(child.nonce, 0);
  REQUIRE(agreed.size() == 1);
  CHECK(agreed[0].nonce == child.nonce);
  CHECK(family.order == std::vector<std::uint32_t>{1, 0});
  CHECK_FALSE(family.ranks[1]->place);  // it knows
  const Descent descent{Descent::Kind::shrink, child.nonce, 0, 0};
  CHECK(family.agreements.check(descend(child, descent), descent).empty());
}

TEST_CASE("forged descents are refused") {
  Family family;
  const Descent good{Descent::Kind::split, family.parent.nonce, 0, 0};
  const Ticket ticket = descend(family.parent, good);
  REQUIRE(family.agreements.check(ticket, good).empty());
  const char* const refusal = "unknown parent communicator or secret";
  Ticket forged = ticket;
  forged.secret[0] ^= 1;
  CHECK(family.agreements.check(forged, good) == refusal);
  forged = ticket;
  forged.nonce += 1;
  CHECK(family.agreements.check(forged, good) == refusal);
  CHECK(family.agreements.check(ticket, {Descent::Kind::shrink, family.parent.nonce, 0, 0}) == refusal);
  CHECK(family.agreements.check(ticket, {Descent::Kind::split, family.parent.nonce, 1, 0}) == refusal);
  CHECK(family.agreements.check(ticket, {Descent::Kind::split, family.parent.nonce + 1, 0, 0}) == refusal);
  // A child is no id, and what was never agreed is no parent.
  REQUIRE(family.split(0, 2, 0).empty());
  CHECK_FALSE(family.agreements.check(ticket).empty());
  Ticket unused;
  REQUIRE(family.agreements.issue(&unused) == Status::ok);
  const Descent orphan{Descent::Kind::split, unused.nonce, 0, 0};
  CHECK(family.agreements.check(descend(unused, orphan), orphan) == refusal);
}

TEST_CASE("the oldest parent is forgotten first") {
  Family family;
  const Descent descent{Descent::Kind::split, family.parent.nonce, 0, 0};
  Ticket other = family.parent;
  for (std::size_t i = 1; i < max_parents; ++i) {
    ++other.nonce;
    family.agreements.admit_children(other);
    family.agreements.admit_children(other);  // once is enough
  }
  CHECK(family.agreements.check(descend(family.parent, descent), descent).empty());
  ++other.nonce;
  family.agreements.admit_children(other);
  CHECK_FALSE(family.agreements.check(descend(family.parent, descent), descent).empty());
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
