// Peers that die, lie, dawdle or are strangers.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>

#include "switcher/stamp.hpp"
#include "switcher/wire.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/session_fixture.hpp"

namespace zipccl::test {
namespace {

using namespace std::chrono_literals;
using namespace zipccl::switcher;
using Clock = std::chrono::steady_clock;

// A client that speaks in bytes.
class RawClient {
 public:
  explicit RawClient(const UniqueId& id) : stamp_(*read_stamp(id)) {
    std::string why;
    if (Socket::connect(stamp_.listener, Clock::now() + 10s, &socket_, &why) != Status::ok) {
      throw std::runtime_error(why);
    }
  }

  const Ticket& ticket() const { return stamp_.ticket; }
  void send(ByteView bytes) { static_cast<void>(socket_.send(bytes, Clock::now() + 10s)); }
  WireBytes hello(const Hello& hello) const { return *encode_hello(stamp_.ticket, hello); }

  // The next frame's type; nothing once the listener has closed.
  std::optional<MessageType> receive() {
    WireBytes header(frame_header_bytes);
    if (socket_.receive(header, Clock::now() + 10s) != Status::ok) return std::nullopt;
    const auto decoded = decode_frame_header(header);
    REQUIRE(decoded);
    body_.resize(decoded->body_bytes);
    REQUIRE(socket_.receive(body_, Clock::now() + 10s) == Status::ok);
    return decoded->type;
  }
  std::string refusal() const { return decode_text(body_).value_or("not a refusal"); }

  // True if the listener closes within the limit and sends nothing.
  bool closed_within(std::chrono::milliseconds limit) {
    WireBytes byte(1);
    return socket_.receive(byte, Clock::now() + limit) == Status::connection_lost;
  }

 private:
  Stamp stamp_;
  Socket socket_;
  WireBytes body_;
};

std::unique_ptr<Session> say_hello(Rendezvous& rendezvous, const UniqueId& id, const Hello& hello) {
  std::unique_ptr<Session> session;
  std::string why;
  const Status status = rendezvous.hello(invited(id), hello, &session, &why);
  INFO(why);
  REQUIRE(status == Status::ok);
  return session;
}

// The verdict is compressed: the listener still serves ranks, and nobody disturbed this id.
void check_compressed_pair(Rendezvous& rendezvous, const UniqueId& id) {
  const auto one = say_hello(rendezvous, id, make_hello(0, 2));
  const auto other = say_hello(rendezvous, id, make_hello(1, 2));
  Verdict verdict;
  REQUIRE(one->verdict(&verdict) == Status::ok);
  CHECK(verdict.compressed);
  REQUIRE(other->verdict(&verdict) == Status::ok);
  CHECK(verdict.compressed);
}

// What a rank learns once the listener has seen everything that happened before. The helper thread takes events in
// order, so a stranger that came after them and is served proves that.
std::string native_reason(Rendezvous& rendezvous, const UniqueId& id, Session& session) {
  UniqueId forged = id;
  forged[stamp_offset + 40] ^= 1;
  std::unique_ptr<Session> none;
  std::string why;
  REQUIRE(rendezvous.hello(invited(forged), make_hello(0, 2), &none, &why) == Status::refused);
  Verdict verdict;
  REQUIRE(session.verdict(&verdict) == Status::ok);
  CHECK_FALSE(verdict.compressed);
  return verdict.reason;
}

// A root in a process of its own, as rank 0. It runs until it is killed, or ends once it has its verdict.
class RootProcess {
 public:
  enum class End { wait_for_kill, after_verdict };

  explicit RootProcess(End end) {
    int id_pipe[2];
    REQUIRE(pipe(id_pipe) == 0);
    REQUIRE(pipe(go_) == 0);
    process_ = fork();
    if (process_ == 0) _exit(run(end, id_pipe[1]));
    REQUIRE(read(id_pipe[0], id.data(), id.size()) == static_cast<ssize_t>(id.size()));
    close(id_pipe[0]);
    close(id_pipe[1]);
  }
  ~RootProcess() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    close(go_[0]);
    close(go_[1]);
  }

  void let_go() const { REQUIRE(write(go_[1], "g", 1) == 1); }
  // Exit status or signal.
  int wait() const {
    siginfo_t info{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOWAIT) == 0);
    return info.si_status;
  }
  void die() const {
    kill(process_, SIGKILL);
    CHECK(wait() == SIGKILL);
  }
  // Returns when all its threads have stopped.
  void freeze() const {
    kill(process_, SIGSTOP);
    REQUIRE(waitpid(process_, nullptr, WUNTRACED) == process_);
  }

