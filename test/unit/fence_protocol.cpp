// The fence's protocol step by step, and its messages as bytes.
#include <array>
#include <chrono>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "switcher/fence_gate.hpp"
#include "switcher/fence_wire.hpp"
#include "test/unit/catch.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;
using Type = FenceMessageType;

const FenceSetting native;
const FenceSetting small_pool{true, 16, 1 << 20};
const FenceSetting large_pool{true, 1024, 1 << 20};

// Participants that exchange messages only when told to.
class Table {
 public:
  explicit Table(const std::vector<std::uint32_t>& ranks, const FenceSetting& initial = {}) {
    for (const std::uint32_t rank : ranks) fences_.emplace(rank, Fence(ranks, rank, initial));
  }
  Fence& operator[](std::uint32_t rank) { return fences_.at(rank); }

  // Delivers all messages of `sender`.
  void deliver_from(std::uint32_t sender) {
    auto messages = std::exchange(fences_.at(sender).outgoing(), {});
    for (const auto& [receiver, message] : messages) REQUIRE(fences_.at(receiver).receive(sender, message));
  }
  void deliver_all() {
    bool any = true;
    while (any) {
      any = false;
      for (auto& [rank, fence] : fences_) {
        any = any || !fence.outgoing().empty();
        deliver_from(rank);
      }
    }
  }
  void wish_all(const FenceSetting& setting) {
    for (auto& [rank, fence] : fences_) fence.wish(setting);
  }
  void calls(std::uint32_t rank, int count, const FenceSetting& expected) {
    for (int i = 0; i < count; ++i) {
      FenceSetting setting;
      REQUIRE(fences_.at(rank).enter(&setting) == Fence::Entry::begun);
      REQUIRE(setting == expected);
    }
  }
  Fence::Entry enter(std::uint32_t rank) {
    FenceSetting setting;
    return fences_.at(rank).enter(&setting);
  }

 private:
  std::map<std::uint32_t, Fence> fences_;
};

}  // namespace

TEST_CASE("all ranks switch at the same call") {
  Table table({0, 1, 2});
  table.calls(0, 3, native);
  table.calls(1, 5, native);
  table.wish_all(small_pool);
  table.deliver_all();
  const int fence = 5 + static_cast<int>(Fence::first_margin);
  table.calls(0, fence - 3, native);
  table.calls(1, fence - 5, native);
  table.calls(2, fence, native);
  for (const std::uint32_t rank : {0u, 1u, 2u}) table.calls(rank, 2, small_pool);
}

TEST_CASE("nothing changes before the last rank has wished") {
  Table table({0, 1, 2});
  table[0].wish(small_pool);
  table[2].wish(small_pool);
  table.deliver_all();
  for (const std::uint32_t rank : {0u, 1u, 2u}) table.calls(rank, 100, native);
  table[1].wish(small_pool);
  table.deliver_all();
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    table.calls(rank, static_cast<int>(Fence::first_margin), native);
    table.calls(rank, 1, small_pool);
  }
}

TEST_CASE("a pair of any two ranks has a fence of its own") {
  Table table({7, 3});
  table.wish_all(small_pool);
  table.deliver_all();
  table.calls(3, 4, native);
  table.calls(7, 4, native);
  table.calls(3, 1, small_pool);
  table.calls(7, 1, small_pool);
}

TEST_CASE("wishes are combined") {
  const std::array<FenceSetting, 3> mixed = {small_pool, large_pool, FenceSetting{true, 64, 1 << 18}};
  CHECK(combine(mixed) == FenceSetting{true, 1024, 1 << 18});
  const std::array<FenceSetting, 2> one_native = {small_pool, native};
  CHECK(combine(one_native) == native);
}

