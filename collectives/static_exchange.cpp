#include "collectives/static_exchange.hpp"

#include "codec/overflow.hpp"

namespace zipccl::collectives {

Outcome StaticLane::encode_next() {
  OverflowPort& port = *communicator().staging->overflow();
  if (const Status fault = port.status(); fault != Status::ok) {
    return Outcome::of(fault);
  }
  if (const Outcome outcome = begin_next(); !outcome.ok()) {
    return outcome;
  }
  codec::EncodeJob job = encode_job(current());
  port.attach(current().half % 2, &job);
  return Outcome::of(communicator().device->encode(job, current().call->stream));
}

Outcome StaticLane::decode_next() {
  codec::Device& device = *communicator().device;
  const codec::Stream stream = current().call->stream;
  const codec::DecodeJob job = decode_job(current());
  if (const Status status = device.decode(job, stream); status != Status::ok) {
    return Outcome::of(status);
  }
  const OverflowPort& port = *communicator().staging->overflow();
  if (const Status status = device.patch(port.patch_job(current().half % 2, job), stream); status != Status::ok) {
    return Outcome::of(status);
  }
  count_bytes(current(), current().layout.static_bytes);
  count_call(current());
  return Outcome::of(communicator().staging->end(stream));
}

Outcome static_all_gather(std::span<const AllGatherCall> calls) {
  return run_lanes(make_lanes<StaticLane>(calls),
                   [](const std::vector<std::unique_ptr<StaticLane>>&) { return Outcome{}; });
}

}  // namespace zipccl::collectives
