// The listener's knowledge of every id it stamped: who said hello, and what stands against compression. No sockets.
//
// An id lives from issue() until its verdict is given, or until the last rank that said hello has left. A rank that
// comes later is refused, and so stays native as every verdict given without it.
//
// A child of a communicator whose verdict was compressed needs no id: its agreement begins with the first rank that
// proves to descend from it, and ends as an id's. A rank that comes later begins another, which is native for want of
// the others.
//
// issue(), admit_children() and child_is_open() may be called from any thread, the rest from the helper thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "switcher/session.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {

// The connection of a rank whose hello was accepted.
class Participant {
 public:
  enum class More : bool { none, expected };  // frames to this rank
  // Sends the frame. Must not call back.
  virtual void answer(const std::shared_ptr<const WireBytes>& frame, More more) = 0;
  // Tells a rank that said hello to a split which place it has in which child, to which it belongs from now on. Must
  // not call back.
  virtual void move(std::uint64_t child, const Place& place) = 0;

 protected:
  ~Participant() = default;  // owned through its own type
};
using Participants = std::map<std::uint32_t, std::weak_ptr<Participant>>;  // by rank

// A communicator whose verdict is compressed.
struct Agreed {
  std::uint64_t nonce = 0;
  Participants participants;
};

class Agreements {
 public:
  // A new id with a secret from the kernel. Nonces ascend, so that the oldest unused id can be forgotten.
  Status issue(Ticket* ticket);

  // Children of this communicator, whose verdict is compressed, may join. It need not have been decided here.
  void admit_children(const Ticket& parent);

  // Whether a rank that said hello to a child may still ask. Nobody asks for nonblocking children, which are native.
  bool child_is_open() const;

  // Empty if the ticket is known or, with a descent, follows from a known parent's; else a refusal.
  std::string check(const Ticket& ticket, const Descent& descent = {}) const;

  // Counts a rank whose ticket was checked, or returns why it is refused; a refusal makes the verdict native. Whoever
  // notices that the participant is gone calls leave().
  std::string join(const Ticket& ticket, const Descent& descent, Hello hello, std::weak_ptr<Participant> participant);

  // Makes the verdict native for a rank that cannot join.
  void object(std::uint64_t nonce, const std::string& reason);

  // A participant withdrew or was lost.
  void leave(std::uint64_t nonce, std::uint32_t rank, const std::string& reason);

  // Decides and answers every participant, the asking rank last: its process may end as soon as it knows. Returns what
  // is compressed: one communicator or none, of a split one for each color or fewer. Their participants may go on to
  // connect with each other.
  std::vector<Agreed> decide(std::uint64_t nonce, std::uint32_t asking_rank);

 private:
  struct Member {
    Hello hello;
    std::weak_ptr<Participant> participant;
    std::string left;  // of a split: why; what an id's rank that left has said is forgotten
  };
  struct Agreement {
    Ticket ticket;
    Descent descent;
    std::map<std::uint32_t, Member> members;
    std::string objection;  // the first one
  };
  // One communicator to be. Members by rank; null where none said hello.
  struct Candidate {
    Ticket ticket;
    std::vector<const Member*> members;
    std::string objection;
  };

  void forget_unused();
  static std::vector<Candidate> candidates_of(const Agreement& agreement);
  static Verdict verdict_of(const Candidate& candidate);

  mutable std::mutex mutex_;
  std::uint64_t next_nonce_ = 0;                   // 0: none issued yet
  std::map<std::uint64_t, Agreement> agreements_;  // by nonce; those of ids oldest first
  std::map<std::uint64_t, Ticket> parents_;        // by nonce; verdict compressed
  std::deque<std::uint64_t> parents_by_age_;
};

}  // namespace zipccl::switcher