TEST_CASE("any rank gets more room, or makes all native again") {
  Table table({0, 1, 2}, small_pool);
  table.wish_all(small_pool);
  table.deliver_all();
  for (const std::uint32_t rank : {0u, 1u, 2u}) table.calls(rank, 2, small_pool);
  table[2].wish(large_pool);
  table.deliver_all();
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    table.calls(rank, 4, small_pool);
    table.calls(rank, 1, large_pool);
  }
  table[1].wish(native);
  table.deliver_all();
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    table.calls(rank, 4, large_pool);
    table.calls(rank, 1, native);
  }
}

TEST_CASE("a rank that has accepted does not pass the fence before the decision") {
  Table table({0, 1, 2});
  table.wish_all(small_pool);
  table.deliver_from(1);
  table.deliver_from(2);
  table.deliver_from(0);  // proposals
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    table.calls(rank, 4, native);
    CHECK(table.enter(rank) == Fence::Entry::undecided);
    CHECK(table.enter(rank) == Fence::Entry::undecided);
    CHECK(table[rank].calls() == 4);
  }
  table.deliver_from(1);
  CHECK(table.enter(0) == Fence::Entry::undecided);
  table.deliver_from(2);
  table.calls(0, 1, small_pool);
  CHECK(table.enter(1) == Fence::Entry::undecided);
  table.deliver_from(0);
  table.calls(1, 1, small_pool);
  table.calls(2, 1, small_pool);
}

TEST_CASE("a rank beyond the fence has it tried again further on") {
  Table table({0, 1, 2});
  table.wish_all(small_pool);
  table.deliver_from(1);
  table.deliver_from(2);
  table.calls(2, 10, native);  // before the proposal of call 4 arrives
  table.calls(0, 4, native);
  CHECK(table.enter(0) == Fence::Entry::undecided);
  table.deliver_from(0);
  table.deliver_from(2);  // rejects
  table.calls(0, 1, native);
  table.deliver_all();
  const int fence = 10 + static_cast<int>(Fence::first_margin * Fence::margin_growth);
  table.calls(0, fence - 5, native);
  table.calls(1, fence, native);
  table.calls(2, fence - 10, native);
  for (const std::uint32_t rank : {0u, 1u, 2u}) table.calls(rank, 1, small_pool);
}

