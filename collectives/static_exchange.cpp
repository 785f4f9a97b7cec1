#include "collectives/static_exchange.hpp"

#include <algorithm>
#include <utility>

#include "codec/overflow.hpp"

namespace zipccl::collectives {

bool StaticLane::overlaps() const {
  const AllGatherCall& first = *calls().front();
  const auto same_stream = [&](const AllGatherCall* call) {
    return call->stream == first.stream && call->capture == 0;
  };
  return communicator().agreement.overlap && (calls().size() > 1 || plan(first).chunks > 1) &&
         std::ranges::all_of(calls(), same_stream);
}

Outcome StaticLane::encode_next() {
  if (const Status fault = communicator().port->status(); fault != Status::ok) {
    return Outcome::of(fault);
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
    status = enqueue_encode();
  }
  if (status == Status::ok && waiting_) {
    status = decode_beside();
  }
  if (status == Status::ok && current().first == 0) {
    status = enqueue_copy();
  }
  return Outcome::of(status);
}

Status StaticLane::enqueue_encode() {
  codec::Device& device = *communicator().device;
  const bool beside = overlapping_ && chunks_ > 1;
  const codec::Stream stream = beside ? side_ : stream_;
  Status status = Status::ok;
  if (beside && chunks_ == 2) {
    status = give_head_start();
  } else if (!beside && starts_run_) {
    status = communicator().chain->begin(stream, current().call->capture);
  }
  if (status != Status::ok) {
    return status;
  }
  codec::EncodeJob job = numbered(encode_job(current()));
  communicator().port->attach(current().half % 2, &job);
  if (status = device.encode(job, stream); status != Status::ok || !overlapping_) {
    return status;
  }
  side_used_ = true;
  return communicator().chain->order(stream, beside ? stream_ : side_);
}

// The side stream has waited for the call's begin, or for a later point, once any chunk has been decoded on it.
Status StaticLane::enqueue_copy() {
  const AllGatherCall& call = *current().call;
  if (in_place(call)) {
    return Status::ok;
  }
  if (overlapping_ && chunks_ == 1) {
    to_copy_ = &call;
    return Status::ok;
  }
  if (!overlapping_ && communicator().agreement.overlap && call.capture == 0 &&
      call.count * value_bytes >= side_copy_bytes) {
    Status status = communicator().staging->side(stream_, &side_);
    if (status == Status::ok) {
      side_used_ = true;
      status = stand_back();
    }
    return status == Status::ok ? copy_own(call, side_) : status;
  }
  return copy_own(call, overlapping_ ? side_ : stream_);
}

Outcome StaticLane::decode_next() {
  Status status = Status::ok;
  if (overlapping_ && has_next()) {
    waiting_ = receive_job();
  } else {
    status = decode_on_caller();
  }
  if (status == Status::ok) {
    count_bytes(current(), current().layout.static_bytes);
    count_call(current());
  }
  return Outcome::of(status);
}

codec::ReceiveJob StaticLane::receive_job() const {
  const OverflowPort& port = *communicator().port;
  codec::ReceiveJob job = port.receive_job(current().half % 2, numbered(decode_job(current())));
  job.advance = has_next() ? nullptr : port.sequence_counter();
  return job;
}

Status StaticLane::decode_beside() {
  const codec::ReceiveJob job = *std::exchange(waiting_, std::nullopt);
  Status status = stand_back();
  if (status == Status::ok && to_copy_ != nullptr) {
    status = copy_own(*std::exchange(to_copy_, nullptr), side_);
  }
  return status == Status::ok ? communicator().port->receive(job, side_) : status;
}

Status StaticLane::decode_on_caller() {
  // One receive job of a communicator at a time, so all earlier ones come first.
  Status status = overlapping_ ? rejoin() : Status::ok;
  if (status == Status::ok) {
    status = communicator().port->receive(receive_job(), stream_);
  }
  if (status == Status::ok && side_used_) {
    status = rejoin();
  }
  const bool ends_run = !has_next() || next_stream() != stream_;
  return status == Status::ok && ends_run ? communicator().chain->end(stream_, current().call->capture) : status;
}

Status StaticLane::stand_back() {
  const Status status = communicator().chain->order(stream_, side_);
  return status == Status::ok ? give_head_start() : status;
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

Outcome static_all_gather(std::span<const AllGatherCall> calls) {
  for (const AllGatherCall& call : calls) {
    if (call.capture != 0) {
      call.communicator->port->set_captured();
    }
  }
  return run_lanes(make_lanes<StaticLane>(calls),
                   [](const std::vector<std::unique_ptr<StaticLane>>&) { return Outcome{}; });
}

}  // namespace zipccl::collectives
