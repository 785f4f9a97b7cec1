#include "collectives/exact_exchange.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

namespace zipccl::collectives {

namespace {

constexpr std::uint64_t value_bytes = 2;  // bfloat16

using Clock = std::chrono::steady_clock;

// A short wait is polled closely; a long one (a slow link, a late rank) must not cost a core.
constexpr auto spin_time = std::chrono::microseconds(200);
constexpr auto pause_time = std::chrono::microseconds(20);
constexpr auto error_check_time = std::chrono::milliseconds(10);

template <typename Pointer>
auto at(Pointer* base, std::uint64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<Pointer>, const std::byte, std::byte>;
  return static_cast<Byte*>(base) + bytes;
}

// Runs `operations` between the real GroupStart and GroupEnd. A group that was opened is always closed; the first
// error wins.
template <typename Operations>
Outcome in_group(const NcclTable& nccl, Operations operations) {
  if (const ncclResult_t opened = nccl.ncclGroupStart(); opened != ncclSuccess) {
    return Outcome::of(opened);
  }
  const Outcome inside = operations();
  const ncclResult_t closed = nccl.ncclGroupEnd();
  return inside.ok() ? Outcome::of(closed) : inside;
}

template <typename Operation>
Outcome for_each_lane(std::span<const std::unique_ptr<ExactLane>> lanes, Operation operation) {
  for (const auto& lane : lanes) {
    if (const Outcome outcome = operation(*lane); !outcome.ok()) {
      return outcome;
    }
  }
  return {};
}

}  // namespace

Outcome Outcome::of(ncclResult_t result) { return {result, result == ncclSuccess ? Status::ok : Status::nccl_error}; }

Outcome Outcome::of(Status status) {
  switch (status) {
    case Status::ok:
      return {};
    case Status::device_error:
    case Status::out_of_memory:
      return {ncclUnhandledCudaError, status};
    case Status::aborted:
      return {ncclInvalidUsage, status};
    default:
      return {ncclInternalError, status};
  }
}

ExactLane::ExactLane(Communicator& communicator) : communicator_(communicator) {}

Bucket& ExactLane::bucket(const AllGatherCall& call) const {
  const auto ranks = static_cast<std::uint64_t>(communicator_.rank_count);
  return communicator_.statistics->bucket(Collective::all_gather, call.count * value_bytes * ranks);
}

Outcome ExactLane::begin_call(const AllGatherCall& call) {
  const std::uint64_t largest = Staging::chunk_values(communicator_.agreement.staging_bytes, communicator_.rank_count,
                                                      communicator_.agreement.pool_fraction);
  // Chunks of equal size: the last one is not a stub that pays a call's latency for little.
  const std::uint64_t chunks = (call.count + largest - 1) / largest;
  const std::uint64_t tiles = (call.count + codec::tile_values - 1) / codec::tile_values;
  chunk_values_ = (tiles + chunks - 1) / chunks * codec::tile_values;
  next_value_ = 0;
  next_number_ = 0;
  ++communicator_.sequence;
  std::byte* own = at(call.receive, static_cast<std::uint64_t>(communicator_.rank) * call.count * value_bytes);
  if (own == call.send) {
    return {};
  }
  return Outcome::of(communicator_.device->copy(own, call.send, call.count * value_bytes, call.stream));
}

Outcome ExactLane::encode_next() {
  if (const Outcome outcome = alive(); !outcome.ok()) {
    return outcome;
  }
  const AllGatherCall& call = *calls_[next_call_];
  if (next_value_ == 0) {
    if (const Outcome outcome = begin_call(call); !outcome.ok()) {
      return outcome;
    }
  }
  current_.call = &call;
  current_.first = next_value_;
  current_.count = std::min(chunk_values_, call.count - next_value_);
  current_.number = next_number_++;
  current_.sequence = communicator_.sequence;
  current_.half = next_half_++;
  current_.layout = codec::Layout::of(current_.count, communicator_.agreement.pool_fraction);
  next_value_ += current_.count;
  if (next_value_ == call.count) {
    ++next_call_;
    next_value_ = 0;
  }

  if (const Status status = communicator_.staging->begin(call.stream); status != Status::ok) {
    return Outcome::of(status);
  }
  Staging::Half& half = communicator_.staging->half(current_.half);
  std::fill_n(half.summaries, communicator_.rank_count, codec::MessageSummary{});
  codec::EncodeJob job;
  job.values = at(call.send, current_.first * value_bytes);
  job.count = current_.count;
  job.pool_fraction = communicator_.agreement.pool_fraction;
  job.message = half.slots + static_cast<std::uint64_t>(communicator_.rank) * current_.layout.static_bytes;
  job.overflow = half.overflow;
  job.overflow_bytes = communicator_.staging->slot_bytes();
  job.scratch = half.scratch;
  job.sequence = current_.sequence;
  job.chunk = current_.number;
  return Outcome::of(communicator_.device->encode(job, call.stream));
}

Outcome ExactLane::exchange_static() {
  const Staging::Half& half = communicator_.staging->half(current_.half);
  const std::uint64_t bytes = current_.layout.static_bytes;
  return Outcome::of(
      communicator_.nccl->ncclAllGather(half.slots + static_cast<std::uint64_t>(communicator_.rank) * bytes, half.slots,
                                        bytes, ncclUint8, communicator_.handle, current_.call->stream));
}

codec::DecodeJob ExactLane::decode_job(const Chunk& chunk) const {
  const Staging::Half& half = communicator_.staging->half(chunk.half);
  codec::DecodeJob job;
  job.messages = half.slots;
  job.message_stride = chunk.layout.static_bytes;
  job.message_count = static_cast<std::uint32_t>(communicator_.rank_count);
  job.skip = static_cast<std::uint32_t>(communicator_.rank);
  job.values = at(chunk.call->receive, chunk.first * value_bytes);
  job.value_stride = chunk.call->count * value_bytes;
  job.count = chunk.count;
  job.pool_fraction = communicator_.agreement.pool_fraction;
  job.sequence = chunk.sequence;
  job.chunk = chunk.number;
  job.summaries = half.summaries;
  return job;
}

Outcome ExactLane::decode_next() {
  const codec::Stream stream = current_.call->stream;
  if (const Status status = communicator_.device->decode(decode_job(current_), stream); status != Status::ok) {
    return Outcome::of(status);
  }
  if (const Status status = communicator_.device->record(communicator_.staging->half(current_.half).done, stream);
      status != Status::ok) {
    return Outcome::of(status);
  }
  in_flight_.push_back(current_);
  return Outcome::of(communicator_.staging->end(stream));
}

Outcome ExactLane::alive() const { return communicator_.aborted.load() ? Outcome::of(Status::aborted) : Outcome{}; }

Outcome ExactLane::nccl_state() const {
  if (const Outcome outcome = alive(); !outcome.ok()) {
    return outcome;
  }
  ncclResult_t error = ncclSuccess;
  const ncclResult_t asked = communicator_.nccl->ncclCommGetAsyncError(communicator_.handle, &error);
  return Outcome::of(asked != ncclSuccess ? asked : error == ncclInProgress ? ncclSuccess : error);
}

Outcome ExactLane::wait_for(codec::Event event, Bucket& bucket) const {
  const auto start = Clock::now();
  auto next_check = start + error_check_time;
  Outcome outcome;
  for (;;) {
    bool done = false;
    if (const Status status = communicator_.device->query(event, &done); status != Status::ok) {
      outcome = Outcome::of(status);
      break;
    }
    if (done) {
      break;
    }
    outcome = alive();
    if (!outcome.ok()) {
      break;
    }
    const auto now = Clock::now();
    if (now >= next_check) {
      next_check = now + error_check_time;
      outcome = nccl_state();
      if (!outcome.ok()) {
        break;
      }
    }
    if (now - start > spin_time) {
      std::this_thread::sleep_for(pause_time);
    }
  }
  const auto waited = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  bucket.host_wait_ns.fetch_add(static_cast<std::uint64_t>(waited), std::memory_order_relaxed);
  return outcome;
}

Outcome ExactLane::await_oldest() {
  settling_ = in_flight_.front();
  in_flight_.erase(in_flight_.begin());
  overflows_.clear();
  next_overflow_ = 0;
  sent_overflow_ = 0;

  const Staging::Half& half = communicator_.staging->half(settling_.half);
  Bucket& statistics = bucket(*settling_.call);
  if (const Outcome outcome = wait_for(half.done, statistics); !outcome.ok()) {
    return outcome;
  }
  if (const Outcome outcome = check_summaries(); !outcome.ok()) {
    return outcome;
  }
  const auto relaxed = std::memory_order_relaxed;
  const auto ranks = static_cast<std::uint32_t>(communicator_.rank_count);
  std::uint64_t sent = settling_.layout.static_bytes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const codec::MessageSummary& summary = half.summaries[rank];
    const std::uint64_t bytes = settling_.layout.overflow_bytes(summary.entry_units);
    if (bytes > settling_.layout.max_overflow_bytes()) {
      return Outcome::of(Status::bad_totals);
    }
    if (bytes > 0) {
      overflows_.push_back({rank, bytes, 0});
      if (rank == static_cast<std::uint32_t>(communicator_.rank)) {
        sent += bytes;
        statistics.overflow_bytes.fetch_add(bytes, relaxed);
      }
    }
    statistics.values.fetch_add(settling_.count, relaxed);
    statistics.escapes.fetch_add(summary.escapes, relaxed);
  }
  statistics.wire_bytes.fetch_add(sent, relaxed);
  statistics.raw_bytes.fetch_add(settling_.count * value_bytes, relaxed);
  if (!overflows_.empty()) {
    statistics.overflow_chunks.fetch_add(1, relaxed);
  }
  return {};
}

