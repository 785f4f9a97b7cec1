// Ranks as threads against one listener, over real sockets on loopback.
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>

#include "switcher/stamp.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/session_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace zipccl::switcher;

bool everyone(std::uint32_t) { return true; }

void check_same_native(const std::vector<Outcome>& outcomes, const std::string& reason) {
  for (const Outcome& outcome : outcomes) {
    if (outcome.hello != Status::ok) continue;
    CHECK(outcome.verdict == Status::ok);
    CHECK_FALSE(outcome.answer.compressed);
    CHECK(outcome.answer.reason == reason);
  }
}

std::vector<std::string> threads_of_this_process() {
  std::vector<std::string> names;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file("/proc/self/task/" + std::string(entry->d_name) + "/comm");
    std::string name;
    std::getline(file, name);
    names.push_back(name);
  }
  closedir(tasks);
  return names;
}

bool helper_thread_runs() {
  for (const std::string& name : threads_of_this_process()) {
    if (name == "zipccl") return true;
  }
  return false;
}

TEST_CASE("all ranks get the same compressed verdict") {
  const std::uint32_t rank_count = GENERATE(1u, 2u, 8u, 64u, 512u);
  CAPTURE(rank_count);
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  const auto outcomes = run_ranks(
      *rendezvous, id, rank_count, [&](std::uint32_t rank) { return make_hello(rank, rank_count); }, everyone);
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.why);
    REQUIRE(outcome.hello == Status::ok);
    REQUIRE(outcome.verdict == Status::ok);
    REQUIRE(outcome.answer.compressed);
    REQUIRE(outcome.answer.links == outcomes[0].answer.links);
    REQUIRE(outcome.answer.staging_bytes == 128u << 20);
  }
  CHECK(outcomes[0].answer.links.size() == std::size_t{rank_count} * rank_count);
}

TEST_CASE("ranks without zipccl make the others native") {
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  const auto outcomes = run_ranks(
      *rendezvous, id, 8, [](std::uint32_t rank) { return make_hello(rank, 8); },
      [](std::uint32_t rank) { return rank != 3; });
  check_same_native(outcomes, "rank 3 runs without zipccl or cannot connect to the process that made the ncclUniqueId");

  std::unique_ptr<Session> late;
  std::string why;
  CHECK(rendezvous->hello(invited(id), make_hello(3, 8), &late, &why) == Status::refused);
  CHECK(late == nullptr);
  CHECK(why.find("refused: unknown id or secret, or a verdict was given without this rank") != std::string::npos);
}

TEST_CASE("differing configurations reach every rank as one reason") {
  const auto rendezvous = Rendezvous::create("lo");
  const auto outcomes = run_ranks(
      *rendezvous, stamped_id(*rendezvous), 4,
      [](std::uint32_t rank) {
        Hello hello = make_hello(rank, 4);
        if (rank == 2) hello.configuration = "ZIPCCL_COLLECTIVES=allgather\nZIPCCL_MIN_BYTES=65536\n";
        return hello;
      },
      everyone);
  CHECK(outcomes[2].verdict == Status::ok);
  check_same_native(outcomes, "rank 2 has ZIPCCL_MIN_BYTES=65536, rank 0 has 1048576");
}

TEST_CASE("a rank that says hello twice is refused and the communicator native") {
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  std::unique_ptr<Session> first;
  std::unique_ptr<Session> second;
  std::string why;
  REQUIRE(rendezvous->hello(invited(id), make_hello(0, 2), &first, &why) == Status::ok);
  REQUIRE(rendezvous->hello(invited(id), make_hello(0, 2), &second, &why) == Status::refused);
  CHECK(why.find("rank 0 said hello twice") != std::string::npos);
  Verdict verdict;
  REQUIRE(first->verdict(&verdict) == Status::ok);
  CHECK(verdict.reason == "rank 0 said hello twice");
}

TEST_CASE("a wrong secret is refused and changes nothing") {
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  UniqueId forged = id;
  forged[stamp_offset + 40] ^= 1;
  std::unique_ptr<Session> session;
  std::string why;
  CHECK(rendezvous->hello(invited(forged), make_hello(0, 1), &session, &why) == Status::refused);
  CHECK(why.starts_with("127.0.0.1:"));
  REQUIRE(rendezvous->hello(invited(id), make_hello(0, 1), &session, &why) == Status::ok);
  Verdict verdict;
  REQUIRE(session->verdict(&verdict) == Status::ok);
  CHECK(verdict.compressed);
}

