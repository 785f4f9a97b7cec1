// A rank's side of the session, on the connection over which it said hello. Ranks talk on the caller's thread: they
// wait anyway.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "switcher/limits.hpp"
#include "switcher/mesh.hpp"
#include "switcher/session.hpp"
#include "switcher/socket.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {

struct Frame {
  MessageType type = MessageType::refuse;
  WireBytes body;
};

// connection_lost also for bytes that are no frame.
Status receive_frame(Socket* socket, Socket::Deadline deadline, Frame* frame);

class TcpSession final : public Session {
 public:
  // The process's mesh, opened by the first call; null if that failed.
  using MeshSource = std::function<Mesh*(std::string* why)>;

  struct Identity {
    Ticket ticket;
    std::uint32_t rank = 0;
    std::uint32_t rank_count = 0;
  };

  TcpSession(Socket socket, const Identity& identity, const Limits& limits, MeshSource mesh);

  Status verdict(Verdict* verdict) override;
  Status connect(std::unique_ptr<Channel>* channel, bool* agreed, std::string* why) override;
  void withdraw() override;

 private:
  Status ask();
  Status connect_ranks(std::unique_ptr<Channel>* channel, ConnectResult* result);
  // Connects with the peers and reports, unless the result is known before.
  Status join_peers(Mesh* mesh, const std::shared_ptr<Membership>& member, const Frame& peers);
  void report(const std::string& failure);
  void wait_for(const Membership& member) const;
  Socket::Deadline answer_deadline() const { return std::chrono::steady_clock::now() + limits_.answer; }

  const Limits limits_;
  const Identity identity_;
  const MeshSource mesh_;
  std::mutex mutex_;
  Socket socket_;
  std::optional<Status> outcome_;
  Verdict verdict_;
};

}  // namespace zipccl::switcher