Outcome ExactLane::check_summaries() const {
  const codec::MessageSummary* summaries = communicator_.staging->half(settling_.half).summaries;
  for (int rank = 0; rank < communicator_.rank_count; ++rank) {
    if (const auto status = static_cast<Status>(summaries[rank].status); status != Status::ok) {
      // What arrives after a peer's death is stale memory: NCCL's word on that comes first.
      const Outcome nccl = nccl_state();
      return nccl.ok() ? Outcome::of(status) : nccl;
    }
  }
  return {};
}

// Room in the chunk's own half that is free once its static part is decoded: what the messages leave of the slots,
// or the own message, whichever is larger. Either holds any single rank's overflow.
std::byte* ExactLane::overflow_room(const Chunk& chunk, std::uint64_t* bytes) const {
  const Staging::Half& half = communicator_.staging->half(chunk.half);
  const auto ranks = static_cast<std::uint64_t>(communicator_.rank_count);
  const std::uint64_t used = ranks * chunk.layout.static_bytes;
  const std::uint64_t rest = ranks * communicator_.staging->slot_bytes() - used;
  if (rest >= chunk.layout.static_bytes) {
    *bytes = rest;
    return half.slots + used;
  }
  *bytes = chunk.layout.static_bytes;
  return half.slots + static_cast<std::uint64_t>(communicator_.rank) * chunk.layout.static_bytes;
}

