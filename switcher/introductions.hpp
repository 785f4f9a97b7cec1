// The root's part in connecting the ranks of a communicator whose verdict was compressed: tells every rank where the
// others wait, collects their reports, and gives all of them one result. No sockets. Used on the helper thread only,
// but for pending().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "switcher/agreements.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {

class Introductions {
 public:
  void begin(std::uint64_t nonce, Participants participants);

  // A rank waits for its peers. False if it has said so before.
  bool enter(std::uint64_t nonce, std::uint32_t rank, const PeerAddress& address);

  // A rank is connected with all others, or `failure` says why not. False if it cannot know.
  bool report(std::uint64_t nonce, std::uint32_t rank, const std::string& failure);

  // A rank was lost or does not want to connect.
  void leave(std::uint64_t nonce, std::uint32_t rank, const std::string& reason);

  // Communicators whose result is not given yet.
  std::size_t pending() const { return pending_.load(); }

  // The time is up: blames the first rank that is not connected.
  void expire(std::uint64_t nonce);

 private:
  struct Introduction {
    Participants participants;
    std::map<std::uint32_t, PeerAddress> entered;
    std::set<std::uint32_t> connected;
  };
  using Entry = std::map<std::uint64_t, Introduction>::iterator;

  void finish(Entry entry, const ConnectResult& result);

  std::map<std::uint64_t, Introduction> introductions_;  // by nonce; a result ends each
  std::atomic<std::size_t> pending_ = 0;                 // of them
};

}  // namespace zipccl::switcher
