#include "collectives/exact_exchange.hpp"

#include <algorithm>

namespace zipccl::collectives {

Outcome ExactLane::encode_next() {
  begin_next();
  const Status status = begin_chunk();
  return Outcome::of(status == Status::ok ? communicator().device->encode(encode_job(current()), current().call->stream)
                                          : status);
}

Outcome ExactLane::decode_next() {
  const codec::Stream stream = current().call->stream;
  if (const Status status = communicator().device->decode(decode_job(current()), stream); status != Status::ok) {
    return Outcome::of(status);
  }
  if (const Status status = communicator().device->record(half_of(current()).done, stream); status != Status::ok) {
    return Outcome::of(status);
  }
  in_flight_.push_back(current());
  return Outcome::of(communicator().chain->end(stream));
}

Outcome ExactLane::await_oldest() {
  settling_ = in_flight_.front();
  in_flight_.erase(in_flight_.begin());
  overflows_.clear();
  next_overflow_ = 0;
  sent_overflow_ = 0;

  const Staging::Half& half = half_of(settling_);
  Bucket& statistics = bucket(*settling_.call);
  if (const Outcome outcome = wait_for(half.done, statistics); !outcome.ok()) {
    return outcome;
  }
  if (const Outcome outcome = check_summaries(settling_); !outcome.ok()) {
    return outcome;
  }
  const auto relaxed = std::memory_order_relaxed;
  const auto ranks = static_cast<std::uint32_t>(communicator().rank_count);
  std::uint64_t sent = settling_.layout.static_bytes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const codec::MessageSummary& summary = half.summaries[rank];
    const std::uint64_t bytes = settling_.layout.overflow_bytes(summary.entry_units);
    if (bytes > settling_.layout.max_overflow_bytes()) {
      return Outcome::of(Status::bad_totals);
    }
    if (bytes > 0) {
      overflows_.push_back({rank, bytes, 0});
      if (rank == static_cast<std::uint32_t>(communicator().rank)) {
        sent += bytes;
        statistics.overflow_bytes.fetch_add(bytes, relaxed);
      }
    }
    statistics.values.fetch_add(settling_.count, relaxed);
    statistics.escapes.fetch_add(summary.escapes, relaxed);
  }
  count_bytes(settling_, sent);
  if (!overflows_.empty()) {
    statistics.overflow_chunks.fetch_add(1, relaxed);
  }
  return {};
}

// Room in the chunk's own half that is free once its static part is decoded: what the messages leave of the slots,
// or the own message, whichever is larger. Either holds any single rank's overflow.
std::byte* ExactLane::overflow_room(const Chunk& chunk, std::uint64_t* bytes) const {
  const Staging::Half& half = half_of(chunk);
  const auto ranks = static_cast<std::uint64_t>(communicator().rank_count);
  const std::uint64_t used = ranks * chunk.layout.static_bytes;
  const std::uint64_t rest = ranks * communicator().staging->slot_bytes() - used;
  if (rest >= chunk.layout.static_bytes) {
    *bytes = rest;
    return half.slots + used;
  }
  *bytes = chunk.layout.static_bytes;
  return half.slots + static_cast<std::uint64_t>(communicator().rank) * chunk.layout.static_bytes;
}

Outcome ExactLane::exchange_overflow() {
  if (const Outcome outcome = alive(); !outcome.ok()) {
    return outcome;
  }
  const Staging::Half& half = half_of(settling_);
  std::uint64_t room = 0;
  std::byte* base = overflow_room(settling_, &room);
  std::uint64_t offset = 0;
  sent_overflow_ = next_overflow_;
  while (sent_overflow_ < overflows_.size() && overflows_[sent_overflow_].bytes <= room - offset) {
    Overflow& overflow = overflows_[sent_overflow_++];
    overflow.offset = offset;
    offset += (overflow.bytes + codec::section_alignment - 1) / codec::section_alignment * codec::section_alignment;
    offset = std::min(offset, room);
    const bool own = overflow.rank == static_cast<std::uint32_t>(communicator().rank);
    std::byte* buffer = own ? half.overflow : base + overflow.offset;
    const ncclResult_t result =
        communicator().nccl->ncclBroadcast(buffer, buffer, overflow.bytes, ncclUint8, static_cast<int>(overflow.rank),
                                           communicator().handle, settling_.call->stream);
    if (result != ncclSuccess) {
      return Outcome::of(result);
    }
  }
  return sent_overflow_ > next_overflow_ ? Outcome{} : Outcome::of(Status::bad_totals);
}

