// A Fence between the thread that makes a class's calls and the one that gets messages for it. Thread-safe; never
// throws. Holds its lock while it sends, so that messages leave in order, and never while it waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "codec/status.hpp"
#include "switcher/fence.hpp"

namespace zipccl::switcher {

class FenceTransport {
 public:
  // Never blocks, and keeps the order for each receiver. connection_lost: it will get nothing any more; out_of_memory:
  // nothing was sent.
  virtual Status send(std::uint32_t receiver, const FenceMessage& message) = 0;

 protected:
  ~FenceTransport() = default;
};

class FenceGate {
 public:
  // As Fence. The transport must outlive the gate.
  FenceGate(std::vector<std::uint32_t> participants, std::uint32_t own, const FenceSetting& initial,
            FenceTransport* transport);

  // Begins the class's next call, whose number and setting it tells. At a fence it waits for the decision, which takes
  // the helper threads of the participants and none of their callers. connection_lost if the decision will never come,
  // aborted after abort(); the call has then not begun.
  Status enter(FenceSetting* setting, std::uint64_t* call);

  void wish(const FenceSetting& setting);
  bool keep();  // false if a switch still lies ahead
  void receive(std::uint32_t sender, const FenceMessage& message);
  void lose(std::uint32_t participant);
  bool send_again();  // what memory lacked for; true if that is still so
  void abort();       // from any thread: waiting calls end, later ones do not begin

  struct State {
    std::uint64_t calls = 0;
    FenceSetting current;
    bool frozen = false;
    std::uint64_t waits = 0;  // calls that waited for a decision
    std::uint64_t wait_ns = 0;
  };
  State state() const;

 private:
  void send_all();
  template <typename Step>
  void step(Step step);

  FenceTransport* const transport_;
  mutable std::mutex mutex_;
  std::condition_variable decided_;
  Fence fence_;
  Status failure_ = Status::ok;
  std::uint64_t waits_ = 0;
  std::uint64_t wait_ns_ = 0;
};

}  // namespace zipccl::switcher
