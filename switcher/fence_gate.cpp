#include "switcher/fence_gate.hpp"

#include <chrono>
#include <utility>

namespace zipccl::switcher {
namespace {

std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  const auto passed = std::chrono::steady_clock::now() - begin;
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

}  // namespace

FenceGate::FenceGate(std::vector<std::uint32_t> participants, std::uint32_t own, const FenceSetting& initial,
                     FenceTransport* transport)
    : transport_(transport), fence_(std::move(participants), own, initial) {}

Status FenceGate::enter(FenceSetting* setting, std::uint64_t* call) {
  std::unique_lock lock(mutex_);
  if (failure_ != Status::ok) return failure_;
  *call = fence_.calls();
  Fence::Entry entry = fence_.enter(setting);
  if (entry == Fence::Entry::undecided) {
    const auto begin = std::chrono::steady_clock::now();
    decided_.wait(lock, [&] {
      if (failure_ != Status::ok) return true;
      entry = fence_.enter(setting);
      return entry != Fence::Entry::undecided;
    });
    ++waits_;
    wait_ns_ += nanoseconds_since(begin);
  }
  if (entry == Fence::Entry::begun) return Status::ok;
  return failure_ != Status::ok ? failure_ : Status::connection_lost;
}

// Memory that runs out in the middle of a step leaves the fence in no state to go on from.
template <typename Step>
void FenceGate::step(Step step) {
  const std::lock_guard lock(mutex_);
  try {
    step();
  } catch (...) {
    if (failure_ == Status::ok) failure_ = Status::out_of_memory;
  }
  send_all();
  decided_.notify_all();
}

void FenceGate::wish(const FenceSetting& setting) {
  step([&] { fence_.wish(setting); });
}

bool FenceGate::keep() {
  bool settled = true;
  step([&] {
    fence_.keep();
    settled = fence_.settled();
  });
  return settled;
}

void FenceGate::receive(std::uint32_t sender, const FenceMessage& message) {
  step([&] {
    if (!fence_.receive(sender, message)) fence_.lose(sender);  // whatever it is, it cannot be agreed with
  });
}

void FenceGate::lose(std::uint32_t participant) {
  step([&] { fence_.lose(participant); });
}

bool FenceGate::send_again() {
  const std::lock_guard lock(mutex_);
  send_all();
  return !fence_.outgoing().empty();
}

void FenceGate::abort() {
  const std::lock_guard lock(mutex_);
  failure_ = Status::aborted;
  decided_.notify_all();
}

void FenceGate::send_all() {
  auto& outgoing = fence_.outgoing();
  while (!outgoing.empty()) {
    if (transport_->send(outgoing.front().receiver, outgoing.front().message) == Status::out_of_memory) return;
    outgoing.pop_front();  // to one that is lost, too
  }
}

FenceGate::State FenceGate::state() const {
  const std::lock_guard lock(mutex_);
  return {fence_.calls(), fence_.current(), fence_.frozen(), waits_, wait_ns_};
}

}  // namespace zipccl::switcher