Outcome ExactLane::decode_overflow() {
  std::uint64_t room = 0;
  const std::byte* base = overflow_room(settling_, &room);
  for (; next_overflow_ < sent_overflow_; ++next_overflow_) {
    const Overflow& overflow = overflows_[next_overflow_];
    if (overflow.rank == static_cast<std::uint32_t>(communicator().rank)) {
      continue;
    }
    codec::DecodeJob job = decode_job(settling_);
    job.messages = static_cast<const std::byte*>(job.messages) + overflow.rank * job.message_stride;
    job.values = static_cast<std::byte*>(job.values) + overflow.rank * job.value_stride;
    job.message_count = 1;
    job.skip = ~0u;
    job.summaries += overflow.rank;
    job.overflow = base + overflow.offset;
    job.overflow_step = overflow.bytes;
    job.overflow_size = overflow.bytes;
    if (const Status status = communicator().device->decode(job, settling_.call->stream); status != Status::ok) {
      return Outcome::of(status);
    }
  }
  if (has_overflow()) {
    return {};
  }
  const codec::Stream stream = settling_.call->stream;
  if (const Status status = communicator().device->record(half_of(settling_).done, stream); status != Status::ok) {
    return Outcome::of(status);
  }
  // The next chunk's decode may be on another stream and has ended its part of the chain: join that.
  if (const Status status = communicator().chain->begin(stream); status != Status::ok) {
    return Outcome::of(status);
  }
  return Outcome::of(communicator().chain->end(stream));
}

Outcome ExactLane::finish_oldest() {
  if (!overflows_.empty()) {
    if (const Outcome outcome = wait_for(half_of(settling_).done, bucket(*settling_.call)); !outcome.ok()) {
      return outcome;
    }
    if (const Outcome outcome = check_summaries(settling_); !outcome.ok()) {
      return outcome;
    }
  }
  count_call(settling_);
  return {};
}

namespace {

// The lanes' oldest chunks together, so that the broadcasts of all communicators share one real group and no order
// among communicators is imposed.
Outcome settle(const NcclTable& nccl, std::span<const std::unique_ptr<ExactLane>> lanes) {
  std::vector<ExactLane*> settling;
  for (const auto& lane : lanes) {
    if (lane->must_settle()) {
      settling.push_back(lane.get());
      if (const Outcome outcome = lane->await_oldest(); !outcome.ok()) {
        return outcome;
      }
    }
  }
  std::vector<ExactLane*> overflowing = settling;
  for (;;) {
    std::erase_if(overflowing, [](const ExactLane* lane) { return !lane->has_overflow(); });
    if (overflowing.empty()) {
      break;
    }
    Outcome outcome = in_group(nccl, [&] {
      for (ExactLane* lane : overflowing) {
        if (const Outcome inside = lane->exchange_overflow(); !inside.ok()) {
          return inside;
        }
      }
      return Outcome{};
    });
    for (ExactLane* lane : overflowing) {
      if (outcome.ok()) {
        outcome = lane->decode_overflow();
      }
    }
    if (!outcome.ok()) {
      return outcome;
    }
  }
  for (ExactLane* lane : settling) {
    if (const Outcome outcome = lane->finish_oldest(); !outcome.ok()) {
      return outcome;
    }
  }
  return {};
}

}  // namespace

Outcome exact_all_gather(std::span<const AllGatherCall> calls) {
  const NcclTable& nccl = *calls.front().communicator->nccl;
  return run_lanes(make_lanes<ExactLane>(calls), [&](const std::vector<std::unique_ptr<ExactLane>>& lanes) {
    const auto must_settle = [](const auto& lane) { return lane->must_settle(); };
    Outcome outcome;
    while (outcome.ok() && std::any_of(lanes.begin(), lanes.end(), must_settle)) {
      outcome = settle(nccl, lanes);
    }
    return outcome;
  });
}

}  // namespace zipccl::collectives
