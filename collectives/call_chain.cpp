#include "collectives/call_chain.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace zipccl::collectives {

Status CallChain::create(codec::Device& device, std::unique_ptr<CallChain>* chain) {
  std::unique_ptr<CallChain> made(new (std::nothrow) CallChain(device));
  if (made == nullptr) {
    return Status::out_of_memory;
  }
  Status status = device.create_event(&made->handover_);
  status = status == Status::ok ? device.create_event(&made->last_use_) : status;
  for (Captured& captured : made->captured_) {
    status = status == Status::ok ? device.create_event(&captured.last_use) : status;
  }
  if (status == Status::ok) {
    *chain = std::move(made);
  }
  return status;
}

CallChain::~CallChain() {
  const auto destroy = [this](codec::Event event) {
    if (event != nullptr) {
      device_.destroy_event(event);
    }
  };
  destroy(handover_);
  destroy(last_use_);
  for (const Captured& captured : captured_) {
    destroy(captured.last_use);
  }
}

CallChain::Captured* CallChain::find(std::uint64_t capture) {
  const auto found = std::ranges::find(captured_, capture, &Captured::capture);
  return found != captured_.end() ? &*found : nullptr;
}

Status CallChain::begin(codec::Stream stream, std::uint64_t capture) {
  if (capture != 0) {
    const Captured* const before = find(capture);
    return before != nullptr ? device_.wait(before->last_use, stream) : device_.wait_external(last_use_, stream);
  }
  return used_ ? device_.wait(last_use_, stream) : Status::ok;
}

Status CallChain::end(codec::Stream stream, std::uint64_t capture) {
  used_ = true;
  if (capture == 0) {
    return device_.record(last_use_, stream);
  }
  Captured* place = find(capture);
  if (place == nullptr) {
    place = &captured_[oldest_++ % captures_at_once];
  }
  // Records of one event in one graph count in their order, which last_use makes that of the calls.
  const Status status = device_.record(place->last_use, stream);
  if (status != Status::ok) {
    return status;
  }
  place->capture = capture;
  return device_.record_external(last_use_, stream);
}

Status CallChain::order(codec::Stream first, codec::Stream then) {
  const Status status = device_.record(handover_, first);
  return status == Status::ok ? device_.wait(handover_, then) : status;
}

Status CallChain::hand_back(codec::Stream own, codec::Stream caller) {
  const Status status = order(own, caller);
  if (status != Status::ok) {
    static_cast<void>(order(own, caller));
  }
  return status;
}

Status CallChain::idle(bool* done) {
  *done = !used_;
  return used_ ? device_.query(last_use_, done) : Status::ok;
}

}  // namespace zipccl::collectives