TEST_CASE("it gives up after some attempts, until somebody wishes something else") {
  Table table({0, 1});
  table.wish_all(small_pool);
  table.deliver_from(1);
  unsigned attempts = 0;
  while (!table[0].outgoing().empty() && table[0].outgoing().back().message.type == Type::propose && attempts < 100) {
    ++attempts;
    table.calls(1, 10'000, native);
    table.deliver_from(0);
    table.deliver_from(1);
  }
  table.deliver_from(0);
  CHECK(attempts == Fence::max_attempts);
  table.calls(0, 1'000'000, native);
  table[0].wish(large_pool);
  table.deliver_all();
  table.calls(1, 1'000'000 + static_cast<int>(Fence::first_margin) - static_cast<int>(table[1].calls()), native);
  table.calls(1, 1, large_pool);
}

TEST_CASE("a wish during a proposal is seen to after it") {
  Table table({0, 1});
  table.wish_all(small_pool);
  table.deliver_from(1);
  table[1].wish(large_pool);
  table.deliver_all();
  table.calls(0, 4, native);
  table.calls(1, 4, native);
  for (const std::uint32_t rank : {0u, 1u}) {
    table.calls(rank, 4, small_pool);
    table.calls(rank, 1, large_pool);
  }
}

TEST_CASE("a class that one rank keeps stays as it is") {
  const std::uint32_t keeper = GENERATE(0u, 1u, 2u);
  Table table({0, 1, 2});
  table[keeper].keep();
  table.wish_all(small_pool);
  table.deliver_all();
  CHECK(table[keeper].settled());
  for (const std::uint32_t rank : {0u, 1u, 2u}) table.calls(rank, 1000, native);
}

TEST_CASE("a rank that starts to keep after it has accepted still switches") {
  Table table({0, 1});
  table.wish_all(small_pool);
  table.deliver_from(1);
  table.deliver_from(0);
  table[1].keep();
  CHECK_FALSE(table[0].settled());
  CHECK_FALSE(table[1].settled());
  table.deliver_all();
  for (const std::uint32_t rank : {0u, 1u}) {
    CHECK_FALSE(table[rank].settled());
    table.calls(rank, 4, native);
    table.calls(rank, 1, small_pool);
    CHECK(table[rank].settled());
  }
  table[0].wish(large_pool);
  table.deliver_all();
  table.calls(0, 1000, small_pool);
}

TEST_CASE("losing a rank cancels what is not decided and freezes the class") {
  Table table({0, 1, 2});
  table.wish_all(small_pool);
  table.deliver_from(1);
  table.deliver_from(2);
  table.deliver_from(0);
  table.deliver_from(1);  // accepts
  table.calls(1, 4, native);
  CHECK(table.enter(1) == Fence::Entry::undecided);
  table[0].lose(2);
  table[1].lose(2);
  table.deliver_from(0);
  table.calls(1, 100, native);
  table.calls(0, 100, native);
  table[0].wish(large_pool);
  table[1].wish(large_pool);
  table.deliver_all();
  table.calls(0, 100, native);
}

TEST_CASE("losing the coordinator leaves an accepted fence undecidable, and nothing else") {
  Table table({0, 1, 2});
  table.wish_all(small_pool);
  table.deliver_from(1);
  table.deliver_from(2);
  table.deliver_from(0);
  table[1].lose(0);
  table.calls(1, 4, native);
  CHECK(table.enter(1) == Fence::Entry::lost);
  CHECK(table.enter(1) == Fence::Entry::lost);
  table[2].lose(1);
  table.calls(2, 4, native);
  CHECK(table.enter(2) == Fence::Entry::undecided);

  Table other({0, 1});
  other[1].lose(0);
  other[1].wish(small_pool);
  other.calls(1, 1000, native);
}

TEST_CASE("a fence that was committed before the loss counts") {
  Table table({0, 1, 2});
  table.wish_all(small_pool);
  table.deliver_all();
  for (const std::uint32_t lost : {0u, 2u}) table[1].lose(lost);
  table.calls(1, 4, native);
  table.calls(1, 10, small_pool);
}

TEST_CASE("what does not belong to the protocol is refused") {
  Table table({0, 1, 2});
  CHECK_FALSE(table[0].receive(5, {Type::wish, 0, 0, small_pool}));
  CHECK_FALSE(table[0].receive(0, {Type::wish, 0, 0, small_pool}));
  CHECK_FALSE(table[0].receive(1, {Type::propose, 1, 4, small_pool}));
  CHECK_FALSE(table[1].receive(2, {Type::propose, 1, 4, small_pool}));
  CHECK_FALSE(table[1].receive(0, {Type::wish, 0, 0, small_pool}));
  CHECK_FALSE(table[1].receive(0, {Type::commit, 1, 0, {}}));
  CHECK(table[1].receive(0, {Type::propose, 1, 4, small_pool}));
  CHECK_FALSE(table[1].receive(0, {Type::propose, 2, 8, small_pool}));
  CHECK_FALSE(table[1].receive(0, {Type::commit, 2, 0, {}}));
  CHECK(table[1].receive(0, {Type::commit, 1, 0, {}}));
}

TEST_CASE("fence messages survive the wire") {
  for (const FenceMessage& message :
       {FenceMessage{Type::wish, 0, 17, large_pool}, FenceMessage{Type::propose, ~0ull, 1ull << 40, native},
        FenceMessage{Type::accept, 5, 6, {}}, FenceMessage{Type::reject, 5, 6, {}},
        FenceMessage{Type::commit, 5, 0, {}}, FenceMessage{Type::cancel, 5, 0, {}},
        FenceMessage{Type::keep, 0, 0, {}}}) {
    const FenceBytes bytes = encode_fence(message);
    const auto decoded = decode_fence(bytes);
    REQUIRE(decoded);
    CHECK(*decoded == message);
    CHECK(encode_fence(*decoded) == bytes);
    CHECK_FALSE(decode_fence(std::span(bytes).first(fence_message_bytes - 1)));
  }
}

TEST_CASE("bytes that are no fence message are refused") {
  std::mt19937 random(7);
  const FenceBytes good = encode_fence({Type::propose, 3, 9, small_pool});
  const auto with = [&](std::size_t at, int value) {
    FenceBytes bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    return decode_fence(bytes);
  };
  CHECK(with(0, 1));
  CHECK_FALSE(with(0, 0));
  CHECK_FALSE(with(0, 8));
  CHECK_FALSE(with(1, 2));
  CHECK_FALSE(with(1, 0));  // native, but with a pool
  CHECK_FALSE(with(2, 1));
  CHECK_FALSE(with(3, 1));
  for (int i = 0; i < 100'000; ++i) {
    FenceBytes bytes{};
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % (random() % 2 == 0 ? 3 : 256));
    if (const auto decoded = decode_fence(bytes)) CHECK(encode_fence(*decoded) == bytes);
  }
}

