#include "switcher/fences.hpp"

#include <new>

namespace zipccl::switcher {

Status Fences::Sender::send(std::uint32_t receiver, const FenceMessage& message) {
  const Status status = fences_->channel_.send_fence(receiver, fence_class_, message);
  if (status == Status::out_of_memory && !fences_->send_again_.exchange(true)) fences_->rendezvous_.wake();
  return status;
}

Fences::Fences(Rendezvous& rendezvous, Channel& channel, std::uint32_t own_rank)
    : rendezvous_(rendezvous), channel_(channel), own_rank_(own_rank) {}

Status Fences::start() { return rendezvous_.add(this); }

Fences::~Fences() { rendezvous_.remove(this); }

FenceGate& Fences::gate(const FenceClass& fence_class, const std::vector<std::uint32_t>& participants,
                        const FenceSetting& initial) {
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(fence_class); found != entries_.end()) return found->second->gate;
  auto made = std::make_unique<Entry>(this, fence_class, participants, own_rank_, initial);
  FenceGate& gate = made->gate;
  const auto early = early_.find(fence_class);
  if (early != early_.end()) {
    for (const auto& [sender, message] : early->second) gate.receive(sender, message);
  }
  for (const std::uint32_t rank : lost_) gate.lose(rank);
  if (aborted_) gate.abort();
  entries_.emplace(fence_class, std::move(made));  // complete, or not at all: the helper thread looks at all of them
  if (early != early_.end()) early_.erase(early);
  return gate;
}

void Fences::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (const auto& [fence_class, entry] : entries_) entry->gate.abort();
}

// The helper thread has nobody to tell that memory is short.
bool Fences::poll() {
  const std::lock_guard lock(mutex_);
  bool again = false;
  if (send_again_.exchange(false)) {
    for (const auto& [fence_class, entry] : entries_) again = entry->gate.send_again() || again;
    if (again) send_again_ = true;
  }
  FenceEvent event;
  while (channel_.next_fence_event(&event)) {
    try {
      take_event(event);
    } catch (const std::bad_alloc&) {
      for (const auto& [fence_class, entry] : entries_) entry->gate.lose(event.sender);
    }
  }
  return again;
}

void Fences::take_event(const FenceEvent& event) {
  if (event.lost) {
    for (const auto& [fence_class, entry] : entries_) entry->gate.lose(event.sender);
    lost_.push_back(event.sender);
    return;
  }
  if (const auto found = entries_.find(event.fence_class); found != entries_.end()) {
    found->second->gate.receive(event.sender, event.message);
  } else {
    early_[event.fence_class].emplace_back(event.sender, event.message);
  }
}

}  // namespace zipccl::switcher
