#include "collectives/gather_chunks.hpp"

#include <algorithm>
#include <type_traits>

namespace zipccl::collectives {

namespace {

template <typename Pointer>
auto at(Pointer* base, std::uint64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<Pointer>, const std::byte, std::byte>;
  return static_cast<Byte*>(base) + bytes;
}

}  // namespace

GatherChunks::GatherChunks(Communicator& communicator) : communicator_(communicator) {
  const Agreement& agreed = communicator.agreement;
  const bool fixed = agreed.exchange == Exchange::fixed;
  limits_.half = Staging::chunk_values(agreed.staging_bytes, communicator.rank_count, fixed, agreed.pool_fraction);
  limits_.whole =
      fixed ? Staging::whole_values(agreed.staging_bytes, communicator.rank_count, agreed.pool_fraction) : limits_.half;
  limits_.overlap = agreed.overlap;
  limits_.call_ns = agreed.call_ns;
}

Bucket& GatherChunks::bucket(const AllGatherCall& call) const {
  const auto ranks = static_cast<std::uint64_t>(communicator_.rank_count);
  return communicator_.statistics->bucket(Collective::all_gather, call.count * value_bytes * ranks);
}

void GatherChunks::add(const AllGatherCall& call) {
  const ChunkPlan plan = ChunkPlan::of(call.count, static_cast<std::uint64_t>(communicator_.rank_count), limits_);
  calls_.push_back({&call, plan, plan.values > limits_.half});
}

std::byte* GatherChunks::own_shard(const AllGatherCall& call) const {
  return at(call.receive, static_cast<std::uint64_t>(communicator_.rank) * call.count * value_bytes);
}

Status GatherChunks::copy_own(const AllGatherCall& call, codec::Stream stream) const {
  return in_place(call) ? Status::ok
                        : communicator_.device->copy(own_shard(call), call.send, call.count * value_bytes, stream);
}

void GatherChunks::begin_next() {
  const AllGatherCall& call = *calls_[next_call_].call;
  if (next_value_ == 0) {
    next_number_ = 0;
    ++communicator_.sequence;
  }
  current_.call = &call;
  current_.first = next_value_;
  current_.count = std::min(calls_[next_call_].plan.values, call.count - next_value_);
  current_.number = next_number_++;
  current_.sequence = communicator_.sequence;
  current_.half = communicator_.next_half++;
  current_.offset = 0;
  current_.layout = codec::Layout::of(current_.count, communicator_.agreement.pool_fraction);
  next_value_ += current_.count;
  if (next_value_ == call.count) {
    ++next_call_;
    next_value_ = 0;
  }
}

Outcome GatherChunks::exchange() {
  return Outcome::of(communicator_.nccl->ncclAllGather(own_slot(current_), slots_of(current_),
                                                       current_.layout.static_bytes, ncclUint8, communicator_.handle,
                                                       current_.call->stream));
}

codec::EncodeJob GatherChunks::encode_job(const Chunk& chunk) const {
  const Staging::Half& half = half_of(chunk);
  codec::EncodeJob job;
  job.values = at(chunk.call->send, chunk.first * value_bytes);
  job.count = chunk.count;
  job.pool_fraction = communicator_.agreement.pool_fraction;
  job.message = own_slot(chunk);
  job.overflow = half.overflow;
  job.overflow_bytes = communicator_.staging->slot_bytes();
  job.scratch = half.scratch;
  job.sequence = chunk.sequence;
  job.chunk = chunk.number;
  return job;
}

codec::DecodeJob GatherChunks::decode_job(const Chunk& chunk) const {
  const Staging::Half& half = half_of(chunk);
  codec::DecodeJob job;
  job.messages = slots_of(chunk);
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

void GatherChunks::count_bytes(const Chunk& chunk, std::uint64_t wire_bytes) const {
  Bucket& statistics = bucket(*chunk.call);
  statistics.raw_bytes.fetch_add(chunk.count * value_bytes, std::memory_order_relaxed);
  statistics.wire_bytes.fetch_add(wire_bytes, std::memory_order_relaxed);
}

void GatherChunks::count_call(const Chunk& chunk) const {
  if (chunk.first + chunk.count == chunk.call->count) {
    bucket(*chunk.call).calls[static_cast<std::size_t>(Route::compressed)].fetch_add(1, std::memory_order_relaxed);
  }
}

Outcome GatherChunks::alive() const { return communicator_.aborted.load() ? Outcome::of(Status::aborted) : Outcome{}; }

void GatherChunks::abandon() const {
  for (const PlannedCall& planned : calls_) {
    static_cast<void>(communicator_.chain->begin(planned.call->stream, planned.call->capture));
    static_cast<void>(communicator_.chain->end(planned.call->stream, planned.call->capture));
  }
}

}  // namespace zipccl::collectives
