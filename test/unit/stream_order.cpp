#include "test/unit/stream_order.hpp"

#include <algorithm>

namespace zipccl::test {

void StreamOrder::wait(codec::Event event, codec::Stream stream) { merge(events_[event], stream); }

codec::Stream StreamOrder::fork(codec::Stream stream) {
  const auto beside = reinterpret_cast<codec::Stream>(++forks_);
  merge(clocks_[stream], beside);
  return beside;
}

void StreamOrder::join(codec::Stream beside, codec::Stream stream) {
  merge(clocks_[beside], stream);
  clocks_.erase(beside);
}

void StreamOrder::merge(const Clock& clock, codec::Stream stream) {
  for (const auto& [other, time] : clock) {
    std::uint64_t& known = clocks_[stream][other];
    known = std::max(known, time);
  }
}

void StreamOrder::access(const void* memory, std::size_t bytes, codec::Stream stream, bool write) {
  if (memory == nullptr || bytes == 0) {
    return;
  }
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  const Access now = {first, first + bytes, stream, clocks_[stream][stream], write};
  std::erase_if(accesses_, [&](const Access& before) {
    if (before.end <= now.first || now.end <= before.first || !(before.write || write)) {
      return false;
    }
    const bool ordered = clocks_[stream][before.stream] >= before.time;
    if (!ordered) {
      faults_.push_back(std::string(write ? "write" : "read") + " of " + std::to_string(bytes) + " bytes beside a " +
                        (before.write ? "write" : "read"));
    }
    // What comes after a later write comes after this one, too.
    return ordered && write && now.first <= before.first && before.end <= now.end;
  });
  accesses_.push_back(now);
  for (const auto& [begin, end] : released_) {
    if (now.first < end && begin < now.end) {
      faults_.push_back(std::string(write ? "write" : "read") + " of released memory");
    }
  }
}

void StreamOrder::releases(const void* memory, std::size_t bytes, codec::Stream stream) {
  step(stream);
  writes(memory, bytes, stream);
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  released_.emplace_back(first, first + bytes);
}

bool StreamOrder::rejoined(codec::Stream stream) const {
  const auto own = clocks_.find(stream);
  return std::ranges::all_of(clocks_, [&](const auto& entry) {
    const auto& [other, clock] = entry;
    const auto ticks = clock.find(other);
    if (other == stream || ticks == clock.end()) {
      return true;
    }
    if (own == clocks_.end()) {
      return false;
    }
    const auto known = own->second.find(other);
    return known != own->second.end() && known->second >= ticks->second;
  });
}

}  // namespace zipccl::test