  UniqueId id{};

 private:
  int run(End end, int id_pipe) const {
    const auto rendezvous = Rendezvous::create("lo");
    UniqueId own{};
    std::string why;
    std::unique_ptr<Session> session;
    if (rendezvous->stamp(own, &why) != Status::ok) return 1;
    if (rendezvous->hello(invited(own), make_hello(0, 2), &session, &why) != Status::ok) return 2;
    if (write(id_pipe, own.data(), own.size()) != static_cast<ssize_t>(own.size())) return 3;
    char go = 0;
    if (read(go_[0], &go, 1) != 1) return 4;
    Verdict verdict;
    if (end == End::after_verdict && session->verdict(&verdict) != Status::ok) return 5;
    _exit(verdict.compressed ? 42 : 6);
  }

  pid_t process_ = -1;
  int go_[2]{};
};

TEST_CASE("a root that is killed between hello and verdict fails the others at once") {
  const RootProcess root(RootProcess::End::wait_for_kill);
  const auto rendezvous = Rendezvous::create("lo");
  const auto session = say_hello(*rendezvous, root.id, make_hello(1, 2));
  Verdict verdict;
  SECTION("before the question") {
    root.die();
    const auto start = Clock::now();
    CHECK(session->verdict(&verdict) == Status::connection_lost);
    CHECK(Clock::now() - start < 5s);
    CHECK(session->verdict(&verdict) == Status::connection_lost);

    std::unique_ptr<Session> late;
    std::string why;
    CHECK(rendezvous->hello(invited(root.id), make_hello(1, 2), &late, &why) == Status::connection_lost);
    CHECK(why.starts_with("cannot connect to 127.0.0.1:"));
  }
  SECTION("while the question waits") {
    root.freeze();
    Status status = Status::ok;
    std::thread asking([&] { status = session->verdict(&verdict); });
    std::this_thread::sleep_for(100ms);
    root.die();
    asking.join();
    CHECK(status == Status::connection_lost);
  }
}

TEST_CASE("a root that ends right after its own verdict leaves theirs to the others") {
  const RootProcess root(RootProcess::End::after_verdict);
  const auto rendezvous = Rendezvous::create("lo");
  const auto session = say_hello(*rendezvous, root.id, make_hello(1, 2));
  root.let_go();
  CHECK(root.wait() == 42);
  Verdict verdict;
  REQUIRE(session->verdict(&verdict) == Status::ok);
  CHECK(verdict.compressed);
}

TEST_CASE("a root that is stuck ends hello and verdict by their limit") {
  const RootProcess root(RootProcess::End::wait_for_kill);
  Limits limits;
  limits.answer = 2s;  // in which the root answers the first hello
  const auto rendezvous = create_rendezvous("lo", limits);
  const auto session = say_hello(*rendezvous, root.id, make_hello(1, 2));
  root.freeze();
  Verdict verdict;
  CHECK(session->verdict(&verdict) == Status::timed_out);
  std::unique_ptr<Session> other;
  std::string why;
  CHECK(rendezvous->hello(invited(root.id), make_hello(1, 2), &other, &why) == Status::timed_out);
  CHECK(why.starts_with("no answer from 127.0.0.1:"));
}

TEST_CASE("a rank that leaves before the verdict makes the others native") {
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  const auto one = say_hello(*rendezvous, id, make_hello(0, 2));
  auto other = say_hello(*rendezvous, id, make_hello(1, 2));
  SECTION("its real init failed") {
    other->withdraw();
    CHECK(native_reason(*rendezvous, id, *one) == "rank 1 withdrew, its NCCL init failed");
    Verdict verdict;
    CHECK(other->verdict(&verdict) == Status::connection_lost);
  }
  SECTION("its process died") {
    other.reset();
    CHECK(native_reason(*rendezvous, id, *one) == "rank 1 lost its connection before the verdict");
  }
}

TEST_CASE("a member that speaks nonsense is dropped and the others native") {
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  const auto one = say_hello(*rendezvous, id, make_hello(0, 2));
  RawClient other(id);
  other.send(other.hello(make_hello(1, 2)));
  REQUIRE(other.receive() == MessageType::acknowledge);
  other.send(WireBytes{9, 9, 9, 9, 9});
  CHECK(other.closed_within(10s));
  CHECK(native_reason(*rendezvous, id, *one) == "rank 1 broke the session's protocol");
}