Outcome ExactLane::exchange_overflow() {
  if (const Outcome outcome = alive(); !outcome.ok()) {
    return outcome;
  }
  const Staging::Half& half = communicator_.staging->half(settling_.half);
  std::uint64_t room = 0;
  std::byte* base = overflow_room(settling_, &room);
  std::uint64_t offset = 0;
  sent_overflow_ = next_overflow_;
  while (sent_overflow_ < overflows_.size() && overflows_[sent_overflow_].bytes <= room - offset) {
    Overflow& overflow = overflows_[sent_overflow_++];
    overflow.offset = offset;
    offset += (overflow.bytes + codec::section_alignment - 1) / codec::section_alignment * codec::section_alignment;
    offset = std::min(offset, room);
    const bool own = overflow.rank == static_cast<std::uint32_t>(communicator_.rank);
    std::byte* buffer = own ? half.overflow : base + overflow.offset;
    const ncclResult_t result =
        communicator_.nccl->ncclBroadcast(buffer, buffer, overflow.bytes, ncclUint8, static_cast<int>(overflow.rank),
                                          communicator_.handle, settling_.call->stream);
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
    if (overflow.rank == static_cast<std::uint32_t>(communicator_.rank)) {
      continue;
    }
    codec::DecodeJob job = decode_job(settling_);
    job.messages = at(job.messages, overflow.rank * job.message_stride);
    job.values = at(job.values, overflow.rank * job.value_stride);
    job.message_count = 1;
    job.skip = ~0u;
    job.summaries += overflow.rank;
    job.overflow = base + overflow.offset;
    job.overflow_step = overflow.bytes;
    job.overflow_size = overflow.bytes;
    if (const Status status = communicator_.device->decode(job, settling_.call->stream); status != Status::ok) {
      return Outcome::of(status);
    }
  }
  if (has_overflow()) {
    return {};
  }
  const codec::Stream stream = settling_.call->stream;
  if (const Status status = communicator_.device->record(communicator_.staging->half(settling_.half).done, stream);
      status != Status::ok) {
    return Outcome::of(status);
  }
  // The next chunk's decode may be on another stream and has ended its part of the chain: join that.
  if (const Status status = communicator_.staging->begin(stream); status != Status::ok) {
    return Outcome::of(status);
  }
  return Outcome::of(communicator_.staging->end(stream));
}

