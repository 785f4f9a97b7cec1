#include "collectives/own_streams.hpp"

namespace zipccl::collectives {

OwnStreams::~OwnStreams() {
  for (const Own& own : all_) {
    device_.destroy_stream(own.stream);
  }
}

Status OwnStreams::find(codec::Stream caller, codec::Stream* own) {
  int priority = 0;
  std::uint64_t capture = 0;
  Status status = device_.priority(caller, &priority);
  if (status == Status::ok) {
    status = device_.capture(caller, &capture);
  }
  if (status != Status::ok) {
    return status;
  }
  for (const Own& one : all_) {
    std::uint64_t its = 0;  // of a capture that has been spoilt: an error
    if (one.priority == priority && device_.capture(one.stream, &its) == Status::ok && (its == 0 || its == capture)) {
      *own = one.stream;
      return Status::ok;
    }
  }
  all_.reserve(all_.size() + 1);
  status = device_.create_stream(own, priority);
  if (status == Status::ok) {
    all_.push_back({*own, priority});
  }
  return status;
}

}  // namespace zipccl::collectives