TEST_CASE("another protocol version is refused with both versions, and the verdict says so") {
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  const auto one = say_hello(*rendezvous, id, make_hello(0, 2));
  RawClient other(id);
  WireBytes frame = other.hello(make_hello(1, 2));
  frame[frame_header_bytes] = 9;
  other.send(frame);
  REQUIRE(other.receive() == MessageType::refuse);
  CHECK(other.refusal() == "rank 1 speaks session protocol 9, the root 4");
  CHECK(native_reason(*rendezvous, id, *one) == "rank 1 speaks session protocol 9, the root 4");
}

TEST_CASE("a malformed hello with the right secret makes the communicator native") {
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  const auto one = say_hello(*rendezvous, id, make_hello(0, 2));
  RawClient other(id);
  WireBytes frame = other.hello(make_hello(1, 2));
  frame[frame_header_bytes + hello_prefix_bytes + 7] = 0xff;  // the version's length
  other.send(frame);
  REQUIRE(other.receive() == MessageType::refuse);
  CHECK(other.refusal() == "rank 1 sent a malformed hello");
  CHECK(native_reason(*rendezvous, id, *one) == "rank 1 sent a malformed hello");
}

TEST_CASE("strangers are cut off and disturb nobody") {
  const auto rendezvous = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  RawClient stranger(id);
  SECTION("garbage") {
    stranger.send(WireBytes(4096, 0xa5));
    CHECK(stranger.closed_within(10s));
  }
  SECTION("a frame of 4 GiB") {
    WireBytes frame = stranger.hello(make_hello(0, 2));
    frame[3] = 0xff;
    stranger.send(frame);
    CHECK(stranger.closed_within(10s));
  }
  SECTION("a question instead of a hello") {
    WireBytes frame = encode_signal(MessageType::ask);
    frame.resize(64);
    stranger.send(frame);
    CHECK(stranger.closed_within(10s));
  }
  SECTION("a hello too short for its prefix") {
    WireBytes frame = stranger.hello(make_hello(0, 2));
    frame[0] = 29;
    frame[1] = 0;
    stranger.send(frame);
    CHECK(stranger.closed_within(10s));
  }
  SECTION("a wrong secret, with a long hello of which nothing more is read") {
    Ticket forged = stranger.ticket();
    forged.secret[0] ^= 1;
    Hello hello = make_hello(0, 2);
    hello.configuration.assign(60'000, 'x');
    stranger.send(*encode_hello(forged, hello));
    REQUIRE(stranger.receive() == MessageType::refuse);
    CHECK(stranger.refusal() == "unknown id or secret, or a verdict was given without this rank");
  }
  check_compressed_pair(*rendezvous, id);
}

TEST_CASE("slow and silent clients hold up nobody and are closed at their deadline") {
  Limits limits;
  limits.stranger = 2s;  // in which good hellos arrive
  const auto rendezvous = create_rendezvous("lo", limits);
  const UniqueId id = stamped_id(*rendezvous);
  const auto start = Clock::now();
  RawClient silent(id);
  RawClient slow(id);
  const WireBytes frame = slow.hello(make_hello(0, 2));
  slow.send(ByteView(frame).first(frame.size() - 1));
  check_compressed_pair(*rendezvous, id);
  CHECK(silent.closed_within(10s));
  CHECK(slow.closed_within(10s));
  CHECK(Clock::now() - start >= 2s);
}

TEST_CASE("a member is not bound by a stranger's deadline") {
  Limits limits;
  limits.stranger = 2s;  // in which good hellos arrive
  const auto rendezvous = create_rendezvous("lo", limits);
  const UniqueId id = stamped_id(*rendezvous);
  const auto one = say_hello(*rendezvous, id, make_hello(0, 2));
  const auto deadline_passes = [&] { CHECK(RawClient(id).closed_within(20s)); };  // of all that came before
  deadline_passes();
  const auto other = say_hello(*rendezvous, id, make_hello(1, 2));
  Verdict verdict;
  REQUIRE(other->verdict(&verdict) == Status::ok);
  CHECK(verdict.compressed);
  deadline_passes();  // the listener has closed this rank's connection; its verdict waits in its socket
  REQUIRE(one->verdict(&verdict) == Status::ok);
  CHECK(verdict.compressed);
}

TEST_CASE("the listener's end fails the ranks that wait for it") {
  auto rendezvous = Rendezvous::create("lo");
  const auto client = Rendezvous::create("lo");
  const UniqueId id = stamped_id(*rendezvous);
  const auto session = say_hello(*client, id, make_hello(0, 1));
  rendezvous.reset();
  Verdict verdict;
  CHECK(session->verdict(&verdict) == Status::connection_lost);
}

}  // namespace
}  // namespace zipccl::test