TEST_CASE("ids without a stamp and hellos above the limit are not sent") {
  const auto rendezvous = Rendezvous::create("lo");
  std::unique_ptr<Session> session;
  std::string why;
  CHECK(rendezvous->hello(Invitation{}, make_hello(0, 1), &session, &why) == Status::invalid_argument);
  Hello hello = make_hello(0, 1);
  hello.configuration.assign(70'000, 'x');
  CHECK(rendezvous->hello(invited(stamped_id(*rendezvous)), hello, &session, &why) == Status::invalid_argument);
  CHECK(why == "a hello of more than 65536 bytes");
}

TEST_CASE("no interface means no stamp, and the id stays as it was") {
  const auto rendezvous = Rendezvous::create("=no-such-interface");
  UniqueId id;
  id.fill(3);
  const UniqueId before = id;
  std::string why;
  CHECK(rendezvous->stamp(id, &why) != Status::ok);
  CHECK(why == "no network interface that is up matches \"=no-such-interface\"");
  CHECK(id == before);
}

TEST_CASE("an empty pattern finds an address that this host can reach") {
  const auto rendezvous = Rendezvous::create("");
  std::unique_ptr<Session> session;
  std::string why;
  const Status status = rendezvous->hello(invited(stamped_id(*rendezvous)), make_hello(0, 1), &session, &why);
  INFO(why);
  CHECK(status == Status::ok);
}

TEST_CASE("two communicators of one listener do not meet") {
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId one = stamped_id(*rendezvous);
  const UniqueId other = stamped_id(*rendezvous);
  REQUIRE(one != other);
  std::vector<Outcome> ones;
  std::thread thread([&] {
    ones = run_ranks(
        *rendezvous, one, 16, [](std::uint32_t rank) { return make_hello(rank, 16); }, everyone);
  });
  const auto others = run_ranks(
      *rendezvous, other, 12, [](std::uint32_t rank) { return make_hello(rank, 12); },
      [](std::uint32_t rank) { return rank != 5; });
  thread.join();
  for (const Outcome& outcome : ones) {
    REQUIRE(outcome.verdict == Status::ok);
    CHECK(outcome.answer.compressed);
    CHECK(outcome.answer.links.size() == 256);
  }
  check_same_native(others, "rank 5 runs without zipccl or cannot connect to the process that made the ncclUniqueId");
}

TEST_CASE("many ids from many threads are all good") {
  const auto rendezvous = Rendezvous::create("lo");
  std::atomic<int> compressed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10; ++round) {
        std::unique_ptr<Session> session;
        std::string why;
        Verdict verdict;
        if (rendezvous->hello(invited(stamped_id(*rendezvous)), make_hello(0, 1), &session, &why) == Status::ok &&
            session->verdict(&verdict) == Status::ok && verdict.compressed) {
          ++compressed;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(compressed == 80);
}

TEST_CASE("a session answers again what it answered first") {
  const auto rendezvous = Rendezvous::create("lo");
  std::unique_ptr<Session> session;
  std::string why;
  REQUIRE(rendezvous->hello(invited(stamped_id(*rendezvous)), make_hello(0, 1), &session, &why) == Status::ok);
  Verdict first;
  Verdict again;
  REQUIRE(session->verdict(&first) == Status::ok);
  session->withdraw();
  REQUIRE(session->verdict(&again) == Status::ok);
  CHECK(again.compressed);
  CHECK(again.links == first.links);
}

TEST_CASE("the helper thread lives from the first stamp to the rendezvous' end") {
  auto rendezvous = Rendezvous::create("lo");
  CHECK_FALSE(helper_thread_runs());
  stamped_id(*rendezvous);
  CHECK(helper_thread_runs());
  rendezvous.reset();
  // A joined thread may stay listed for a moment.
  for (int i = 0; i < 1000 && helper_thread_runs(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_FALSE(helper_thread_runs());
}

TEST_CASE("the helper thread takes no signals") {
  const auto rendezvous = Rendezvous::create("lo");
  stamped_id(*rendezvous);
  DIR* tasks = opendir("/proc/self/task");
  int checked = 0;
  while (const dirent* entry = readdir(tasks)) {
    std::ifstream status("/proc/self/task/" + std::string(entry->d_name) + "/status");
    std::string line;
    bool helper = false;
    while (std::getline(status, line)) {
      if (line == "Name:\tzipccl") helper = true;
      if (!helper || !line.starts_with("SigBlk:")) continue;
      const auto blocked = std::stoull(line.substr(7), nullptr, 16);
      for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGPROF, SIGALRM}) {
        CHECK((blocked >> (signal - 1) & 1) == 1);
      }
      ++checked;
    }
  }
  closedir(tasks);
  CHECK(checked == 1);
}

std::set<int> open_descriptors() {
  std::set<int> open;
  for (int descriptor = 0; descriptor < 256; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) open.insert(descriptor);
  }
  return open;
}

TEST_CASE("no descriptor survives an exec") {
  const std::set<int> before = open_descriptors();
  const auto rendezvous = Rendezvous::create("lo");
  std::unique_ptr<Session> session;
  std::string why;
  REQUIRE(rendezvous->hello(invited(stamped_id(*rendezvous)), make_hello(0, 1), &session, &why) == Status::ok);
  int ours = 0;
  for (const int descriptor : open_descriptors()) {
    if (before.contains(descriptor)) continue;
    ++ours;
    CAPTURE(descriptor);
    CHECK((fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK(ours >= 4);  // listener, both ends of the connection, epoll
}

TEST_CASE("a forked child may destroy the rendezvous without harm to its parent") {
  auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  std::unique_ptr<Session> session;
  std::string why;
  REQUIRE(rendezvous->hello(invited(id), make_hello(0, 2), &session, &why) == Status::ok);
  const pid_t child = fork();
  if (child == 0) {
    rendezvous.reset();
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  std::unique_ptr<Session> second;
  REQUIRE(rendezvous->hello(invited(id), make_hello(1, 2), &second, &why) == Status::ok);
  Verdict verdict;
  REQUIRE(session->verdict(&verdict) == Status::ok);
  CHECK(verdict.compressed);
  REQUIRE(second->verdict(&verdict) == Status::ok);
  CHECK(verdict.compressed);
}

}  // namespace
}  // namespace zipccl::test
