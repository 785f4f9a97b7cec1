#include "interpose/promotion.hpp"

#include <algorithm>

#include "codec/format.hpp"

namespace zipccl::interpose {

namespace {

constexpr const char* incompressible = "its values do not compress well enough";

}  // namespace

Promotion::Promotion(Rooms range, bool compressed, int rank_count)
    : rooms_{range.least}, rank_count_(static_cast<std::uint64_t>(rank_count)) {
  std::copy_if(std::begin(rooms), std::end(rooms), std::back_inserter(rooms_),
               [=](std::uint32_t room) { return room > range.least && room <= range.most; });
  if (compressed) {
    wish_.pool_bytes = current_room_ = range.least;
  }
}

// The smallest room that holds the entries; none if none does.
std::optional<std::uint32_t> Promotion::room_for(std::uint64_t entry_bytes, std::uint64_t tiles,
                                                 std::uint64_t at_least) const {
  for (const std::uint32_t room : rooms_) {
    if (room >= at_least && 4 * room * tiles >= headroom_quarters * entry_bytes) {
      return room;
    }
  }
  return std::nullopt;
}

void Promotion::pause(std::uint64_t call, const char* reason) {
  wish_ = {};
  reason_ = reason;
  sights_ = 0;
  entry_bytes_ = 0;
  tiles_ = 1;
  next_look_ = call + pause_;
  pause_ = std::min(pause_ * pause_growth, longest_pause);
}

void Promotion::saw(const Sight& sight, std::uint64_t call) {
  if (ready() || sight.tiles == 0) {
    return;
  }
  if (sight.entry_bytes * tiles_ > entry_bytes_ * sight.tiles) {
    entry_bytes_ = sight.entry_bytes;
    tiles_ = sight.tiles;
  }
  if (++sights_ < needed_sights) {
    reason_ = "too few calls so far";
    return;
  }
  const auto room = room_for(entry_bytes_, tiles_, 0);
  if (!room) {
    return pause(call, incompressible);
  }
  wish_.pool_bytes = room;
  reason_ = "the other ranks are not ready";
}

void Promotion::lacks_memory(std::uint64_t call) { pause(call, "too little staging memory"); }

bool Promotion::used(const Usage& usage, std::uint64_t call) {
  if (!ready() || *wish_.pool_bytes > current_room_ || usage.chunks < former_chunks_) {
    return false;  // it has asked for a change, or nothing of the present setting has finished
  }
  if (!counting_ || call >= window_end_) {
    const bool first = !counting_;
    counting_ = true;
    base_ = usage;
    overflows_ = 0;
    window_end_ = call + overflow_window;
    if (first) {
      last_ = usage;
    }
  }
  if (usage.overflow_messages != last_.overflow_messages) {
    ++overflows_;
  }
  last_ = usage;
  if (overflows_ < most_overflows) {
    return false;
  }
  // What a message that overflowed lacked. A record's length has up to an entry of slack.
  const std::uint64_t records = usage.overflow_messages - base_.overflow_messages;
  const std::uint64_t told = usage.messages - base_.messages;
  const std::uint64_t messages =
      std::max<std::uint64_t>(usage.messages != 0 ? told : (usage.chunks - base_.chunks) * rank_count_, 1);
  const std::uint64_t tiles = std::max<std::uint64_t>((usage.values - base_.values) / messages / codec::tile_values, 1);
  constexpr std::uint64_t slack = codec::raw_entry_units * codec::unit_bytes;
  const std::uint64_t record_bytes =
      (usage.overflow_bytes - base_.overflow_bytes) / std::max<std::uint64_t>(records, 1);
  const std::uint64_t lacking = record_bytes - std::min(record_bytes, slack);
  const auto room = room_for(current_room_ * tiles + lacking, tiles, std::uint64_t{current_room_} + 1);
  counting_ = false;
  if (room) {
    wish_.pool_bytes = room;
  } else {
    pause(call, incompressible);
  }
  return true;
}

void Promotion::switched(Wish setting, std::uint64_t chunks) {
  current_room_ = setting.pool_bytes.value_or(0);
  former_chunks_ = chunks;
  counting_ = false;
}

}  // namespace zipccl::interpose
