#include "collectives/staging.hpp"

#include <algorithm>
#include <new>

#include "collectives/overflow_port.hpp"

namespace zipccl::collectives {

namespace {

constexpr std::uint64_t slot_alignment = 256;
constexpr std::uint64_t halves = 2;

std::uint64_t slots(int rank_count, bool with_overflow) {
  return static_cast<std::uint64_t>(rank_count) + (with_overflow ? 0 : 1);
}

}  // namespace

std::uint64_t Staging::slot_bytes(std::uint64_t bytes, int rank_count, bool with_overflow) {
  const std::uint64_t share = bytes / halves / slots(rank_count, with_overflow);
  const std::uint64_t aligned = share / slot_alignment * slot_alignment;
  return aligned < smallest_chunk_bytes ? 0 : aligned;
}

int Staging::most_ranks(std::uint64_t bytes, int most, bool with_overflow) {
  const std::uint64_t slots_of_both = bytes / smallest_chunk_bytes / halves;
  const std::uint64_t others = slots(0, with_overflow);
  return static_cast<int>(std::min(static_cast<std::uint64_t>(most), slots_of_both - std::min(slots_of_both, others)));
}

std::uint64_t Staging::chunk_values(std::uint64_t bytes, int rank_count, bool with_overflow,
                                    std::uint32_t pool_fraction) {
  const std::uint64_t slot = slot_bytes(bytes, rank_count, with_overflow);
  return codec::largest_count(with_overflow ? std::min(slot, RecordTransport::most_bytes) : slot, pool_fraction);
}

std::uint64_t Staging::whole_values(std::uint64_t bytes, int rank_count, std::uint32_t pool_fraction) {
  return codec::largest_count(std::min(halves * slot_bytes(bytes, rank_count, true), RecordTransport::most_bytes),
                              pool_fraction);
}

Staging::Staging(codec::Device& device, std::uint64_t bytes, int rank_count, bool with_overflow,
                 const NcclTable* windows)
    : device_(device),
      windows_(windows),
      bytes_(bytes),
      used_bytes_(bytes),
      slot_bytes_(slot_bytes(bytes, rank_count, with_overflow)),
      rank_count_(rank_count),
      with_overflow_(with_overflow),
      sides_(device) {}

Status Staging::create(codec::Device& device, std::uint64_t bytes, int rank_count, bool with_overflow,
                       std::unique_ptr<Staging>* staging, const NcclTable* windows) {
  if (slot_bytes(bytes, rank_count, with_overflow) == 0) {
    return Status::invalid_argument;
  }
  std::unique_ptr<Staging> made(new (std::nothrow) Staging(device, bytes, rank_count, with_overflow, windows));
  if (made == nullptr) {
    return Status::out_of_memory;
  }
  const Status status = made->reserve();
  if (status == Status::ok) {
    *staging = std::move(made);
  }
  return status;
}

Status Staging::reserve() {
  void* memory = nullptr;
  if (windows_ != nullptr) {
    if (windows_->ncclMemAlloc(&memory, bytes_) != ncclSuccess) {
      return Status::out_of_memory;
    }
  } else if (const Status status = device_.allocate(&memory, bytes_); status != Status::ok) {
    return status;
  }
  memory_ = static_cast<std::byte*>(memory);
  if (const Status status = device_.allocate(&memory, halves * codec::encode_scratch_bytes); status != Status::ok) {
    return status;
  }
  scratch_ = static_cast<std::byte*>(memory);
  if (const Status status = device_.clear(scratch_, halves * codec::encode_scratch_bytes); status != Status::ok) {
    return status;
  }
  for (std::size_t index = 0; index < halves; ++index) {
    halves_[index].scratch = scratch_ + index * codec::encode_scratch_bytes;
  }
  limit(bytes_, rank_count_);
  return with_overflow_ ? Status::ok : reserve_for_waiting();
}

Status Staging::reserve_for_waiting() {
  const auto ranks = static_cast<std::size_t>(rank_count_);
  constexpr std::size_t mapped_bytes = sizeof(codec::MessageSummary) + sizeof(codec::MessageHeader);
  void* memory = nullptr;
  if (const Status status = device_.allocate_mapped(&memory, halves * ranks * mapped_bytes); status != Status::ok) {
    return status;
  }
  mapped_ = static_cast<std::byte*>(memory);
  auto* headers = reinterpret_cast<codec::MessageHeader*>(mapped_);
  auto* summaries = reinterpret_cast<codec::MessageSummary*>(headers + halves * ranks);
  for (std::size_t index = 0; index < halves; ++index) {
    Half& half = halves_[index];
    half.headers = headers + index * ranks;
    half.summaries = summaries + index * ranks;
    if (const Status status = device_.create_event(&half.done); status != Status::ok) {
      return status;
    }
  }
  return Status::ok;
}

void Staging::limit(std::uint64_t bytes, int rank_count) {
  used_bytes_ = bytes;
  rank_count_ = rank_count;
  slot_bytes_ = slot_bytes(bytes, rank_count_, with_overflow_);
  for (std::size_t index = 0; index < halves; ++index) {
    Half& half = halves_[index];
    half.slots = memory_ + index * slots(rank_count_, with_overflow_) * slot_bytes_;
    half.overflow = with_overflow_ ? nullptr : half.slots + static_cast<std::uint64_t>(rank_count_) * slot_bytes_;
  }
}

Staging::~Staging() {
  for (const Half& half : halves_) {
    if (half.done != nullptr) {
      device_.destroy_event(half.done);
    }
  }
  if (mapped_ != nullptr) {
    device_.release_mapped(mapped_);
  }
  if (scratch_ != nullptr) {
    device_.release(scratch_);
  }
  if (memory_ != nullptr && windows_ != nullptr) {
    static_cast<void>(windows_->ncclMemFree(memory_));
  } else if (memory_ != nullptr) {
    device_.release(memory_);
  }
}

}  // namespace zipccl::collectives
