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
    status = overlapping_ ? find_side() : Status::ok;
  }
  if (status == Status::ok) {
    status = enqueue_encode();
  }
  if (status == Status::ok && current().first == 0) {
    status = enqueue_copy();
  }
  return Outcome::of(status);
}

Status StaticLane::find_side() {
  const Staging::SideStreams* side = nullptr;
  const Status status = communicator().staging->side(stream_, &side);
  if (status == Status::ok) {
    side_ = *side;
  }
  return status;
}

Status StaticLane::enqueue_encode() {
  codec::Device& device = *communicator().device;
  const bool beside = overlapping_ && chunks_ > 1;
  const codec::Stream stream = beside ? side_.encode : stream_;
  Status status = Status::ok;
  if (beside) {
    status = chunks_ > 2 ? device.wait(half_of(current()).done, stream) : device.pause(head_start_ns, stream);
  } else if (starts_run_) {
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
  return beside ? communicator().chain->order(stream, stream_) : communicator().chain->order(stream, side_.encode);
}

// The decode stream has waited for the call's begin, or for a later point, once any chunk has been decoded on it.
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
    Status status = find_side();
    if (status == Status::ok) {
      side_used_ = true;
      status = stand_back();
    }
    return status == Status::ok ? copy_own(call, side_.decode) : status;
  }
  return copy_own(call, overlapping_ ? side_.decode : stream_);
}

Outcome StaticLane::decode_next() {
  const Status status = overlapping_ && has_next() ? decode_beside() : decode_on_caller();
  if (status == Status::ok) {
    count_bytes(current(), current().layout.static_bytes);
    count_call(current());
  }
  return Outcome::of(status);
}

Status StaticLane::decode_beside() {
  const codec::Stream stream = side_.decode;
  Status status = stand_back();
  if (status == Status::ok && to_copy_ != nullptr) {
    status = copy_own(*std::exchange(to_copy_, nullptr), stream);
  }
  if (status == Status::ok) {
    status = decode_and_patch(stream);
  }
  return status == Status::ok ? communicator().device->record(half_of(current()).done, stream) : status;
}

Status StaticLane::decode_on_caller() {
  // One patch of a communicator at a time, so all earlier ones come first.
  Status status = overlapping_ ? rejoin() : Status::ok;
  if (status == Status::ok) {
    status = decode_and_patch(stream_);
  }
  if (status == Status::ok && side_used_) {
    status = rejoin();
  }
  const bool ends_run = !has_next() || next_stream() != stream_;
  return status == Status::ok && ends_run ? communicator().chain->end(stream_, current().call->capture) : status;
}

Status StaticLane::decode_and_patch(codec::Stream stream) {
  codec::Device& device = *communicator().device;
  const codec::DecodeJob job = numbered(decode_job(current()));
  if (const Status status = device.decode(job, stream); status != Status::ok) {
    return status;
  }
  const OverflowPort& port = *communicator().port;
  codec::PatchJob patch = port.patch_job(current().half % 2, job);
  patch.advance = has_next() ? nullptr : port.sequence_counter();
  return device.patch(patch, stream);
}

Status StaticLane::stand_back() {
  const Status status = communicator().chain->order(stream_, side_.decode);
  return status == Status::ok ? communicator().device->pause(head_start_ns, side_.decode) : status;
}

// The caller's stream has waited for every encode already, unless something failed in between.
Status StaticLane::rejoin() {
  const Status status = communicator().chain->order(side_.decode, stream_);
  side_used_ = status != Status::ok;
  return status;
}

void StaticLane::abandon() {
  if (side_used_) {
    static_cast<void>(communicator().chain->order(side_.encode, stream_));
    static_cast<void>(rejoin());
  }
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
