// The classes of a communicator's all-to-alls and, for every peer and direction, of its sends and receives (section 5
// of the design, "Fenced switch").
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "interpose/call_class.hpp"
#include "switcher/fences.hpp"

namespace zipccl::interpose {

class TransferClasses final : private CallClass::Owner {
 public:
  // Compressed from the first call on if the communicator has staging for transfers. All must outlive the object.
  TransferClasses(CommState& state, switcher::Rendezvous& rendezvous, switcher::Fences& fences);
  TransferClasses(const TransferClasses&) = delete;
  TransferClasses& operator=(const TransferClasses&) = delete;
  void start() { all_to_all_.start(); }  // as CallClass::start()

  bool keep();  // as Classes::keep()

  CallClass& all_to_all() { return all_to_all_; }
  const CallClass& all_to_all() const { return all_to_all_; }
  // Of everything that this rank sends to, or receives from, a peer: whatever its type and size, both ends count it. By
  // the calling thread.
  CallClass& pair(std::uint32_t peer, bool sends);

  struct PairState {
    std::uint32_t peer = 0;
    bool sends = false;
    CallClass::State state;
  };
  std::vector<PairState> pair_states() const;  // for the report, from any thread
  bool idle() const;                           // as CallClass::idle()

 private:
  std::uint64_t reserve(std::string* why) override;
  void apply(const switcher::FenceSetting&) override {}  // every transfer carries its own room
  Usage usage() const override;
  std::uint64_t enqueued_chunks() const override;

  CommState& state_;
  switcher::Rendezvous& rendezvous_;
  switcher::Fences& fences_;
  const switcher::FenceSetting initial_;
  CallClass all_to_all_;
  mutable std::mutex mutex_;                                                    // guards the map's shape
  std::map<std::pair<std::uint32_t, bool>, std::unique_ptr<CallClass>> pairs_;  // by peer and whether this rank sends
};

}  // namespace zipccl::interpose
