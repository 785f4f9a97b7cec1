// The ranks' side of the session, and the process's listener. Ranks talk on the caller's thread: they wait anyway.
#include "switcher/rendezvous.hpp"

#include <mutex>
#include <optional>
#include <utility>

#include "switcher/helper_thread.hpp"
#include "switcher/interfaces.hpp"
#include "switcher/listener.hpp"
#include "switcher/stamp.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {
namespace {

using Clock = std::chrono::steady_clock;

struct Frame {
  MessageType type = MessageType::refuse;
  Bytes body;
};

// connection_lost also for bytes that are no frame.
Status receive_frame(Socket* socket, Socket::Deadline deadline, Frame* frame) {
  Bytes header_bytes(frame_header_bytes);
  if (const Status status = socket->receive(header_bytes, deadline); status != Status::ok) return status;
  const auto header = decode_frame_header(header_bytes);
  if (!header) return Status::connection_lost;
  frame->type = header->type;
  frame->body.resize(header->body_bytes);
  return socket->receive(frame->body, deadline);
}

class TcpSession final : public Session {
 public:
  TcpSession(Socket socket, std::uint32_t rank_count, const Limits& limits)
      : limits_(limits), rank_count_(rank_count), socket_(std::move(socket)) {}

  Status verdict(Verdict* verdict) override {
    const std::lock_guard lock(mutex_);
    if (!outcome_) {
      try {
        outcome_ = ask();
      } catch (...) {
        outcome_ = Status::out_of_memory;
      }
      socket_ = Socket();
    }
    if (*outcome_ != Status::ok) return *outcome_;
    try {
      *verdict = verdict_;
      return Status::ok;
    } catch (...) {
      return Status::out_of_memory;
    }
  }

  void withdraw() override {
    const std::lock_guard lock(mutex_);
    if (outcome_) return;
    outcome_ = Status::connection_lost;
    try {
      // Best effort: the loss of the connection says nearly the same.
      static_cast<void>(socket_.send(encode_signal(MessageType::withdraw), Clock::now() + limits_.answer));
    } catch (...) {
    }
    socket_ = Socket();
  }

 private:
  Status ask() {
    const auto deadline = Clock::now() + limits_.answer;
    // The answer may be here already, from a root that has ended since, so a failure to ask proves nothing.
    static_cast<void>(socket_.send(encode_signal(MessageType::ask), deadline));
    Frame frame;
    if (const Status status = receive_frame(&socket_, deadline, &frame); status != Status::ok) return status;
    if (frame.type != MessageType::verdict) return Status::connection_lost;
    auto decoded = decode_verdict(frame.body);
    const std::size_t links = std::size_t{rank_count_} * rank_count_;
    if (!decoded || (decoded->compressed && decoded->links.size() != links)) return Status::connection_lost;
    verdict_ = std::move(*decoded);
    return Status::ok;
  }

  const Limits limits_;
  const std::uint32_t rank_count_;
  std::mutex mutex_;
  Socket socket_;
  std::optional<Status> outcome_;
  Verdict verdict_;
};

class TcpRendezvous final : public Rendezvous {
 public:
  TcpRendezvous(std::string interfaces, const Limits& limits) : interfaces_(std::move(interfaces)), limits_(limits) {}

  ~TcpRendezvous() override {
    if (!thread_) return;
    if (thread_->foreign()) {
      static_cast<void>(listener_.release());
      static_cast<void>(thread_.release());
      return;
    }
    thread_->stop();
    listener_.reset();
  }

  Status stamp(UniqueIdBytes id, std::string* why) override {
    try {
      const std::lock_guard lock(mutex_);
      if (const Status status = open_listener(why); status != Status::ok) return status;
      Stamp stamp;
      if (const Status status = listener_->issue(&stamp); status != Status::ok) {
        *why = "the kernel gave no random bytes for an id's secret";
        return status;
      }
      write_stamp(stamp, id);
      return Status::ok;
    } catch (...) {
      return Status::out_of_memory;
    }
  }

  Status hello(ConstUniqueIdBytes id, const Hello& hello, std::unique_ptr<Session>* session,
               std::string* why) override {
    try {
      return say_hello(id, hello, session, why);
    } catch (...) {
      return Status::out_of_memory;
    }
  }

 private:
  Status open_listener(std::string* why) {
    if (listener_) return Status::ok;
    Endpoint address;
    if (const Status status = choose_address(list_interfaces(), interfaces_, &address, why); status != Status::ok) {
      return status;
    }
    if (!thread_) {
      if (const Status status = HelperThread::start(&thread_, why); status != Status::ok) return status;
    }
    return Listener::open(thread_.get(), address, limits_, &listener_, why);
  }

  Status say_hello(ConstUniqueIdBytes id, const Hello& hello, std::unique_ptr<Session>* session, std::string* why) {
    const auto stamp = read_stamp(id);
    if (!stamp) {
      *why = "the id carries no stamp of zipccl";
      return Status::invalid_argument;
    }
    const auto frame = encode_hello(stamp->ticket, hello);
    if (!frame) {
      *why = "a hello of more than " + std::to_string(max_hello_bytes) + " bytes";
      return Status::invalid_argument;
    }
    Socket socket;
    if (const Status status = Socket::connect(stamp->listener, Clock::now() + limits_.connect, &socket, why);
        status != Status::ok) {
      return status;
    }
    const std::string peer = stamp->listener.text();
    const auto deadline = Clock::now() + limits_.answer;
    if (socket.send(*frame, deadline) != Status::ok) {
      *why = "lost the connection to " + peer + " while saying hello";
      return Status::connection_lost;
    }
    // From here on the root may count on this rank.
    Frame answer;
    if (receive_frame(&socket, deadline, &answer) == Status::ok) {
      if (answer.type == MessageType::acknowledge) {
        *session = std::make_unique<TcpSession>(std::move(socket), hello.rank_count, limits_);
        return Status::ok;
      }
      const auto refusal = decode_refuse(answer.body);
      if (answer.type == MessageType::refuse && refusal) {
        *why = peer + " refused: " + *refusal;
        return Status::refused;
      }
    }
    *why = "no answer from " + peer + " to this rank's hello";
    return Status::timed_out;
  }

  const std::string interfaces_;
  const Limits limits_;
  std::mutex mutex_;
  std::unique_ptr<HelperThread> thread_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace

std::unique_ptr<Rendezvous> create_rendezvous(std::string interfaces, const Limits& limits) {
  return std::make_unique<TcpRendezvous>(std::move(interfaces), limits);
}

std::unique_ptr<Rendezvous> Rendezvous::create(std::string interfaces) {
  try {
    return create_rendezvous(std::move(interfaces), Limits{});
  } catch (...) {
    return nullptr;
  }
}

bool Rendezvous::stamped(ConstUniqueIdBytes id) { return read_stamp(id).has_value(); }

}  // namespace zipccl::switcher
