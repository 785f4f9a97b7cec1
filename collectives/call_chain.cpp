#include "collectives/call_chain.hpp"

#include <new>

namespace zipccl::collectives {

Status CallChain::create(codec::Device& device, std::unique_ptr<CallChain>* chain) {
  std::unique_ptr<CallChain> made(new (std::nothrow) CallChain(device));
  if (made == nullptr) {
    return Status::out_of_memory;
  }
  for (codec::Event* event : {&made->handover_, &made->last_use_, &made->captured_use_}) {
    if (const Status status = device.create_event(event); status != Status::ok) {
      return status;
    }
  }
  *chain = std::move(made);
  return Status::ok;
}

CallChain::~CallChain() {
  for (codec::Event event : {handover_, last_use_, captured_use_}) {
    if (event != nullptr) {
      device_.destroy_event(event);
    }
  }
}

Status CallChain::begin(codec::Stream stream, std::uint64_t capture) {
  if (capture != 0) {
    return capture == capture_ ? device_.wait(captured_use_, stream) : device_.wait_external(last_use_, stream);
  }
  return used_ ? device_.wait(last_use_, stream) : Status::ok;
}

Status CallChain::end(codec::Stream stream, std::uint64_t capture) {
  used_ = true;
  if (capture == 0) {
    return device_.record(last_use_, stream);
  }
  // Records of one event in one graph count in their order, which captured_use_ makes that of the calls.
  const Status status = device_.record(captured_use_, stream);
  if (status != Status::ok) {
    return status;
  }
  capture_ = capture;
  return device_.record_external(last_use_, stream);
}

Status CallChain::order(codec::Stream first, codec::Stream then) {
  const Status status = device_.record(handover_, first);
  return status == Status::ok ? device_.wait(handover_, then) : status;
}

Status CallChain::idle(bool* done) {
  *done = !used_;
  return used_ ? device_.query(last_use_, done) : Status::ok;
}

}  // namespace zipccl::collectives
