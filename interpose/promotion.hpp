// When a class of calls should be compressed, and with how much room, as one rank sees it. Pure: no device, no clock,
// no other rank. What all ranks make of it is the fence's matter (switcher/fence.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "interpose/observer.hpp"

namespace zipccl::interpose {

// What a communicator's compressed calls have cost so far. Totals; messages of all ranks count.
struct Usage {
  std::uint64_t chunks = 0;  // that have finished
  std::uint64_t values = 0;
  std::uint64_t overflow_messages = 0;
  std::uint64_t overflow_bytes = 0;
  std::uint64_t messages = 0;  // that `values` are in; 0: one of every rank in every chunk
};

// A rank's wish for its class. `pool_bytes` for every tile; none: native.
struct Wish {
  std::optional<std::uint32_t> pool_bytes;
  bool operator==(const Wish&) const = default;
};

// Rooms that a class may get, in bytes for every 1,024 values. The least is what the user names, even if it is above
// the most.
struct Rooms {
  std::uint32_t least = 0;
  std::uint32_t most = 0;
};

class Promotion {
 public:
  // Rooms worth having. Weights and activations need none or 1; gradients up to 48 (README's codec table in bits a
  // value). With 64 a message has 73 % of the values' size; data that needs more has too little left to pay for the
  // codec.
  static constexpr std::uint32_t rooms[] = {1, 4, 16, 64};
  // For all-gathers, whose staging is fixed, and for transfers, whose staging grows with their messages: to at most
  // 0.72 of the values (rule R9).
  static constexpr std::uint32_t most_gather_room = 64;
  static constexpr std::uint32_t most_transfer_room = 16;
  // A room must hold this much more than was seen, in quarters: chunks of a call differ.
  static constexpr std::uint64_t headroom_quarters = 5;
  // Two looks tell weights of two layers apart, and a job of a few calls still gets something of it.
  static constexpr unsigned needed_sights = 2;
  // What does not pay is looked at again after so many calls, then after four times as many, and so on.
  static constexpr std::uint64_t first_pause = 64;
  static constexpr std::uint64_t longest_pause = 65'536;
  static constexpr std::uint64_t pause_growth = 4;
  // A call that overflows takes some hundred microseconds more, about what two or three calls of 16 MiB gain on a link
  // of 200 Gb/s. So calls may overflow now and then: that many of that many calls are too many.
  static constexpr unsigned most_overflows = 3;
  static constexpr std::uint64_t overflow_window = 48;

  // `compressed` if the class starts so, with the least room.
  Promotion(Rooms range, bool compressed, int rank_count);

  // For every call that goes natively, by its number in the class.
  bool wants_look(std::uint64_t call) const { return !ready() && call >= next_look_; }
  void saw(const Sight& sight, std::uint64_t call);
  bool ready() const { return wish_.pool_bytes.has_value(); }
  void lacks_memory(std::uint64_t call);  // staging could not be reserved: native, for now

  // For every call that goes compressed: looks at what became of earlier ones. True if the wish has changed.
  bool used(const Usage& usage, std::uint64_t call);
  // The class has switched. Chunks up to `chunks` had the former setting.
  void switched(Wish setting, std::uint64_t chunks);

  const Wish& wish() const { return wish_; }
  const char* reason() const { return reason_; }  // why the wish is native; static storage

 private:
  std::optional<std::uint32_t> room_for(std::uint64_t entry_bytes, std::uint64_t tiles, std::uint64_t at_least) const;
  void pause(std::uint64_t call, const char* reason);

  std::vector<std::uint32_t> rooms_;  // ascending
  const std::uint64_t rank_count_;
  Wish wish_;
  const char* reason_ = "no call large enough so far";
  unsigned sights_ = 0;
  std::uint64_t entry_bytes_ = 0;  // of the sight that needs most
  std::uint64_t tiles_ = 1;
  std::uint64_t next_look_ = 0;
  std::uint64_t pause_ = first_pause;

  std::uint32_t current_room_ = 0;
  std::uint64_t former_chunks_ = 0;
  bool counting_ = false;  // base_ is valid
  Usage base_;             // at the window's start
  Usage last_;
  std::uint64_t window_end_ = 0;  // a call's number
  unsigned overflows_ = 0;        // in the window
};

}  // namespace zipccl::interpose
