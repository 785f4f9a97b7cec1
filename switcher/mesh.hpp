// This process's connections with the processes of its communicators' other ranks.
//
// Of two processes the one with the larger identity dials, so that there is never more than one connection; a process
// has at most max_dials under way. A connection stays until one of its ends does: the next communicator of both finds
// it. One that is lost is not made again for the communicators that used it. Ranks of this process need none.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "switcher/acceptor.hpp"
#include "switcher/channel.hpp"
#include "switcher/helper_thread.hpp"
#include "switcher/limits.hpp"
#include "switcher/membership.hpp"
#include "switcher/peer_connection.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {

class Mesh final : public PeerConnection::Owner {
 public:
  // Listens on the address, at a port that the kernel chooses. The thread must be stopped before the mesh is destroyed,
  // and destroyed after it.
  static Status open(HelperThread* thread, const Endpoint& address, const Limits& limits, Pollers* pollers,
                     std::unique_ptr<Mesh>* mesh, std::string* why);

  // Where the other ranks' processes find this one.
  const ProcessId& process() const { return process_; }
  const Endpoint& endpoint() const { return acceptor_.endpoint(); }

  // Begins to accept what is meant for the rank, until the channel is destroyed, which must happen before the mesh is.
  // `joined` is called once, on any thread, when the rank is connected with all others or cannot be.
  Status join(const Ticket& ticket, std::uint32_t rank, std::uint32_t rank_count, Membership::Joined joined,
              std::shared_ptr<Membership>* member, std::unique_ptr<Channel>* channel, std::string* why);
  // Connects the member with its peers, given by rank. Returns at once.
  void introduce(const std::shared_ptr<Membership>& member, std::vector<PeerAddress> peers);

 private:
  class MemberChannel;
  using MemberKey = std::pair<std::uint64_t, std::uint32_t>;  // nonce and rank

  struct Waiter {
    std::weak_ptr<Membership> member;
    std::uint32_t peer = 0;
  };
  struct Absent {  // a process with which there is no connection yet
    PeerAddress address;
    std::vector<Waiter> waiters;
  };

  Mesh(HelperThread* thread, const Limits& limits, Pollers* pollers);

  void on_connected(const PeerConnection::Pointer& connection) override;
  bool on_greeting(const PeerConnection::Pointer& connection, const Greeting& greeting) override;
  bool on_frame(const PeerConnection::Pointer& connection, const PeerHeader& header, Bytes payload) override;
  void on_lost(const PeerConnection::Pointer& connection, const std::string& reason) override;

  void accept(Stream stream);
  void reach(const std::shared_ptr<Membership>& member, std::uint32_t rank, const PeerAddress& peer);
  void start_dials();
  void dial(const Absent& absent, const Ticket& ticket);
  void fail_waiters(const ProcessId& process, const std::string& reason);
  static void fail(const Absent& absent, const std::string& reason);
  void settle(const PeerConnection::Pointer& connection);
  void close(const std::shared_ptr<Membership>& member);
  void stop_waiting(const std::shared_ptr<Membership>& member);

  std::shared_ptr<Membership> find(std::uint64_t nonce, std::uint32_t rank) const;
  std::vector<std::shared_ptr<Membership>> members(std::uint64_t nonce) const;
  std::vector<std::shared_ptr<Membership>> members() const;

  HelperThread* const thread_;
  const Limits limits_;
  Pollers* const pollers_;
  ProcessId process_{};

  mutable std::mutex mutex_;
  std::map<MemberKey, std::shared_ptr<Membership>> members_;

  // On the helper thread only.
  std::map<ProcessId, PeerConnection::Pointer> connections_;
  std::map<ProcessId, Absent> absent_;
  std::deque<ProcessId> to_dial_;
  std::size_t dialling_ = 0;
  std::deque<std::weak_ptr<PeerConnection>> strangers_;  // accepted, oldest first; also some that were greeted since
  Acceptor acceptor_;
};

}  // namespace zipccl::switcher
