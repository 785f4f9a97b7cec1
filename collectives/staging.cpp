#include "collectives/staging.hpp"

#include <new>

namespace zipccl::collectives {

namespace {

constexpr std::uint64_t slot_alignment = 256;
constexpr std::uint64_t halves = 2;

}  // namespace

std::uint64_t Staging::slot_bytes(std::uint64_t bytes, int rank_count) {
  const std::uint64_t share = bytes / halves / (static_cast<std::uint64_t>(rank_count) + 1);
  const std::uint64_t aligned = share / slot_alignment * slot_alignment;
  return aligned < smallest_chunk_bytes ? 0 : aligned;
}

std::uint64_t Staging::chunk_values(std::uint64_t bytes, int rank_count, std::uint32_t pool_fraction) {
  return codec::largest_count(slot_bytes(bytes, rank_count), pool_fraction);
}

Staging::Staging(codec::Device& device, std::uint64_t bytes) : device_(device), bytes_(bytes) {}

Status Staging::create(codec::Device& device, std::uint64_t bytes, RankRange ranks, bool with_overflow,
                       std::unique_ptr<Staging>* staging) {
  if (slot_bytes(bytes, ranks.least) == 0) {
    return Status::invalid_argument;
  }
  std::unique_ptr<Staging> made(new (std::nothrow) Staging(device, bytes));
  if (made == nullptr) {
    return Status::out_of_memory;
  }
  const Status status = made->reserve(ranks, with_overflow);
  if (status == Status::ok) {
    *staging = std::move(made);
  }
  return status;
}

Status Staging::reserve(RankRange ranks, bool with_overflow) {
  const auto most = static_cast<std::size_t>(ranks.most);
  void* memory = nullptr;
  if (const Status status = device_.allocate(&memory, bytes_); status != Status::ok) {
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
  if (const Status status = device_.allocate_mapped(&memory, halves * most * sizeof(codec::MessageSummary));
      status != Status::ok) {
    return status;
  }
  summaries_ = static_cast<codec::MessageSummary*>(memory);
  for (std::size_t index = 0; index < halves; ++index) {
    Half& half = halves_[index];
    half.scratch = scratch_ + index * codec::encode_scratch_bytes;
    half.summaries = summaries_ + index * most;
    if (const Status status = device_.create_event(&half.done); status != Status::ok) {
      return status;
    }
  }
  if (with_overflow) {
    if (const Status status = OverflowPort::create(device_, slot_bytes(bytes_, ranks.least), ranks.most, &overflow_);
        status != Status::ok) {
      return status;
    }
  }
  limit(bytes_, ranks.least);
  return device_.create_event(&last_use_);
}

void Staging::limit(std::uint64_t bytes, int rank_count) {
  const auto ranks = static_cast<std::uint64_t>(rank_count);
  slot_bytes_ = slot_bytes(bytes, rank_count);
  for (std::size_t index = 0; index < halves; ++index) {
    halves_[index].slots = memory_ + index * (ranks + 1) * slot_bytes_;
    halves_[index].overflow = halves_[index].slots + ranks * slot_bytes_;
  }
}

Staging::~Staging() {
  for (const Half& half : halves_) {
    if (half.done != nullptr) {
      device_.destroy_event(half.done);
    }
  }
  if (last_use_ != nullptr) {
    device_.destroy_event(last_use_);
  }
  if (summaries_ != nullptr) {
    device_.release_mapped(summaries_);
  }
  if (scratch_ != nullptr) {
    device_.release(scratch_);
  }
  if (memory_ != nullptr) {
    device_.release(memory_);
  }
}

Status Staging::begin(codec::Stream stream) { return used_ ? device_.wait(last_use_, stream) : Status::ok; }

Status Staging::end(codec::Stream stream) {
  used_ = true;
  return device_.record(last_use_, stream);
}

Status Staging::idle(bool* done) {
  *done = !used_;
  return used_ ? device_.query(last_use_, done) : Status::ok;
}

}  // namespace zipccl::collectives
