// When a rank wishes compression, more room, or none, from what it has seen.
#include "codec/format.hpp"
#include "interpose/config.hpp"
#include "interpose/promotion.hpp"
#include "test/unit/catch.hpp"

using namespace zipccl::interpose;

namespace {

constexpr int ranks = 4;
constexpr std::uint64_t tiles = 256;
constexpr Rooms gather_rooms{1, Promotion::most_gather_room};

// A look at tiles that need so many bytes each, in quarters.
Sight sight(std::uint64_t quarter_bytes) { return {tiles, tiles * quarter_bytes / 4}; }

std::optional<std::uint32_t> room_after(Promotion& promotion, std::uint64_t quarter_bytes) {
  for (unsigned i = 0; i < Promotion::needed_sights; ++i) {
    promotion.saw(sight(quarter_bytes), i);
  }
  return promotion.wish().pool_bytes;
}

// Calls of one chunk each, whose messages have `message_tiles` tiles.
class Calls {
 public:
  Calls(Promotion& promotion, std::uint64_t first) : promotion_(promotion), call_(first) {}
  // `overflowing` ranks' messages lack so many bytes a tile. True when the wish changed.
  bool make(int overflowing, std::uint64_t lacking_bytes) {
    constexpr std::uint64_t message_tiles = 1000;
    usage_.chunks += 1;
    usage_.values += ranks * message_tiles * 1024;
    usage_.overflow_messages += static_cast<std::uint64_t>(overflowing);
    usage_.overflow_bytes += static_cast<std::uint64_t>(overflowing) * (message_tiles * lacking_bytes + 1008);
    return promotion_.used(usage_, call_++);
  }
  // Until the wish changes; the number of calls, at most `limit`.
  int make_until_change(int overflowing, std::uint64_t lacking_bytes, int limit) {
    int made = 0;
    while (made < limit && !make(overflowing, lacking_bytes)) {
      ++made;
    }
    return made;
  }
  std::uint64_t chunks() const { return usage_.chunks; }
  std::uint64_t next() const { return call_; }

 private:
  Promotion& promotion_;
  std::uint64_t call_;
  Usage usage_;
};

}  // namespace

TEST_CASE("the room is the smallest that holds what was seen, with a quarter to spare") {
  const auto room = [](std::uint64_t quarter_bytes) {
    Promotion promotion(gather_rooms, false, ranks);
    return room_after(promotion, quarter_bytes);
  };
  CHECK(room(0) == 1u);
  CHECK(room(3) == 1u);
  CHECK(room(4) == 4u);
  CHECK(room(12) == 4u);
  CHECK(room(13) == 16u);
  CHECK(room(204) == 64u);
  CHECK(room(206) == std::nullopt);
  CHECK(room(4 * 1024) == std::nullopt);
}

TEST_CASE("the user's room is the least, and more is tried above it only") {
  const auto room = [](std::uint32_t least, std::uint64_t quarter_bytes) {
    Promotion promotion({least, Promotion::most_gather_room}, false, ranks);
    return room_after(promotion, quarter_bytes);
  };
  CHECK(room(0, 0) == 0u);
  CHECK(room(0, 2) == 1u);
  CHECK(room(10, 0) == 10u);
  CHECK(room(10, 40) == 16u);
  CHECK(room(1024, 3000) == 1024u);
}

TEST_CASE("transfers get no more room than rule R9 leaves their staging") {
  constexpr std::uint64_t count = 1 << 20;
  constexpr Rooms transfer_rooms{1, Promotion::most_transfer_room};
  for (std::uint64_t quarter_bytes = 0; quarter_bytes < 300; ++quarter_bytes) {
    CAPTURE(quarter_bytes);
    Promotion promotion(transfer_rooms, false, ranks);
    const auto room = room_after(promotion, quarter_bytes);
    REQUIRE(room.has_value() == (5 * quarter_bytes <= 16 * Promotion::most_transfer_room));
    if (room) {
      const auto layout = zipccl::codec::Layout::of(count, pool_fraction_of(*room));
      REQUIRE(static_cast<double>(layout.static_bytes) <= 0.72 * 2 * count);
    }
  }
  Promotion promotion({Promotion::most_transfer_room + 1, Promotion::most_transfer_room}, false, ranks);
  CHECK(room_after(promotion, 0) == Promotion::most_transfer_room + 1);
}

TEST_CASE("the look that needs most counts") {
  Promotion promotion(gather_rooms, false, ranks);
  promotion.saw(sight(160), 0);
  CHECK_FALSE(promotion.ready());
  promotion.saw({10, 0}, 1);
  CHECK(promotion.wish().pool_bytes == 64u);
}

