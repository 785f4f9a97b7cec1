// Fenced switch: how ranks that run on their own change together how a class of calls travels (section 5 of the
// design).
//
// A class is a sequence of calls that all its participants make in the same order, as NCCL demands: a communicator's
// all-gathers of one type, or what one rank sends another. Every participant numbers them by itself, from 0. A switch
// is a setting and the number of the first call that has it, the fence.
//
// Every participant tells the coordinator, which is the one of lowest rank, what it wishes. When all have, their wishes
// combined are what the class should have: compressed if all wish so, with the most room that any wishes. If it has
// something else, the coordinator proposes a call that, as far as it knows, nobody has reached. A participant accepts
// if it has not begun that call; it then begins neither it nor any later one before it has the decision. If all have
// accepted, the switch is committed, else it is cancelled and tried again with a larger margin, some times.
//
//   message   to           fields
//   wish      coordinator  call: calls begun so far; setting
//   propose   participant  round; call: the fence; setting
//   accept    coordinator  round; call: calls begun so far
//   reject    coordinator  round; call: calls begun so far
//   commit    participant  round
//   cancel    participant  round
//   keep      coordinator  none: this participant takes part in no further switch
//
// Messages between two participants arrive in order, and a participant's loss behind what it has sent before. So one
// that leaves in good order takes nothing with it: nobody has calls to make that it did not make, and before its last
// call it had all decisions up to there.
// Losing a participant freezes the class. One that has accepted and loses the coordinator cannot know the decision. It
// must not begin the fence's call; that call could not complete without the coordinator anyway.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace zipccl::switcher {

// How a class's calls travel. Default: natively.
struct FenceSetting {
  bool compressed = false;
  std::uint32_t pool_fraction = 0;  // codec::Layout; 0 unless compressed
  std::uint64_t staging_bytes = 0;  // smallest of the participants' staging; 0 unless compressed
  std::uint64_t history = 0;        // what the class's first calls were, where participants compare it; else 0
  bool operator==(const FenceSetting&) const = default;
};

// Native if any is or if histories differ, else the most room and the least staging. At least one setting.
FenceSetting combine(std::span<const FenceSetting> wishes);

// Participants where the class is that of all ranks: 0 to rank_count - 1.
std::vector<std::uint32_t> all_ranks(std::uint32_t rank_count);

enum class FenceMessageType : std::uint8_t {
  wish = 1,
  propose = 2,
  accept = 3,
  reject = 4,
  commit = 5,
  cancel = 6,
  keep = 7
};

struct FenceMessage {
  FenceMessageType type = FenceMessageType::keep;
  std::uint64_t round = 0;
  std::uint64_t call = 0;
  FenceSetting setting;
  bool operator==(const FenceMessage&) const = default;
};

// One participant's part in one class. No sockets, threads, clocks or locks: not thread-safe.
class Fence {
 public:
  // Attempt i proposes a call first_margin * margin_growth^i after the furthest one known. A proposal travels for well
  // under a millisecond, in which a host makes a few dozen calls at most, and small jobs should not wait for a fence
  // that is far away. A cancelled attempt costs a round trip at most, and only a rank that is at its fence.
  static constexpr std::uint64_t first_margin = 4;
  static constexpr std::uint64_t margin_growth = 4;
  static constexpr unsigned max_attempts = 6;  // then not before somebody wishes something else

  // At least two participants, `own` among them. `initial` is the same on all.
  Fence(std::vector<std::uint32_t> participants, std::uint32_t own, const FenceSetting& initial);

  enum class Entry : std::uint8_t {
    begun,      // the call has begun and has *setting
    undecided,  // not begun; ask again after the next receive() or lose()
    lost        // as undecided, but the decision will never come
  };
  Entry enter(FenceSetting* setting);

  // What this participant would have from now on. All must have said so before anything changes.
  void wish(const FenceSetting& setting);
  // Takes part in no further switch, so that the class stays as it is. A fence that is accepted already still counts.
  void keep();

  // From another participant. False if the sender broke the protocol.
  bool receive(std::uint32_t sender, const FenceMessage& message);
  void lose(std::uint32_t participant);

  // Messages to send, in this order.
  struct Outgoing {
    std::uint32_t receiver = 0;
    FenceMessage message;
  };
  std::deque<Outgoing>& outgoing() { return outgoing_; }

  std::uint64_t calls() const { return calls_; }
  const FenceSetting& current() const { return current_; }         // of the latest call
  bool settled() const { return !proposal_ && decided_.empty(); }  // no switch lies ahead that may have been decided
  bool frozen() const { return frozen_; }                          // nothing will change beyond what is decided

 private:
  struct Proposal {
    std::uint64_t round = 0;
    std::uint64_t call = 0;
    FenceSetting setting;
    std::size_t missing = 0;  // the coordinator's: answers
  };
  struct Switch {
    std::uint64_t call = 0;
    FenceSetting setting;
  };
  struct Participant {  // as the coordinator knows it
    std::uint32_t rank = 0;
    bool wished = false;
    FenceSetting wish;
    std::uint64_t calls = 0;
  };

  bool coordinator() const { return own_ == coordinator_; }
  Participant* find(std::uint32_t rank);
  void send(std::uint32_t receiver, const FenceMessage& message) { outgoing_.push_back({receiver, message}); }
  void send_to_others(const FenceMessage& message);
  bool lead(Participant& sender, const FenceMessage& message);
  bool follow(const FenceMessage& message);
  void note_wish(Participant& participant, std::uint64_t calls, const FenceSetting& setting);
  void propose_if_needed();
  void answer(const FenceMessage& proposal);
  void commit();
  void cancel();

  const std::uint32_t own_;
  const std::uint32_t coordinator_;
  std::vector<Participant> participants_;  // by rank
  std::uint64_t calls_ = 0;
  FenceSetting current_;
  FenceSetting latest_;               // after all that is decided
  std::uint64_t latest_call_ = 0;     // of the latest switch
  std::deque<Switch> decided_;        // not reached yet
  std::optional<Proposal> proposal_;  // accepted here and not decided
  std::optional<FenceSetting> own_wish_;
  std::uint64_t round_ = 0;
  unsigned attempts_ = 0;
  bool frozen_ = false;
  bool coordinator_lost_ = false;
  std::deque<Outgoing> outgoing_;
};

}  // namespace zipccl::switcher
