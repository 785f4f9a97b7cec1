// A rank's side of the session, on the connection over which it said hello. The helper thread listens to the root and
// connects this process with its peers by itself; the rank's own thread only asks and waits. So no rank depends on what
// another one's thread is doing: a job may create two communicators in one group on one rank and singly on another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "switcher/helper_thread.hpp"
#include "switcher/limits.hpp"
#include "switcher/mesh.hpp"
#include "switcher/session.hpp"
#include "switcher/socket.hpp"
#include "switcher/stamp.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {

struct Frame {
  MessageType type = MessageType::refuse;
  WireBytes body;
};

// connection_lost also for bytes that are no frame.
Status receive_frame(Socket* socket, Socket::Deadline deadline, Frame* frame);

class RootLink;

class TcpSession final : public Session {
 public:
  // Where this process is found by peers and by children of the communicator. Both are opened by the first call; null
  // if that failed. Called on the helper thread.
  struct Home {
    Mesh* mesh = nullptr;
    Endpoint listener;
  };
  using HomeSource = std::function<Home(const Ticket& ticket, std::string* why)>;

  struct Identity {
    Stamp stamp;                 // of the communicator that comes out of it; a split's is its child's
    std::optional<Place> place;  // none if the root says it
  };

  // Takes the connection, whose hello was acknowledged, to the helper thread. unsupported if that cannot wait for it;
  // the connection is closed then.
  static Status open(HelperThread* thread, Socket socket, bool ipv6, const Identity& identity, const Limits& limits,
                     HomeSource home, std::unique_ptr<Session>* session);
  ~TcpSession() override;
  TcpSession(const TcpSession&) = delete;
  TcpSession& operator=(const TcpSession&) = delete;

  Status verdict(Verdict* verdict) override;
  Place place() override;
  ParentPointer parent() override;
  Status connect(std::unique_ptr<Channel>* channel, bool* agreed, std::string* why) override;
  void withdraw() override;

 private:
  TcpSession(HelperThread* thread, const Limits& limits, std::shared_ptr<RootLink> link);

  HelperThread* const thread_;
  const Limits limits_;
  const std::shared_ptr<RootLink> link_;
  std::mutex mutex_;
  bool connected_ = false;         // connect() was called
  std::optional<Status> outcome_;  // of the question, or that it cannot be asked any more
  Verdict verdict_;
};

}  // namespace zipccl::switcher
