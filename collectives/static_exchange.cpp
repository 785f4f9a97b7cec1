#include "collectives/static_exchange.hpp"

#include <algorithm>
#include <utility>

#include "codec/overflow.hpp"

namespace zipccl::collectives {

bool StaticLane::overlaps() const {
  const PlannedCall& first = calls().front();
  const auto fits = [&](const PlannedCall& planned) {
    return planned.call->stream == first.call->stream && planned.call->capture == 0 && !planned.whole;
  };
  return communicator().agreement.overlap && (calls().size() > 1 || first.plan.chunks > 1) &&
         std::ranges::all_of(calls(), fits);
}

Outcome StaticLane::encode_next() {
  if (const Outcome fault = blame(communicator(), communicator().port->status()); !fault.ok()) {
    return fault;
  }
  begin_next();
  const codec::Stream stream = current().call->stream;
  starts_run_ = chunks_ == 0 || stream != stream_;
  stream_ = stream;
  Status status = Status::ok;
  if (chunks_++ == 0) {
    overlapping_ = overlaps();
    status = overlapping_ ? communicator().staging->side(stream_, &side_) : Status::ok;
  }
  if (status == Status::ok) {
    status = overlapping_ && chunks_ > 1 ? encode_beside() : encode_on_caller();
  }
  return Outcome::of(status);
}

Status StaticLane::encode_on_caller() {
  Status status = starts_run_ ? communicator().chain->begin(stream_, current().call->capture) : Status::ok;
  if (status == Status::ok) {
    status = communicator().device->encode(encode_job(), stream_);
  }
  if (status != Status::ok) {
    return status;
  }
  if (overlapping_) {
    side_used_ = true;
    return communicator().chain->order(stream_, side_);
  }
  return current().first == 0 ? enqueue_copy() : Status::ok;
}

// What the side stream does beside the exchange before this chunk's: the encode, and the decode of the chunk that had
// the half before it. Only the next exchange waits for that; own shards' copies nobody waits for before the call's end.
Status StaticLane::encode_beside() {
  CallChain& chain = *communicator().chain;
  OverflowPort& port = *communicator().port;
  Status status = give_head_start();
  if (status == Status::ok && due_ && !takes_place_of(*due_)) {
    status = port.receive(*std::exchange(due_, std::nullopt), side_);
  }
  if (status == Status::ok) {
    const codec::EncodeJob job = encode_job();
    status = due_ ? port.encode_and_receive(job, *std::exchange(due_, std::nullopt), side_)
                  : communicator().device->encode(job, side_);
  }
  if (status == Status::ok) {
    status = chain.order(side_, stream_);
  }
  if (status == Status::ok && chunks_ == 2) {
    status = copy_own(*calls().front().call, side_);
  }
  if (status == Status::ok && current().first == 0) {
    status = copy_own(*current().call, side_);
  }
  return status == Status::ok ? chain.order(stream_, side_) : status;  // for what comes beside the next exchange
}

// Moves the current chunk's slots so that the own one lies inside the own one of the chunk whose decode is due, in the
// same half; false if it is too large for that. Copy engines want slots where the other ranks have them.
bool StaticLane::takes_place_of(const codec::ReceiveJob& due) {
  const std::uint64_t former_bytes = due.decode.message_stride;
  const std::uint64_t bytes = current().layout.static_bytes;
  const auto former_offset =
      static_cast<std::uint64_t>(static_cast<const std::byte*>(due.decode.messages) - half_of(current()).slots);
  if (bytes > former_bytes || (communicator().agreement.copy_engines && bytes != former_bytes)) {
    return false;
  }
  move_current(former_offset + static_cast<std::uint64_t>(communicator().rank) * (former_bytes - bytes));
  return true;
}

// With the first chunk of a call whose chunks do not overlap.
Status StaticLane::enqueue_copy() {
  const AllGatherCall& call = *current().call;
  const bool beside = !in_place(call) && communicator().agreement.overlap && call.capture == 0 &&
                      call.count * value_bytes >= side_copy_bytes;
  if (!beside) {
    return copy_own(call, stream_);
  }
  Status status = communicator().staging->side(stream_, &side_);
  if (status == Status::ok) {
    side_used_ = true;
    status = communicator().chain->order(stream_, side_);
  }
  if (status == Status::ok) {
    status = give_head_start();
  }
  return status == Status::ok ? copy_own(call, side_) : status;
}

Outcome StaticLane::decode_next() {
  Status status = Status::ok;
  if (overlapping_ && has_next()) {
    due_ = std::exchange(waiting_, receive_job());
  } else {
    status = decode_on_caller();
  }
  if (status == Status::ok) {
    count_bytes(current(), current().layout.static_bytes);
    count_call(current());
  }
  return Outcome::of(status);
}

codec::EncodeJob StaticLane::encode_job() const {
  codec::EncodeJob job = numbered(GatherChunks::encode_job(current()));
  communicator().port->attach(current().half, &job);
  return job;
}

codec::ReceiveJob StaticLane::receive_job() const {
  const OverflowPort& port = *communicator().port;
  codec::ReceiveJob job = port.receive_job(current().half, numbered(decode_job(current())));
  job.advance = has_next() ? nullptr : port.sequence_counter();
  return job;
}

// One receive job of a communicator at a time, so all earlier ones come first.
Status StaticLane::decode_on_caller() {
  OverflowPort& port = *communicator().port;
  Status status = waiting_ ? give_head_start() : Status::ok;
  if (status == Status::ok && waiting_) {
    status = port.receive(*std::exchange(waiting_, std::nullopt), side_);
  }
  if (status == Status::ok && overlapping_) {
    status = rejoin();
  }
  if (status == Status::ok) {
    status = port.receive(receive_job(), stream_);
  }
  if (status == Status::ok && side_used_) {
    status = rejoin();
  }
  const bool ends_run = !has_next() || next_stream() != stream_;
  return status == Status::ok && ends_run ? communicator().chain->end(stream_, current().call->capture) : status;
}

// Copy engines need no multiprocessor.
Status StaticLane::give_head_start() {
  return communicator().agreement.copy_engines ? Status::ok : communicator().device->pause(head_start_ns, side_);
}

Status StaticLane::rejoin() {
  const Status status = communicator().chain->order(side_, stream_);
  side_used_ = status != Status::ok;
  return status;
}

void StaticLane::abandon() {
  if (side_used_) {
    static_cast<void>(rejoin());
  }
  communicator().port->settle(stream_);
  GatherChunks::abandon();
}

namespace {

Outcome run(std::span<const AllGatherCall> calls) {
  return run_lanes(make_lanes<StaticLane>(calls),
                   [](const std::vector<std::unique_ptr<StaticLane>>&) { return Outcome{}; });
}

// NCCL before 2.29.7 fails if copy engines are to move anything on the legacy default stream (its issue 2003).
bool on_unfit_stream(const AllGatherCall& call) {
  const auto legacy = reinterpret_cast<codec::Stream>(std::uintptr_t{1});  // cudaStreamLegacy
  return call.communicator->agreement.copy_engines && (call.stream == nullptr || call.stream == legacy);
}

// On their communicators' own streams, between two hops.
Outcome run_on_own_streams(std::span<const AllGatherCall> calls) {
  std::vector<AllGatherCall> moved(calls.begin(), calls.end());
  Status status = Status::ok;
  for (AllGatherCall& call : moved) {
    if (status == Status::ok && on_unfit_stream(call)) {
      const codec::Stream caller = call.stream;
      status = find_own_stream(*call.communicator, caller, &call.stream);
      status = status == Status::ok ? call.communicator->chain->order(caller, call.stream) : status;
    }
  }
  if (status != Status::ok) {
    return Outcome::of(status);
  }
  const Outcome outcome = run(moved);
  for (std::size_t index = 0; index < moved.size(); ++index) {
    const AllGatherCall& call = calls[index];
    if (moved[index].stream != call.stream) {
      const Status back = call.communicator->chain->hand_back(moved[index].stream, call.stream);
      status = status == Status::ok ? back : status;
    }
  }
  return outcome.ok() ? Outcome::of(status) : outcome;
}

}  // namespace

Outcome static_all_gather(std::span<const AllGatherCall> calls) {
  for (const AllGatherCall& call : calls) {
    if (call.capture != 0) {
      call.communicator->port->set_captured();
    }
  }
  return std::ranges::any_of(calls, on_unfit_stream) ? run_on_own_streams(calls) : run(calls);
}

}  // namespace zipccl::collectives
