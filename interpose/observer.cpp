#include "interpose/observer.hpp"

#include <algorithm>
#include <new>

#include "codec/format.hpp"
#include "codec/host_exchange.hpp"

namespace zipccl::interpose {

namespace {

using codec::tile_values;

constexpr std::uint64_t value_bytes = 2;
constexpr codec::Layout sample_layout = codec::Layout::of(Observer::sample_values, 0);
constexpr std::uint64_t overflow_offset = sample_layout.static_bytes;
constexpr std::uint64_t scratch_offset = overflow_offset + sample_layout.max_overflow_bytes();
constexpr std::uint64_t memory_bytes = scratch_offset + codec::encode_scratch_bytes;
static_assert(overflow_offset % codec::section_alignment == 0 && scratch_offset % codec::unit_bytes == 0);

constexpr std::uint64_t unseen = ~std::uint64_t{0};  // no message has so many units

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
  void* memory = nullptr;
  if (const Status status = device_.allocate(&memory, memory_bytes); status != Status::ok) {
    return status;
  }
  memory_ = static_cast<std::byte*>(memory);
  if (const Status status = device_.clear(memory_ + scratch_offset, codec::encode_scratch_bytes);
      status != Status::ok) {
    return status;
  }
  const Status status = device_.allocate_mapped(&memory, sizeof(codec::MessageSummary));
  if (status == Status::ok) {
    summary_ = static_cast<codec::MessageSummary*>(memory);
  }
  return status;
}

Observer::~Observer() {
  if (summary_ != nullptr) {
    device_.release_mapped(summary_);
  }
  if (memory_ != nullptr) {
    device_.release(memory_);
  }
}

// An encode whose message nobody gets. The first pass of its decode, which skips it, copies the header's totals to
// mapped memory.
Status Observer::look(const void* values, std::uint64_t count, codec::Stream stream) {
  const std::uint64_t seen = std::min(count, sample_values);
  constexpr std::uint64_t step = 13;  // sixteenths of the rest, so that looks that follow each other are far apart
  const std::uint64_t first = (count - seen) / 16 * (looks_ * step % 16) / tile_values * tile_values;
  codec::EncodeJob encode;
  encode.values = static_cast<const std::byte*>(values) + first * value_bytes;
  encode.count = seen;
  encode.message = memory_;
  encode.overflow = memory_ + overflow_offset;
  encode.overflow_bytes = sample_layout.max_overflow_bytes();
  encode.scratch = memory_ + scratch_offset;
  codec::DecodeJob decode;
  decode.messages = memory_;
  decode.message_stride = sample_layout.static_bytes;
  decode.message_count = 1;
  decode.skip = 0;
  decode.values = memory_;
  decode.count = seen;
  decode.summaries = summary_;
  *summary_ = {};
  codec::store_release(summary_->entry_units, unseen);
  ++looks_;
  tiles_ = (seen + tile_values - 1) / tile_values;
  if (const Status status = device_.encode(encode, stream); status != Status::ok) {
    return status;
  }
  looking_ = true;  // also if only the encode runs: its memory must stay
  return device_.decode(decode, stream);
}

bool Observer::finished() const { return codec::load_acquire(summary_->entry_units) != unseen; }

bool Observer::take(Sight* sight) {
  if (!looking_ || !finished()) {
    return false;
  }
  looking_ = false;
  sight->tiles = tiles_;
  sight->entry_bytes = codec::load_acquire(summary_->entry_units) * codec::unit_bytes;
  return true;
}

}  // namespace zipccl::interpose