Outcome ExactLane::finish_oldest() {
  const AllGatherCall& call = *settling_.call;
  if (!overflows_.empty()) {
    const codec::Event done = communicator_.staging->half(settling_.half).done;
    if (const Outcome outcome = wait_for(done, bucket(call)); !outcome.ok()) {
      return outcome;
    }
    if (const Outcome outcome = check_summaries(); !outcome.ok()) {
      return outcome;
    }
  }
  if (settling_.first + settling_.count == call.count) {
    bucket(call).calls[static_cast<std::size_t>(Route::compressed)].fetch_add(1, std::memory_order_relaxed);
  }
  return {};
}

void ExactLane::abandon() const {
  for (const AllGatherCall* call : calls_) {
    static_cast<void>(communicator_.staging->begin(call->stream));
    static_cast<void>(communicator_.staging->end(call->stream));
  }
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
  std::vector<std::unique_ptr<ExactLane>> lanes;
  for (const AllGatherCall& call : calls) {
    const auto found = std::find_if(lanes.begin(), lanes.end(),
                                    [&](const auto& lane) { return &lane->communicator() == call.communicator; });
    ExactLane& lane =
        found != lanes.end() ? **found : *lanes.emplace_back(std::make_unique<ExactLane>(*call.communicator));
    lane.add(call);
  }
  const NcclTable& nccl = *calls.front().communicator->nccl;
  const auto must_settle = [](const auto& lane) { return lane->must_settle(); };
  while (!lanes.empty()) {
    Outcome outcome = for_each_lane(lanes, [](ExactLane& lane) { return lane.encode_next(); });
    if (outcome.ok()) {
      outcome =
          in_group(nccl, [&] { return for_each_lane(lanes, [](ExactLane& lane) { return lane.exchange_static(); }); });
    }
    if (outcome.ok()) {
      outcome = for_each_lane(lanes, [](ExactLane& lane) { return lane.decode_next(); });
    }
    while (outcome.ok() && std::any_of(lanes.begin(), lanes.end(), must_settle)) {
      outcome = settle(nccl, lanes);
    }
    if (!outcome.ok()) {
      for (const auto& lane : lanes) {
        lane->abandon();
      }
      return outcome;
    }
    std::erase_if(lanes, [](const auto& lane) { return !lane->has_next(); });
  }
  return {};
}

}  // namespace zipccl::collectives