TEST_CASE("what does not compress is looked at more and more rarely") {
  Promotion promotion(gather_rooms, false, ranks);
  std::uint64_t looks = 0;
  std::uint64_t first_pause_end = 0;
  for (std::uint64_t call = 0; call < 100'000; ++call) {
    if (promotion.wants_look(call)) {
      ++looks;
      promotion.saw(sight(4000), call);
      first_pause_end = looks == 3 ? call : first_pause_end;
    }
  }
  CHECK(first_pause_end == 1 + Promotion::first_pause);
  CHECK(looks <= 14);
  CHECK_FALSE(promotion.ready());
  CHECK(std::string(promotion.reason()) == "its values do not compress well enough");
}

TEST_CASE("values that become compressible are noticed after a pause") {
  Promotion promotion(gather_rooms, false, ranks);
  room_after(promotion, 4000);
  std::uint64_t call = 2;
  while (!promotion.wants_look(call)) {
    ++call;
  }
  promotion.saw(sight(0), call);
  promotion.saw(sight(0), call + 1);
  CHECK(promotion.wish().pool_bytes == 1u);
}

TEST_CASE("without memory a rank stays native for a while") {
  Promotion promotion(gather_rooms, false, ranks);
  room_after(promotion, 0);
  REQUIRE(promotion.ready());
  promotion.lacks_memory(2);
  CHECK_FALSE(promotion.ready());
  CHECK_FALSE(promotion.wants_look(3));
  CHECK(promotion.wants_look(2 + Promotion::first_pause));
}

TEST_CASE("calls that all overflow make a rank wish otherwise after a few") {
  Promotion promotion(gather_rooms, true, ranks);
  Calls calls(promotion, 0);
  for (int i = 0; i < 500; ++i) {
    REQUIRE_FALSE(calls.make(0, 0));
  }
  SECTION("by little: more room") {
    CHECK(calls.make_until_change(ranks, 2, 20) == static_cast<int>(Promotion::most_overflows) - 1);
    CHECK(promotion.wish().pool_bytes == 4u);
  }
  SECTION("by more: the room that holds it, at once") {
    CHECK(calls.make_until_change(ranks, 40, 20) == static_cast<int>(Promotion::most_overflows) - 1);
    CHECK(promotion.wish().pool_bytes == 64u);
  }
  SECTION("by too much: native") {
    CHECK(calls.make_until_change(ranks, 800, 20) == static_cast<int>(Promotion::most_overflows) - 1);
    CHECK(promotion.wish() == Wish{});
  }
  SECTION("on one rank only") {
    CHECK(calls.make_until_change(1, 800, 20) == static_cast<int>(Promotion::most_overflows) - 1);
    CHECK(promotion.wish() == Wish{});
  }
}

TEST_CASE("rare overflow changes nothing") {
  Promotion promotion(gather_rooms, true, ranks);
  Calls calls(promotion, 0);
  for (int i = 0; i < 5000; ++i) {
    REQUIRE_FALSE(calls.make(i % 25 == 0 ? ranks : 0, 800));
  }
  CHECK(promotion.wish().pool_bytes == 1u);
}

TEST_CASE("more room is followed by still more if that was too little, and then by none") {
  Promotion promotion(gather_rooms, true, ranks);
  Calls calls(promotion, 0);
  REQUIRE(calls.make_until_change(ranks, 2, 20) < 20);
  REQUIRE(promotion.wish().pool_bytes == 4u);
  // Until the switch comes nothing more is asked for.
  CHECK(calls.make_until_change(ranks, 2, 20) == 20);
  promotion.switched({4}, calls.chunks() + 3);
  // Chunks that were enqueued before it still overflow.
  CHECK_FALSE(calls.make(ranks, 30));
  CHECK_FALSE(calls.make(ranks, 30));
  CHECK(calls.make_until_change(0, 0, 100) == 100);
  CHECK(calls.make_until_change(ranks, 20, 20) < 5);
  CHECK(promotion.wish().pool_bytes == 64u);
  promotion.switched({64}, calls.chunks());
  CHECK(calls.make_until_change(ranks, 20, 20) < 5);
  CHECK(promotion.wish() == Wish{});
}

TEST_CASE("room that other ranks asked for counts") {
  Promotion promotion(gather_rooms, true, ranks);
  promotion.switched({16}, 0);
  Calls calls(promotion, 0);
  REQUIRE(calls.make_until_change(ranks, 2, 20) < 20);
  CHECK(promotion.wish().pool_bytes == 64u);
}

TEST_CASE("a class that was made native is looked at again, later each time") {
  Promotion promotion(gather_rooms, true, ranks);
  Calls calls(promotion, 0);
  std::uint64_t last_pause = 0;
  for (int round = 0; round < 3; ++round) {
    REQUIRE(calls.make_until_change(ranks, 800, 20) < 20);
    promotion.switched({}, calls.chunks());
    std::uint64_t call = calls.next();
    while (!promotion.wants_look(call)) {
      ++call;
    }
    CHECK(call - calls.next() > last_pause);
    last_pause = call - calls.next();
    promotion.saw(sight(0), call);
    promotion.saw(sight(0), call + 1);
    REQUIRE(promotion.ready());
    promotion.switched({1}, calls.chunks());
  }
}
