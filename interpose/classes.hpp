// A communicator's classes of calls: how each travels now, and what this rank does so that the ranks change it together
// (section 5 of the design, "Fenced switch"). So far there is one class, all-gathers of BF16.
//
// The calling thread numbers the calls, looks at what they send while they go natively, reserves staging when
// compression pays, and wishes; the helper thread carries on what the ranks say of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "interpose/observer.hpp"
#include "interpose/promotion.hpp"
#include "switcher/fences.hpp"

namespace zipccl::interpose {

struct CommState;

class Classes {
 public:
  // Of a communicator that the ranks have agreed on, with its channel; `state` owns the object. With staging the class
  // is compressed from its first call on, without it native until a switch. `rendezvous` outlives everything.
  Classes(CommState& state, switcher::Rendezvous& rendezvous);
  ~Classes();
  Classes(const Classes&) = delete;
  Classes& operator=(const Classes&) = delete;

  struct Call {
    const void* send = nullptr;
    std::uint64_t count = 0;
    codec::Stream stream = nullptr;
    bool capturing = false;  // into a CUDA graph
    bool eligible = true;    // could be compressed; else it only counts
  };
  // Begins the next all-gather that route_all_gather() lets pass; every rank's calling thread asks for the same calls
  // in the same order. Whether it goes compressed is the same on all ranks; communicator.agreement then has its
  // settings. Waits at a fence (rule R4). Not ok: aborted, or connection_lost at a fence that cannot be decided; the
  // call must then fail.
  Status begin_all_gather(const Call& call, bool* compressed);

  void abort();       // from any thread: a call that waits at a fence ends
  bool idle() const;  // no look is under way; by the calling thread, or when there is none

  struct Switch {
    std::uint64_t call = 0;  // the first one that has it
    bool compressed = false;
    std::uint32_t pool_bytes = 0;  // for every 1,024 values
  };
  struct State {
    switcher::FenceGate::State gate;
    std::vector<Switch> switches;  // the latest ones
    std::uint64_t staging_bytes = 0;
    std::string reason;  // why this rank does not wish compression
    bool ever_compressed = false;
  };
  State all_gather_state() const;  // for the report, from any thread

 private:
  void switch_to(const switcher::FenceSetting& setting, std::uint64_t call);
  void consider(const Call& call, std::uint64_t number);
  void review(std::uint64_t number);
  bool reserve(std::uint64_t number);
  void wish();
  std::uint64_t enqueued_chunks() const;

  CommState& state_;
  switcher::Rendezvous& rendezvous_;
  switcher::Fences fences_;
  switcher::FenceGate& gate_;

  // The calling thread's.
  switcher::FenceSetting current_;
  Promotion promotion_;
  std::unique_ptr<Observer> observer_;
  bool unobservable_ = false;  // no memory for an observer
  bool captured_ = false;
  std::string memory_reason_;

  mutable std::mutex mutex_;  // guards what follows, for all_gather_state()
  State shown_;
};

}  // namespace zipccl::interpose
