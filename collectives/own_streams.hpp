// Streams of one communicator's own, beside its callers', for three purposes: chunks of a call that overlap
// (Staging::side), all-gathers through copy engines whose caller's stream NCCL does not serve with them
// (static_exchange.cpp), and compressed calls in groups that have other communicators' calls, too.
//
// As to the last: a compressed call has more on its stream than NCCL's operation: encode, which waits for the
// communicator's previous call, and decode. On the caller's stream the other communicators' operations would wait for
// those, and this communicator's next call for those operations, none of which NCCL's own calls do; ranks that group
// their calls differently would then wait for each other in a circle.
#pragma once

#include <vector>

#include "codec/device.hpp"

namespace zipccl::collectives {

class OwnStreams {
 public:
  explicit OwnStreams(codec::Device& device) : device_(device) {}
  ~OwnStreams();
  OwnStreams(const OwnStreams&) = delete;
  OwnStreams& operator=(const OwnStreams&) = delete;

  // One of the caller's priority that can be ordered with it: in the same capture, or in none. Made when there is none.
  Status find(codec::Stream caller, codec::Stream* own);

 private:
  struct Own {
    codec::Stream stream;
    int priority;
  };

  codec::Device& device_;
  std::vector<Own> all_;  // one, but for callers of several priorities and captures that have not ended
};

}  // namespace zipccl::collectives
