// The listener's knowledge of every id it stamped: who said hello, and what stands against compression. No sockets.
//
// An id lives from issue() until its verdict is given, or until the last rank that said hello has left. A rank that
// comes later is refused, and so stays native as every verdict given without it.
//
// issue() may be called from any thread, the rest from the helper thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "switcher/session.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {

// The connection of a rank whose hello was accepted.
class Participant {
 public:
  enum class More : bool { none, expected };  // frames to this rank
  // Sends the frame. Must not call back.
  virtual void answer(const std::shared_ptr<const WireBytes>& frame, More more) = 0;

 protected:
  ~Participant() = default;  // owned through its own type
};
using Participants = std::map<std::uint32_t, std::weak_ptr<Participant>>;  // by rank

class Agreements {
 public:
  // A new id with a secret from the kernel. Nonces ascend, so that the oldest unused id can be forgotten.
  Status issue(Ticket* ticket);

  // Empty if the ticket is known, else a refusal.
  std::string check(const Ticket& ticket) const;

  // Counts a rank whose ticket was checked, or returns why it is refused; a refusal makes the verdict native. Whoever
  // notices that the participant is gone calls leave().
  std::string join(std::uint64_t nonce, Hello hello, std::weak_ptr<Participant> participant);

  // Makes the verdict native for a rank that cannot join.
  void object(std::uint64_t nonce, const std::string& reason);

  // A participant withdrew or was lost.
  void leave(std::uint64_t nonce, std::uint32_t rank, const std::string& reason);

  // Decides and answers every participant, the asking rank last: its process may end as soon as it knows. Returns the
  // participants if the verdict is compressed; they may go on to connect with each other.
  Participants decide(std::uint64_t nonce, std::uint32_t asking_rank);

 private:
  struct Member {
    Hello hello;
    std::weak_ptr<Participant> participant;
  };
  struct Agreement {
    Ticket ticket;
    std::map<std::uint32_t, Member> members;
    std::string objection;  // the first one
  };

  void forget_unused();
  Verdict verdict_of(const Agreement& agreement) const;

  mutable std::mutex mutex_;
  std::uint64_t next_nonce_ = 0;                   // 0: none issued yet
  std::map<std::uint64_t, Agreement> agreements_;  // by nonce, oldest first
};

}  // namespace zipccl::switcher
