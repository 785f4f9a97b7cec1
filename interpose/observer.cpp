#include "interpose/observer.hpp"

#include <algorithm>
#include <new>

#include "codec/format.hpp"
#include "codec/host_exchange.hpp"

namespace zipccl::interpose {

namespace {

using codec::tile_values;

constexpr std::uint64_t value_bytes = 2;

}  // namespace

Status Observer::create(codec::Device& device, std::unique_ptr<Observer>* observer) {
  std::unique_ptr<Observer> made(new (std::nothrow) Observer(device));
  if (made == nullptr) {
    return Status::out_of_memory;
  }
  const Status status = made->reserve();
  if (status == Status::ok) {
    *observer = std::move(made);
  }
  return status;
}

Status Observer::reserve() {
  if (const Status status = device_.allocate(&scratch_, codec::encode_scratch_bytes); status != Status::ok) {
    return status;
  }
  if (const Status status = device_.clear(scratch_, codec::encode_scratch_bytes); status != Status::ok) {
    return status;
  }
  void* mapped = nullptr;
  const Status status = device_.allocate_mapped(&mapped, sizeof(codec::Observation));
  observation_ = static_cast<codec::Observation*>(mapped);
  return status;
}

Observer::~Observer() {
  if (observation_ != nullptr) {
    device_.release_mapped(observation_);
  }
  if (scratch_ != nullptr) {
    device_.release(scratch_);
  }
}

Status Observer::look(const void* values, std::uint64_t count, codec::Stream stream) {
  const std::uint64_t seen = std::min(count, most_values);
  constexpr std::uint64_t step = 13;  // sixteenths of the rest, so that looks that follow each other are far apart
  const std::uint64_t first = (count - seen) / 16 * (looks_ * step % 16) / tile_values * tile_values;
  codec::ObserveJob job;
  job.values = static_cast<const std::byte*>(values) + first * value_bytes;
  job.count = seen;
  job.scratch = scratch_;
  job.observation = observation_;
  former_units_ = observation_->entry_units;
  const Status status = device_.observe(job, stream);
  if (status == Status::ok) {
    looking_ = true;
    ++looks_;
    tiles_ = (seen + tile_values - 1) / tile_values;
  }
  return status;
}

bool Observer::finished() const { return codec::load_acquire(observation_->finished) == looks_; }

bool Observer::take(Sight* sight) {
  if (!looking_ || !finished()) {
    return false;
  }
  looking_ = false;
  sight->tiles = tiles_;
  sight->entry_bytes = (observation_->entry_units - former_units_) * codec::unit_bytes;
  return true;
}

}  // namespace zipccl::interpose