namespace {

// Nobody answers.
class Silence final : public FenceTransport {
 public:
  Status send(std::uint32_t, const FenceMessage& message) override {
    if (full) return Status::out_of_memory;
    sent.push_back(message.type);
    return Status::ok;
  }
  std::vector<Type> sent;
  bool full = false;
};

}  // namespace

TEST_CASE("a gate keeps what could not be sent, in order") {
  Silence transport;
  FenceGate gate({0, 1}, 1, {}, &transport);
  transport.full = true;
  gate.wish(small_pool);
  gate.keep();
  CHECK(gate.send_again());
  CHECK(transport.sent.empty());
  transport.full = false;
  CHECK_FALSE(gate.send_again());
  CHECK(transport.sent == std::vector{Type::wish, Type::keep});
}

TEST_CASE("a peer that breaks the protocol is as good as lost") {
  Silence transport;
  FenceGate gate({0, 1}, 1, {}, &transport);
  gate.receive(0, {Type::propose, 1, 1, small_pool});
  gate.receive(0, {Type::commit, 9, 0, {}});
  FenceSetting setting;
  std::uint64_t call = 99;
  CHECK(gate.enter(&setting, &call) == Status::ok);
  CHECK(call == 0);
  CHECK(gate.enter(&setting, &call) == Status::connection_lost);
  CHECK(gate.state().calls == 1);
  CHECK(gate.state().frozen);
}

TEST_CASE("after an abort no call begins") {
  Silence transport;
  FenceGate gate({0, 1}, 0, {}, &transport);
  gate.abort();
  FenceSetting setting;
  std::uint64_t call = 0;
  CHECK(gate.enter(&setting, &call) == Status::aborted);
}

TEST_CASE("an abort releases a rank that waits at a fence") {
  struct Silence final : FenceTransport {
    Status send(std::uint32_t, const FenceMessage&) override { return Status::ok; }
  } transport;
  bool waited = false;
  for (int attempt = 0; !waited; ++attempt) {  // on a busy machine the abort may come first
    REQUIRE(attempt < 500);
    FenceGate gate({0, 1}, 1, {}, &transport);
    gate.receive(0, {FenceMessageType::propose, 1, 1, small_pool});
    FenceSetting setting;
    std::uint64_t call = 0;
    CHECK(gate.enter(&setting, &call) == Status::ok);
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate.abort();
    });
    CHECK(gate.enter(&setting, &call) == Status::aborted);
    aborter.join();
    waited = gate.state().waits == 1 && gate.state().wait_ns >= 10'000'000;
  }
}

}  // namespace zipccl::test
