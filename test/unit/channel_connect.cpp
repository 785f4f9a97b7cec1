// Connecting the ranks: what the root says when it works, and when it does not.

#include <barrier>
#include <map>

#include "switcher/limits.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/channel_fixture.hpp"
#include "test/unit/channel_raw.hpp"

namespace zipccl::test {
namespace {

using namespace std::chrono_literals;
using namespace zipccl::switcher;

// Rank 0 is real and the root. `act` plays rank 1, after the verdict; it should leave the session to the fixture.
Joined with_raw_peer(RawRank::Role role, const std::function<void(RawRank&)>& act, const Limits& limits = {}) {
  const auto rendezvous = create_rendezvous("lo", limits);
  const UniqueId id = stamped_id(*rendezvous);
  RawRank raw(id, 1, 2, role);
  Joined real;
  std::string fault;
  std::barrier real_init(2);
  std::thread thread([&] { real = join(*rendezvous, id, 0, 2, [&] { real_init.arrive_and_wait(); }); });
  real_init.arrive_and_wait();
  try {
    raw.take_verdict();
    act(raw);
  } catch (const std::exception& error) {
    fault = error.what();
  }
  thread.join();
  if (!fault.empty()) real.why = fault;
  if (real.agreed) real.channel.reset();  // before its rendezvous
  return real;
}

void check_native(const Joined& joined, const std::string& reason) {
  CHECK(joined.status == Status::ok);
  CHECK_FALSE(joined.agreed);
  CHECK(joined.channel == nullptr);
  CHECK(joined.why == reason);
}

TEST_CASE("64 ranks, each a process to the others, connect") {
  const Processes processes(64);
  auto joined = join_all(processes.all(), 64);
  for (const Joined& rank : joined) {
    INFO(rank.why);
    REQUIRE(rank.agreed);
  }
  for (std::uint32_t rank = 0; rank < 64; ++rank) {
    const RecordKey key{rank, 1, 0};
    for (const std::uint32_t step : {1u, 7u, 63u}) {
      const std::uint32_t peer = (rank + step) % 64;
      REQUIRE(joined[rank].channel->send(peer, key, make_record(key, peer, 300)) == Status::ok);
    }
  }
  for (std::uint32_t rank = 0; rank < 64; ++rank) {
    for (const std::uint32_t step : {1u, 7u, 63u}) {
      CHECK(await_record(*joined[rank].channel, {(rank + 64 - step) % 64, 1, 0}) != nullptr);
    }
  }
}

TEST_CASE("256 ranks of eight processes connect") {
  const Processes processes(8);
  for (const Joined& rank : join_all(processes.all(), 256)) {
    INFO(rank.why);
    REQUIRE(rank.agreed);
  }
}

TEST_CASE("a process connects with 1,023 others, half of which it dials") {
  raise_descriptor_limit();
  constexpr std::uint32_t count = 1024;
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  std::vector<std::unique_ptr<RawRank>> others;
  for (std::uint32_t rank = 1; rank < count; ++rank) {
    const auto role = rank % 2 == 0 ? RawRank::Role::dials : RawRank::Role::accepts;
    others.push_back(std::make_unique<RawRank>(id, rank, count, role));
  }
  Joined real;
  std::barrier real_init(2);
  std::thread thread([&] { real = join(*rendezvous, id, 0, count, [&] { real_init.arrive_and_wait(); }); });
  real_init.arrive_and_wait();
  for (const auto& raw : others) raw->take_verdict();
  for (const auto& raw : others) raw->enter();
  int strange_greetings = 0;
  for (const auto& raw : others) {
    raw->hear_peers();
    if (raw->role() == RawRank::Role::dials) {
      raw->dial(0);
      raw->send(encode_greeting(raw->greeting(0)));
    } else {
      const Greeting greeting = raw->accept_peer();
      strange_greetings += greeting.receiver != raw->process() || greeting.sender != raw->peers()[0].process;
    }
    raw->prove(0);
  }
  CHECK(strange_greetings == 0);
  int disagreeing = 0;
  for (const auto& raw : others) raw->report("");
  for (const auto& raw : others) disagreeing += !raw->hear_result().agreed;
  thread.join();
  CHECK(disagreeing == 0);
  INFO(real.why);
  CHECK(real.agreed);
}

TEST_CASE("a rank that does not connect makes all native") {
  SECTION("it leaves") {
    check_native(with_raw_peer(RawRank::Role::dials, [](RawRank& raw) { raw.session() = Socket(); }),
                 "rank 1 left before all ranks were connected");
  }
  SECTION("it leaves after it entered") {
    check_native(with_raw_peer(RawRank::Role::dials,
                               [](RawRank& raw) {
                                 raw.enter();
                                 raw.hear_peers();
                                 raw.session() = Socket();
                               }),
                 "rank 1 left before all ranks were connected");
  }
  SECTION("it says why") {
    check_native(with_raw_peer(RawRank::Role::dials, [](RawRank& raw) { raw.report("no\nport"); }), "rank 1: no?port");
  }
  SECTION("it enters twice") {
    check_native(with_raw_peer(RawRank::Role::dials,
                               [](RawRank& raw) {
                                 raw.enter();
                                 raw.enter();
                               }),
                 "rank 1 broke the session's protocol");
  }
  SECTION("it reports what it cannot know") {
    check_native(with_raw_peer(RawRank::Role::dials, [](RawRank& raw) { raw.report(""); }),
                 "rank 1 broke the session's protocol");
  }
  Limits limits;
  limits.introduction = 2s;  // in which the others do their part
  SECTION("it is late") {
    check_native(with_raw_peer(
                     RawRank::Role::dials, [](RawRank& raw) { raw.hear_result(); }, limits),
                 "rank 1 did not connect in time");
  }
  SECTION("it does not prove itself") {
    const Joined real = with_raw_peer(
        RawRank::Role::dials,
        [](RawRank& raw) {
          raw.enter();
          raw.hear_peers();
          raw.dial(0);
          raw.send(encode_greeting(raw.greeting(0)));
          CHECK(raw.hear_result().reason == "rank 0 was not connected with all others in time");
        },
        limits);
    check_native(real, "rank 0 was not connected with all others in time");
  }
  SECTION("it accepts and says nothing") {
    check_native(with_raw_peer(
                     RawRank::Role::accepts,
                     [](RawRank& raw) {
                       raw.enter();
                       raw.hear_peers();
                       raw.hear_result();
                     },
                     limits),
                 "rank 0 was not connected with all others in time");
  }
}

TEST_CASE("a peer that cannot be reached is named") {
  const Joined real = with_raw_peer(RawRank::Role::accepts, [](RawRank& raw) {
    raw.enter_elsewhere();
    raw.hear_peers();
    CHECK(raw.hear_result().reason.starts_with("rank 0: cannot connect to 127.0.0.1:"));
  });
  CHECK(real.status == Status::ok);
  CHECK_FALSE(real.agreed);
  CHECK(real.why.ends_with(" (Connection refused) of rank 1"));
}

TEST_CASE("connections that are not entitled are closed and disturb nobody") {
  const Joined real = with_raw_peer(RawRank::Role::dials, [](RawRank& raw) {
    raw.enter();
    raw.hear_peers();
    const auto closes = [&raw](const WireBytes& bytes) {
      raw.dial(0);
      raw.send(bytes);
      return raw.closed_within(10s);
    };
    Greeting greeting = raw.greeting(0);
    greeting.ticket.secret[3] ^= 1;
    CHECK(closes(encode_greeting(greeting)));
    greeting = raw.greeting(0);
    greeting.ticket.nonce += 1;
    CHECK(closes(encode_greeting(greeting)));
    greeting = raw.greeting(0);
    greeting.protocol += 1;
    CHECK(closes(encode_greeting(greeting)));
    greeting = raw.greeting(0);
    greeting.receiver[0] ^= 1;
    CHECK(closes(encode_greeting(greeting)));
    greeting = raw.greeting(0);
    greeting.sender.fill(0);  // should wait to be dialled
    CHECK(closes(encode_greeting(greeting)));
    CHECK(closes(WireBytes(greeting_bytes, 0x77)));
    raw.dial(0);
    raw.send(encode_greeting(raw.greeting(0)));
    raw.prove(0);
    raw.report("");
    CHECK(raw.hear_result().agreed);
  });
  CHECK(real.agreed);
}

TEST_CASE("strangers at the peers' port are closed at their deadline") {
  Limits limits;
  limits.stranger = 300ms;
  const Joined real = with_raw_peer(
      RawRank::Role::dials,
      [](RawRank& raw) {
        raw.enter();
        raw.hear_peers();
        raw.dial(0);
        raw.send(ByteView(encode_greeting(raw.greeting(0))).first(greeting_bytes - 1));
        CHECK(raw.closed_within(10s));
        raw.report("enough");
      },
      limits);
  check_native(real, "rank 1: enough");
}

TEST_CASE("a rank without an address of its own says so") {
  const auto root = Rendezvous::create("lo");
  const auto lacking = Rendezvous::create("=no-such-interface");
  const auto another = Rendezvous::create("lo");
  for (const Joined& joined : join_all({root.get(), lacking.get(), another.get()}, 3)) {
    check_native(joined, "rank 1: no network interface that is up matches \"=no-such-interface\"");
  }
}

TEST_CASE("a root that is gone ends the connecting") {
  auto root = Rendezvous::create("lo");
  const auto client = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*root);
  RawRank silent(id, 1, 2, RawRank::Role::dials);
  std::unique_ptr<Session> session;
  std::string why;
  REQUIRE(client->hello(invited(id), make_hello(0, 2), &session, &why) == Status::ok);
  std::unique_ptr<Channel> channel;
  bool agreed = true;
  CHECK(session->connect(&channel, &agreed, &why) == Status::invalid_argument);
  Verdict verdict;
  REQUIRE(session->verdict(&verdict) == Status::ok);
  root.reset();
  CHECK(session->connect(&channel, &agreed, &why) == Status::connection_lost);
  CHECK_FALSE(agreed);
  CHECK(channel == nullptr);
  CHECK(session->connect(&channel, &agreed, &why) == Status::invalid_argument);
  CHECK(session->verdict(&verdict) == Status::ok);
}

// One process is a rank of every communicator, as one of a job is. `steps` is what a rank does in turn: a group of
// communicators, each of which it enters before any of them is real.
using Group = std::vector<std::size_t>;
void create_in_order(const std::vector<std::vector<Group>>& steps, std::size_t communicators) {
  Limits limits;
  limits.introduction = 30s;  // what a rank that waits for another's calling thread would run into
  limits.answer = 40s;
  const Processes processes(steps.size(), limits);
  const auto rank_count = static_cast<std::uint32_t>(steps.size());
  std::vector<UniqueId> ids;
  std::vector<std::unique_ptr<std::barrier<>>> real_inits;
  for (std::size_t i = 0; i < communicators; ++i) {
    ids.push_back(stamped_id(*processes.owned[i % processes.owned.size()]));
    real_inits.push_back(std::make_unique<std::barrier<>>(rank_count));
  }
  std::vector<std::string> faults(rank_count);
  std::vector<std::vector<std::unique_ptr<Channel>>> channels(rank_count);
  const auto create = [&](std::uint32_t rank, const Group& group) {
    std::string why;
    std::map<std::size_t, std::unique_ptr<Session>> sessions;
    for (const std::size_t number : group) {
      if (processes.owned[rank]->hello(invited(ids[number]), make_hello(rank, rank_count), &sessions[number], &why) !=
          Status::ok) {
        return why;
      }
    }
    // As NCCL does: the inits of a group run at the same time.
    std::vector<std::thread> inits;
    for (const std::size_t number : group) inits.emplace_back([&, number] { real_inits[number]->arrive_and_wait(); });
    for (std::thread& init : inits) init.join();
    for (const std::size_t number : group) {
      Verdict verdict;
      bool agreed = false;
      std::unique_ptr<Channel> channel;
      if (sessions[number]->verdict(&verdict) != Status::ok || !verdict.compressed ||
          sessions[number]->connect(&channel, &agreed, &why) != Status::ok || !agreed) {
        return "communicator " + std::to_string(number) + ": " + verdict.reason + why;
      }
      channels[rank].push_back(std::move(channel));
    }
    return std::string();
  };
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < rank_count; ++rank) {
    threads.emplace_back([&, rank] {
      for (const Group& group : steps[rank]) {
        if (faults[rank].empty()) faults[rank] = create(rank, group);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::uint32_t rank = 0; rank < rank_count; ++rank) {
    INFO("rank " << rank);
    CHECK(faults[rank] == "");
    CHECK(channels[rank].size() == communicators);
  }
}

TEST_CASE("ranks may create communicators in groups or singly, each as it likes") {
  const Group both = {0, 1};
  SECTION("one in a group, one singly") { create_in_order({{both}, {{0}, {1}}}, 2); }
  SECTION("one in a group in another order") { create_in_order({{{1, 0}}, {{0}, {1}}}, 2); }
  SECTION("three ranks") { create_in_order({{{0, 1, 2}}, {{0}, {1}, {2}}, {{0}, {1, 2}}}, 3); }
  SECTION("four ranks, four communicators") {
    create_in_order({{{0, 1}, {2, 3}}, {{0}, {1, 2, 3}}, {{0}, {1}, {2}, {3}}, {{3, 2, 1, 0}}}, 4);
  }
}

TEST_CASE("a rank that wants no channel disturbs nobody who has not agreed yet") {
  const Processes processes(2);
  const UniqueId id = stamped_id(*processes.owned[0]);
  std::vector<std::unique_ptr<Session>> sessions(2);
  std::string why;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    REQUIRE(processes.owned[rank]->hello(invited(id), make_hello(rank, 2), &sessions[rank], &why) == Status::ok);
  }
  Verdict verdict;
  for (const auto& session : sessions) REQUIRE(session->verdict(&verdict) == Status::ok);
  sessions.clear();  // with or without a result
  for (const Joined& joined : join_all(processes.all(), 2)) CHECK(joined.agreed);
}

TEST_CASE("a root that is stuck ends the connecting by its limit") {
  Limits limits;
  limits.answer = 2s;  // in which the root answers the hello
  const auto client = create_rendezvous("lo", limits);
  const auto root = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*root);
  RawRank silent(id, 1, 2, RawRank::Role::dials);
  const Joined joined = join(*client, id, 0, 2, [] {});
  CHECK(joined.status == Status::timed_out);
  CHECK(joined.why == "no answer from the root's process while the ranks connected");
}

}  // namespace
}  // namespace zipccl::test
