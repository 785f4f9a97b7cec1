// Whether work on several streams is ordered as it must be: a vector clock for every stream and event, and for every
// access to memory what it conflicts with. Work is taken as done in the order of the calls; a fault is a pair of
// conflicting accesses that streams and events do not order. For one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "codec/device.hpp"

namespace zipccl::test {

class StreamOrder {
 public:
  void record(codec::Event event, codec::Stream stream) { events_[event] = clocks_[stream]; }
  void wait(codec::Event event, codec::Stream stream);  // nothing if it was never recorded
  // What a graph's external waits see: events as they were when it was launched.
  void begin_launch() { before_launch_ = events_; }
  void wait_before_launch(codec::Event event, codec::Stream stream) { merge(before_launch_[event], stream); }
  void order(codec::Stream first, codec::Stream then) { merge(clocks_[first], then); }

  // A stream for work that runs beside the next piece of `stream`'s, and comes after it and before it as that does.
  codec::Stream fork(codec::Stream stream);
  void join(codec::Stream beside, codec::Stream stream);

  void step(codec::Stream stream) { ++clocks_[stream][stream]; }  // a piece of work, whose accesses follow
  void reads(const void* memory, std::size_t bytes, codec::Stream stream) { access(memory, bytes, stream, false); }
  void writes(const void* memory, std::size_t bytes, codec::Stream stream) { access(memory, bytes, stream, true); }

  void releases(const void* memory, std::size_t bytes, codec::Stream stream);  // for good: no later access is right

  bool rejoined(codec::Stream stream) const;  // what `stream` gets now comes after everything on every stream
  std::size_t streams() const { return clocks_.size(); }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  using Clock = std::map<codec::Stream, std::uint64_t>;
  struct Access {
    std::uintptr_t first = 0;
    std::uintptr_t end = 0;
    codec::Stream stream = nullptr;
    std::uint64_t time = 0;
    bool write = false;
  };

  void merge(const Clock& clock, codec::Stream stream);
  void access(const void* memory, std::size_t bytes, codec::Stream stream, bool write);

  std::map<codec::Stream, Clock> clocks_;
  std::map<codec::Event, Clock> events_;
  std::map<codec::Event, Clock> before_launch_;
  std::vector<Access> accesses_;
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> released_;  // first byte, end
  std::vector<std::string> faults_;
  std::uintptr_t forks_ = std::uintptr_t{1} << 61;  // the latest's stream
};

}  // namespace zipccl::test
