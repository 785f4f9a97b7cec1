#include "interpose/staging_pool.hpp"

#include <algorithm>
#include <utility>

namespace zipccl::interpose {

namespace {

// Idle for good: no thread holds the state, and the last call's work is done.
bool idle(const CommPointer& state) {
  if (state.use_count() != 1) {
    return false;
  }
  // The end of a holder comes after the work of all that ended before; use_count() alone orders nothing.
  CommPointer(state).reset();
  bool done = false;
  return state->idle(&done) == Status::ok && done;
}

}  // namespace

std::uint64_t StagingPool::cap(const codec::Device& device) {
  return std::min(std::uint64_t{1} << 30, device.total_memory() / 50);
}

Status StagingPool::reserve(codec::Device& device, std::uint64_t wanted, collectives::RankRange ranks,
                            bool with_overflow, std::unique_ptr<collectives::Staging>* staging, std::string* why,
                            const collectives::NcclTable* windows) {
  const auto lacks_room = [&] {
    const std::lock_guard lock(mutex_);
    return used_[&device] + wanted > cap(device);
  };
  if (lacks_room()) {
    reclaim();
  }
  std::uint64_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t& used = used_[&device];
    bytes = std::min(wanted, cap(device) - std::min(used, cap(device)));
    if (collectives::Staging::slot_bytes(bytes, ranks.least, with_overflow) == 0) {
      *why = std::to_string(bytes >> 20) + " MiB of staging are too little for " + std::to_string(ranks.least) +
             " ranks (" + std::to_string(wanted >> 20) + " MiB wanted, " + std::to_string(used >> 20) + " of at most " +
             std::to_string(cap(device) >> 20) + " MiB used by other communicators); " +
             (collectives::Staging::slot_bytes(wanted, ranks.least, with_overflow) == 0
                  ? "raise ZIPCCL_STAGING_MB"
                  : "a lower ZIPCCL_STAGING_MB leaves room for more communicators");
      return Status::out_of_memory;
    }
    used += bytes;
  }
  const Status status =
      collectives::Staging::create(device, bytes, collectives::Staging::most_ranks(bytes, ranks.most, with_overflow),
                                   with_overflow, staging, windows);
  if (status != Status::ok) {
    *why = "cannot reserve " + std::to_string(bytes >> 20) + " MiB of staging: " + describe(status);
    if (status == Status::device_error) {
      *why += std::string(" (") + device.last_error() + ")";
    } else if (status == Status::out_of_memory) {
      *why += "; lower ZIPCCL_STAGING_MB or leave the device more memory";
    }
    const std::lock_guard lock(mutex_);
    used_[&device] -= bytes;
  }
  return status;
}

std::uint64_t StagingPool::share(const codec::Device& device, std::uint64_t wanted, int rank_count,
                                 bool with_overflow) {
  std::uint64_t left = 0;
  {
    const std::lock_guard lock(mutex_);
    left = cap(device) - std::min(used_[&device], cap(device));
  }
  const std::uint64_t part = std::min(wanted, wanted > most_shared ? left : left / 8);
  return collectives::Staging::slot_bytes(part, rank_count, with_overflow) != 0 ? part : std::min(wanted, left);
}

void StagingPool::release(const codec::Device& device, std::unique_ptr<collectives::Staging> staging) {
  if (staging == nullptr) {
    return;
  }
  const std::uint64_t bytes = staging->bytes();
  staging.reset();
  const std::lock_guard lock(mutex_);
  used_[&device] -= bytes;
}

void StagingPool::retire(CommPointer state) {
  if (state->communicator.staging != nullptr || state->classes != nullptr) {
    const std::lock_guard lock(mutex_);
    retired_.push_back(std::move(state));
  }
}

std::vector<CommPointer> StagingPool::retired() {
  const std::lock_guard lock(mutex_);
  return retired_;
}

void StagingPool::reclaim() {
  std::vector<CommPointer> idle_states;
  {
    const std::lock_guard lock(mutex_);
    const auto first = std::partition(retired_.begin(), retired_.end(), [](const auto& state) { return !idle(state); });
    std::move(first, retired_.end(), std::back_inserter(idle_states));
    retired_.erase(first, retired_.end());
  }
  for (const CommPointer& state : idle_states) {
    state->close_exchange();
    if (state->communicator.staging != nullptr) {
      release(*state->communicator.device, std::move(state->communicator.staging));
    }
  }
}

StagingPool& StagingPool::instance() {
  static StagingPool* const own = new StagingPool;
  return *own;
}

}  // namespace zipccl::interpose
