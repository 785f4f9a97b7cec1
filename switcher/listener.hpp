// The root's side of the session: accepts ranks on the helper thread and carries their messages to Agreements.
//
// A connection is a stranger until its hello is accepted: it has a deadline, and 35 bytes of it (60 if it is meant for
// a child) are read before its secret is checked. Afterwards it stays open until a native verdict, the result of
// connecting the ranks, the rank's withdrawal or its loss. The process needs a file descriptor for every rank in
// between, as NCCL's own bootstrap does.
#pragma once

#include <memory>
#include <string>

#include "switcher/helper_thread.hpp"
#include "switcher/limits.hpp"
#include "switcher/stamp.hpp"

namespace zipccl::switcher {

class Listener {
 public:
  // Listens on the address, at a port that the kernel chooses. The thread must be stopped before the listener is
  // destroyed, and destroyed after it.
  static Status open(HelperThread* thread, const Endpoint& address, const Limits& limits,
                     std::unique_ptr<Listener>* listener, std::string* why);
  virtual ~Listener() = default;

  // A stamp for one more id. Thread-safe.
  virtual Status issue(Stamp* stamp) = 0;
  // Children of this agreed communicator may say hello here. Thread-safe.
  virtual void admit_children(const Ticket& parent) = 0;
  virtual const Endpoint& endpoint() const = 0;
  // Whether ranks still expect an answer about a child, or about connecting. Thread-safe.
  virtual bool awaited() const = 0;
};

}  // namespace zipccl::switcher
