// What a process has one of: helper thread, listener for stamped ids, mesh and pollers. Each comes with its first use.
#include "switcher/rendezvous.hpp"

#include <mutex>
#include <utility>

#include "switcher/descriptors.hpp"
#include "switcher/helper_thread.hpp"
#include "switcher/interfaces.hpp"
#include "switcher/lineage.hpp"
#include "switcher/listener.hpp"
#include "switcher/mesh.hpp"
#include "switcher/pollers.hpp"
#include "switcher/stamp.hpp"
#include "switcher/tcp_session.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {
namespace {

using Clock = std::chrono::steady_clock;

class TcpRendezvous final : public Rendezvous {
 public:
  TcpRendezvous(std::string interfaces, const Limits& limits) : interfaces_(std::move(interfaces)), limits_(limits) {}

  ~TcpRendezvous() override {
    if (!thread_) return;
    if (thread_->foreign()) {
      static_cast<void>(listener_.release());
      static_cast<void>(mesh_.release());
      static_cast<void>(pollers_.release());
      static_cast<void>(thread_.release());
      return;
    }
    thread_->stop();
    listener_.reset();
    mesh_.reset();
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

  Status hello(const Invitation& invitation, const Hello& hello, std::unique_ptr<Session>* session,
               std::string* why) override {
    try {
      return say_hello(invitation, hello, session, why);
    } catch (...) {
      return Status::out_of_memory;
    }
  }

  Status add(Poller* poller) override {
    try {
      const std::lock_guard lock(mutex_);
      std::string why;
      const Status status = start_thread(&why);
      if (status == Status::ok) pollers_->add(poller, thread_->context());
      return status;
    } catch (...) {
      return Status::out_of_memory;
    }
  }
  void remove(Poller* poller) override { pollers_->remove(poller); }
  void wake() override { pollers_->wake(); }

  bool awaited() override {
    const std::lock_guard lock(mutex_);
    return listener_ != nullptr && listener_->awaited();
  }

  void close_in_child() override { descriptors::close_all(); }

 private:
  Status start_thread(std::string* why) { return thread_ != nullptr ? Status::ok : HelperThread::start(&thread_, why); }

  Status choose_and_start(Endpoint* address, std::string* why) {
    const Status status = choose_address(list_interfaces(), interfaces_, address, why);
    return status == Status::ok ? start_thread(why) : status;
  }

  Status open_listener(std::string* why) {
    if (listener_) return Status::ok;
    Endpoint address;
    const Status status = choose_and_start(&address, why);
    return status == Status::ok ? Listener::open(thread_.get(), address, limits_, &listener_, why) : status;
  }

  TcpSession::Home home(const Ticket& agreed, std::string* why) {
    const std::lock_guard lock(mutex_);
    if (open_listener(why) != Status::ok) return {};
    Endpoint address = listener_->endpoint();
    address.port = 0;
    if (!mesh_ && Mesh::open(thread_.get(), address, limits_, pollers_.get(), &mesh_, why) != Status::ok) return {};
    listener_->admit_children(agreed);
    return {mesh_.get(), listener_->endpoint()};
  }

  Status say_hello(const Invitation& invitation, const Hello& hello, std::unique_ptr<Session>* session,
                   std::string* why) {
    const Stamp stamp = stamp_of(invitation);
    const bool split = invitation.descent.kind == Descent::Kind::split;
    if (stamp.listener.port == 0 || hello.choice.has_value() != split) {
      *why = "not an invitation to this hello";
      return Status::invalid_argument;
    }
    const auto frame = encode_hello(stamp.ticket, hello, invitation.descent);
    if (!frame) {
      *why = "a hello of more than " + std::to_string(max_hello_bytes) + " bytes";
      return Status::invalid_argument;
    }
    {
      const std::lock_guard lock(mutex_);
      if (start_thread(why) != Status::ok) return Status::invalid_argument;
    }
    Socket socket;
    if (const Status status = Socket::connect(stamp.listener, Clock::now() + limits_.connect, &socket, why);
        status != Status::ok) {
      return status;
    }
    const std::string peer = stamp.listener.text();
    const auto deadline = Clock::now() + limits_.answer;
    if (socket.send(*frame, deadline) != Status::ok) {
      *why = "lost the connection to " + peer + " while saying hello";
      return Status::connection_lost;
    }
    // From here on the root may count on this rank.
    Frame answer;
    if (receive_frame(&socket, deadline, &answer) == Status::ok) {
      if (answer.type == MessageType::acknowledge) {
        TcpSession::Identity identity{stamp, Place{hello.rank, hello.rank_count}};
        if (split) {
          identity.stamp.ticket = ticket_of_color(stamp.ticket, hello.choice->color);
          identity.place.reset();
        }
        const auto home_source = [this](const Ticket& agreed, std::string* reason) { return home(agreed, reason); };
        if (TcpSession::open(thread_.get(), std::move(socket), stamp.listener.ipv6, identity, limits_, home_source,
                             session) == Status::ok) {
          return Status::ok;
        }
        // The root has seen this rank leave, as the others will hear.
        *why = "cannot wait for the answers of " + peer;
        return Status::refused;
      }
      const auto refusal = decode_text(answer.body);
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
  std::unique_ptr<Pollers> pollers_ = std::make_unique<Pollers>();
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Mesh> mesh_;
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
