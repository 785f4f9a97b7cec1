#include "interpose/comm_table.hpp"

#include <algorithm>
#include <utility>

namespace zipccl::interpose {

void RegisteredRanges::add(const void* handle, const void* begin, std::size_t size) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::lock_guard lock(mutex_);
  ranges_.push_back({handle, address, address + size});
  count_.store(ranges_.size(), std::memory_order_release);
}

void RegisteredRanges::remove(const void* handle) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& range) { return range.handle == handle; });
  if (found != ranges_.end()) {
    ranges_.erase(found);
  }
  count_.store(ranges_.size(), std::memory_order_release);
}

bool RegisteredRanges::overlaps(const void* begin, std::size_t size) const {
  if (count_.load(std::memory_order_acquire) == 0) {
    return false;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::lock_guard lock(mutex_);
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const Range& range) { return address < range.end && range.begin < address + size; });
}

Status CommState::reserve_exchange() {
  Status status = Status::ok;
  if (communicator.chain == nullptr) {
    status = collectives::CallChain::create(*communicator.device, &communicator.chain);
  }
  if (status == Status::ok && communicator.port == nullptr) {
    status = collectives::OverflowPort::create(*communicator.device, &communicator.port);
  }
  return status;
}

Status CommState::open_exchange(switcher::Rendezvous& rendezvous) {
  if (own_overflow_ != nullptr) {
    return Status::ok;
  }
  if (const Status status = reserve_exchange(); status != Status::ok) {
    return status;
  }
  if (const Status status =
          OverflowLink::open(rendezvous, *channel, *communicator.port, static_cast<std::uint32_t>(communicator.rank),
                             static_cast<std::uint32_t>(communicator.rank_count), &own_overflow_);
      status != Status::ok) {
    return status;
  }
  overflow_.store(own_overflow_.get());
  if (communicator.aborted.load()) {
    own_overflow_->port().release();  // the abort may have come before there was a port
  }
  return Status::ok;
}

void CommState::close_exchange() {
  overflow_.store(nullptr);
  own_overflow_.reset();
  communicator.own_streams.reset();
  communicator.transfers.reset();
  communicator.port.reset();
  communicator.chain.reset();
}

Status CommState::idle(bool* done) {
  *done = classes == nullptr || classes->idle();
  return *done && communicator.chain != nullptr ? communicator.chain->idle(done) : Status::ok;
}

Usage CommState::usage() const {
  const OverflowLink* link = overflow();
  if (link == nullptr) {
    return {};
  }
  const codec::ExchangeCounters counters = link->port().counters();
  Usage usage;
  usage.chunks = counters.finished;
  usage.values = counters.values;
  usage.overflow_messages = counters.overflow_messages;
  usage.overflow_bytes = counters.overflow_bytes + link->port().sent_bytes();
  return usage;
}

std::uint64_t CommState::enqueued_chunks() const {
  const OverflowLink* link = overflow();
  return link != nullptr ? link->port().enqueued() : 0;
}

collectives::OverflowPort::Sent CommState::sent_to(std::uint32_t peer) const {
  const OverflowLink* link = overflow();
  return link != nullptr ? link->port().sent_to(peer) : collectives::OverflowPort::Sent{};
}

CommPointer CommTable::insert(ncclComm_t handle, CommPointer state) {
  const std::unique_lock lock(mutex_);
  compressed_ += state->compressed ? 1 : 0;
  CommPointer& place = states_[handle];
  CommPointer previous = std::exchange(place, std::move(state));
  compressed_ -= previous != nullptr && previous->compressed ? 1 : 0;
  return previous;
}

CommPointer CommTable::find(ncclComm_t handle) const {
  const std::shared_lock lock(mutex_);
  const auto found = states_.find(handle);
  return found == states_.end() ? nullptr : found->second;
}

CommPointer CommTable::remove(ncclComm_t handle, const CommState* expected) {
  const std::unique_lock lock(mutex_);
  const auto found = states_.find(handle);
  if (found == states_.end() || (expected != nullptr && found->second.get() != expected)) {
    return nullptr;
  }
  CommPointer state = std::move(found->second);
  states_.erase(found);
  compressed_ -= state->compressed ? 1 : 0;
  return state;
}

std::vector<CommPointer> CommTable::all() const {
  std::vector<CommPointer> states;
  {
    const std::shared_lock lock(mutex_);
    states.reserve(states_.size());
    for (const auto& [handle, state] : states_) {
      states.push_back(state);
    }
  }
  std::sort(states.begin(), states.end(),
            [](const CommPointer& one, const CommPointer& other) { return one->number < other->number; });
  return states;
}

CommTable& CommTable::instance() {
  static CommTable* const own = new CommTable;
  return *own;
}

}  // namespace zipccl::interpose
