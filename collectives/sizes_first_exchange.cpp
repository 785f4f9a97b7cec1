#include "collectives/sizes_first_exchange.hpp"

#include <algorithm>

namespace zipccl::collectives {

namespace {

std::uint64_t whole_sections(std::uint64_t bytes) {
  return (bytes + codec::section_alignment - 1) / codec::section_alignment * codec::section_alignment;
}

}  // namespace

std::uint64_t SizesFirstLane::chunk_values(std::uint64_t slot_bytes, std::uint32_t pool_fraction) {
  std::uint64_t low = 0;
  std::uint64_t high = codec::largest_count(slot_bytes, pool_fraction) / codec::tile_values;
  while (low < high) {
    const std::uint64_t middle = (low + high + 1) / 2;
    const auto layout = codec::Layout::of(middle * codec::tile_values, pool_fraction);
    if (layout.static_bytes + whole_sections(layout.max_overflow_bytes()) <= slot_bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * codec::tile_values;
}

SizesFirstLane::SizesFirstLane(Communicator& communicator)
    : WaitingLane(communicator, chunk_values(Staging::slot_bytes(communicator.agreement.staging_bytes,
                                                                 communicator.rank_count, false),
                                             communicator.agreement.pool_fraction)) {}

Outcome SizesFirstLane::encode_next() {
  begin_next();
  if (const Status status = begin_chunk(); status != Status::ok) {
    return Outcome::of(status);
  }
  codec::EncodeJob job = encode_job(current());
  job.message = own_message();
  job.overflow = own_message() + current().layout.static_bytes;
  job.overflow_bytes = communicator().staging->slot_bytes() - current().layout.static_bytes;
  return Outcome::of(communicator().device->encode(job, current().call->stream));
}

Outcome SizesFirstLane::exchange() {
  // The slots are free until the messages come.
  return Outcome::of(communicator().nccl->ncclAllGather(own_message(), half_of(current()).slots,
                                                        sizeof(codec::MessageHeader), ncclUint8, communicator().handle,
                                                        current().call->stream));
}

Outcome SizesFirstLane::decode_next() {
  const Staging::Half& half = half_of(current());
  const codec::Stream stream = current().call->stream;
  const auto ranks = static_cast<std::size_t>(communicator().rank_count);
  codec::Device& device = *communicator().device;
  const Status status = device.copy(half.headers, half.slots, ranks * sizeof(codec::MessageHeader), stream);
  return Outcome::of(status == Status::ok ? device.record(half.done, stream) : status);
}

Outcome SizesFirstLane::await_sizes() {
  const Staging::Half& half = half_of(current());
  Bucket& statistics = bucket(*current().call);
  if (const Outcome outcome = wait_for(half.done, statistics); !outcome.ok()) {
    return outcome;
  }
  // The chunk before, in the other half, came before this one on the device.
  Chunk before = current();
  before.half ^= 1;
  if (const Outcome outcome = check_summaries(before); !outcome.ok()) {
    return outcome;
  }
  const auto relaxed = std::memory_order_relaxed;
  const codec::Layout& layout = current().layout;
  overflow_bytes_ = 0;
  for (int rank = 0; rank < communicator().rank_count; ++rank) {
    const codec::MessageHeader& header = half.headers[rank];
    const std::uint64_t bytes = layout.overflow_bytes(header.entry_units);
    if (bytes > layout.max_overflow_bytes()) {
      return Outcome::of(Status::bad_totals);
    }
    overflow_bytes_ = std::max(overflow_bytes_, whole_sections(bytes));
    statistics.values.fetch_add(current().count, relaxed);
    statistics.escapes.fetch_add(header.escapes, relaxed);
  }
  if (overflow_bytes_ > 0) {
    statistics.overflow_chunks.fetch_add(1, relaxed);
    statistics.overflow_bytes.fetch_add(overflow_bytes_, relaxed);
  }
  count_bytes(current(), sizeof(codec::MessageHeader) + layout.static_bytes + overflow_bytes_);
  return {};
}

Outcome SizesFirstLane::exchange_messages() {
  if (const Outcome outcome = alive(); !outcome.ok()) {
    return outcome;
  }
  return Outcome::of(communicator().nccl->ncclAllGather(own_message(), half_of(current()).slots,
                                                        current().layout.static_bytes + overflow_bytes_, ncclUint8,
                                                        communicator().handle, current().call->stream));
}

Outcome SizesFirstLane::decode_messages() {
  const codec::Stream stream = current().call->stream;
  codec::DecodeJob job = decode_job(current());
  job.message_stride = current().layout.static_bytes + overflow_bytes_;
  Status status = communicator().device->decode(job, stream);
  if (status == Status::ok && overflow_bytes_ > 0) {
    job.overflow = static_cast<const std::byte*>(job.messages) + current().layout.static_bytes;
    job.overflow_stride = job.message_stride;
    job.overflow_step = overflow_bytes_;
    job.overflow_size = overflow_bytes_;
    status = communicator().device->decode(job, stream);
  }
  if (status == Status::ok) {
    status = communicator().chain->end(stream);
  }
  if (status == Status::ok) {
    count_call(current());
  }
  return Outcome::of(status);
}

Outcome sizes_first_all_gather(std::span<const AllGatherCall> calls) {
  const NcclTable& nccl = *calls.front().communicator->nccl;
  return run_lanes(make_lanes<SizesFirstLane>(calls), [&](const std::vector<std::unique_ptr<SizesFirstLane>>& lanes) {
    Outcome outcome = for_each_lane(lanes, [](SizesFirstLane& lane) { return lane.await_sizes(); });
    if (outcome.ok()) {
      outcome = in_group(
          nccl, [&] { return for_each_lane(lanes, [](SizesFirstLane& lane) { return lane.exchange_messages(); }); });
    }
    if (outcome.ok()) {
      outcome = for_each_lane(lanes, [](SizesFirstLane& lane) { return lane.decode_messages(); });
    }
    return outcome;
  });
}

}  // namespace zipccl::collectives
