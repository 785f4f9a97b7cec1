#include "collectives/transfer_staging.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "codec/format.hpp"

namespace zipccl::collectives {

Status TransferStaging::create(codec::Device& device, std::uint64_t reserved_bytes,
                               std::unique_ptr<TransferStaging>* staging) {
  std::unique_ptr<TransferStaging> made(new (std::nothrow) TransferStaging(device));
  if (made == nullptr) {
    return Status::out_of_memory;
  }
  if (reserved_bytes > 0) {
    void* memory = nullptr;
    constexpr std::uint64_t scratch = std::uint64_t{codec::encode_scratch_messages} * codec::encode_scratch_bytes;
    if (const Status status = device.allocate_async(&memory, scratch + reserved_bytes, device.own_stream());
        status != Status::ok) {
      return status;
    }
    made->memory_ = static_cast<std::byte*>(memory);
    made->scratch_bytes_ = scratch;
    made->message_bytes_ = reserved_bytes;
    if (const Status status = device.clear(memory, scratch); status != Status::ok) {
      return status;
    }
  }
  *staging = std::move(made);
  return Status::ok;
}

TransferStaging::~TransferStaging() {
  for (std::byte* memory : kept_) {
    device_.release_async(memory, device_.own_stream());
  }
  if (memory_ != nullptr) {
    device_.release_async(memory_, device_.own_stream());
  }
}

void TransferStaging::give_up(bool capturing, codec::Stream stream) {
  if (in_graph_ || capturing) {
    kept_.push_back(memory_);
    kept_bytes_ += scratch_bytes_ + message_bytes_;
  } else {
    device_.release_async(memory_, stream);
  }
  memory_ = nullptr;
  scratch_bytes_ = message_bytes_ = 0;
  in_graph_ = false;
}

Status TransferStaging::reserve(std::uint64_t bytes, std::uint64_t encodes, bool capturing, codec::Stream stream) {
  const std::uint64_t scratch =
      std::min<std::uint64_t>(encodes, codec::encode_scratch_messages) * codec::encode_scratch_bytes;
  if (bytes <= message_bytes_ && scratch <= scratch_bytes_) {
    in_graph_ = in_graph_ || capturing;
    return Status::ok;
  }
  const std::uint64_t new_scratch = std::max(scratch, scratch_bytes_);
  const std::uint64_t new_bytes = std::max(bytes, message_bytes_);
  if (memory_ != nullptr) {  // first, so that the new memory may be made of it
    give_up(capturing, stream);
  }
  void* memory = nullptr;
  const codec::Stream allocating = capturing ? device_.own_stream() : stream;
  if (const Status status = device_.allocate_async(&memory, new_scratch + new_bytes, allocating);
      status != Status::ok) {
    return status;
  }
  memory_ = static_cast<std::byte*>(memory);
  in_graph_ = capturing;
  if (const Status status =
          capturing ? device_.clear(memory, new_scratch) : device_.clear_async(memory, new_scratch, stream);
      status != Status::ok) {
    return status;
  }
  scratch_bytes_ = new_scratch;
  message_bytes_ = new_bytes;
  return Status::ok;
}

}  // namespace zipccl::collectives
