// One class of a communicator's calls on one rank: how its calls travel, and what this rank does so that the ranks
// change that together (switcher/fence.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "interpose/observer.hpp"
#include "interpose/promotion.hpp"
#include "switcher/fence_gate.hpp"

namespace zipccl::interpose {

struct CommState;

class CallClass {
 public:
  // What a class needs of its communicator; the calling thread asks for it.
  class Owner {
   public:
    // Memory for compressed calls, reserved when first asked for: its bytes, 0 with *why if there is too little.
    virtual std::uint64_t reserve(std::string* why) = 0;
    // The next call is the first one with this setting, which is compressed.
    virtual void apply(const switcher::FenceSetting& setting) = 0;
    // What compressed calls have cost so far, and how many chunks there are, finished or not.
    virtual Usage usage() const = 0;
    virtual std::uint64_t enqueued_chunks() const = 0;

   protected:
    ~Owner() = default;
  };

  // What a rank does in its class's calls. Ranks of a collective do the same. Of a pair one sends, and looks at what it
  // sends; the other one agrees to what that wants. Both compare their first calls before: nothing else can show that
  // the two ends of a transfer name different types, which NCCL allows.
  enum class Part : std::uint8_t { same, sends, receives };
  static constexpr std::uint64_t compared_calls = 8;

  // `name` is static, as in "all-gathers". `initial` as for the gate. An `unchanging` class stays as it is, on all
  // ranks. `receiver`: whom the records go to that tell what this rank's messages of the class lacked room for, as
  // OverflowPort::Sent has it; none where other classes' records go there too, and the communicator's usage must do.
  // The first three and the owner must outlive the object.
  CallClass(const CommState& state, switcher::FenceGate& gate, const char* name, Owner* owner,
            const switcher::FenceSetting& initial, Rooms rooms, bool unchanging, Part part = Part::same,
            std::optional<std::uint32_t> receiver = {});

  void start();  // once, when the gate's messages can be sent, before the first call

  struct Call {
    const void* send = nullptr;
    std::uint64_t count = 0;
    codec::Stream stream = nullptr;
    bool capturing = false;  // into a CUDA graph
    bool eligible = true;    // could be compressed; else it only counts
    std::uint64_t form = 0;  // what both ends of a pair must agree on: type and bytes
  };
  // Begins the class's next call; its participants begin the same calls in the same order, and whether one goes
  // compressed is the same on all of them. Waits at a fence (rule R4). Not ok: aborted, or connection_lost at a fence
  // that cannot be decided; the call must then fail.
  Status begin(const Call& call, bool* compressed);
  // Stays as it is, but for a switch that the ranks may have agreed on already: false if one lies ahead.
  bool keep();

  std::uint32_t pool_fraction() const { return current_.pool_fraction; }  // of the latest call; by the calling thread
  bool idle() const;  // no look is under way; by the calling thread, or when there is none

  struct Switch {
    std::uint64_t call = 0;  // the first one that has it
    bool compressed = false;
    std::uint32_t pool_bytes = 0;  // for every 1,024 values
  };
  struct State {
    switcher::FenceGate::State gate;
    std::vector<Switch> switches;     // the latest ones
    std::uint64_t staging_bytes = 0;  // reserved, or agreed once it has been compressed
    std::string reason;               // why this rank does not wish compression
    bool ever_compressed = false;
  };
  State state() const;  // for the report, from any thread

 private:
  void switch_to(const switcher::FenceSetting& setting, std::uint64_t call);
  void consider(const Call& call, std::uint64_t number);
  void review(const Call& call, std::uint64_t number);
  bool reserve(std::uint64_t number);
  void remember(std::uint64_t form, std::uint64_t number);
  void agree(std::uint64_t number);
  void wish();
  bool compares() const { return part_ != Part::same && !initially_compressed_; }

  const CommState& comm_;
  switcher::FenceGate& gate_;
  const char* const name_;
  Owner* const owner_;
  const bool unchanging_;
  const Part part_;
  const std::optional<std::uint32_t> receiver_;
  const bool initially_compressed_;
  const std::uint32_t least_room_;

  // The calling thread's.
  switcher::FenceSetting current_;
  Promotion promotion_;
  std::unique_ptr<Observer> observer_;
  bool unobservable_ = false;  // no memory for an observer
  bool kept_ = false;
  bool history_complete_ = false;
  bool wish_waits_ = false;  // for the history
  bool agreed_ = false;      // a receiver's wish is made
  std::uint64_t history_ = 0;
  std::uint64_t sent_messages_ = 0;  // compressed ones, of a sender
  std::uint64_t sent_values_ = 0;
  std::uint64_t staging_bytes_ = 0;  // this rank's
  std::string memory_reason_;

  mutable std::mutex mutex_;  // guards what follows, for state()
  State shown_;
};

}  // namespace zipccl::interpose
