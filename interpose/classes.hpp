// A communicator's classes of calls (section 5 of the design, "Fenced switch"): all-gathers, all-to-alls, and what each
// pair of ranks sends each other.
//
// The calling thread numbers the calls, looks at what they send while they go natively, reserves staging when
// compression pays, and wishes; the helper thread carries on what the ranks say of it.
#pragma once

#include <cstdint>
#include <string>

#include "interpose/call_class.hpp"
#include "interpose/transfer_classes.hpp"
#include "switcher/fences.hpp"

namespace zipccl::interpose {

class Classes final : private CallClass::Owner {
 public:
  // Of a communicator that the ranks have agreed on, with its channel; `state` owns the object. With staging the class
  // is compressed from its first call on, without it native until a switch. `rendezvous` outlives everything.
  Classes(CommState& state, switcher::Rendezvous& rendezvous);
  Status start();  // once, before the first call; errors are those of Rendezvous::add
  Classes(const Classes&) = delete;
  Classes& operator=(const Classes&) = delete;

  // Of calls that route_all_gather() lets pass. After a call has begun that goes compressed, communicator.agreement has
  // its settings.
  CallClass& all_gather() { return all_gather_; }
  const CallClass& all_gather() const { return all_gather_; }
  TransferClasses& transfers() { return transfers_; }
  const TransferClasses& transfers() const { return transfers_; }

  // All classes that have had calls stay as they are: the ranks may number them differently from now on. False if one
  // cannot, as a switch lies ahead. By the calling thread.
  bool keep();
  void abort() { fences_.abort(); }  // from any thread: a call that waits at a fence ends
  bool idle() const { return all_gather_.idle() && transfers_.idle(); }

 private:
  std::uint64_t reserve(std::string* why) override;
  void apply(const switcher::FenceSetting& setting) override;
  Usage usage() const override;
  std::uint64_t enqueued_chunks() const override;

  CommState& state_;
  switcher::Rendezvous& rendezvous_;
  bool staging_agreed_;
  switcher::Fences fences_;
  CallClass all_gather_;
  TransferClasses transfers_;
};

}  // namespace zipccl::interpose
