#include "collectives/transfers.hpp"

#include <algorithm>
#include <numeric>

#include "collectives/overflow_port.hpp"
#include "collectives/transfer_staging.hpp"

namespace zipccl::collectives {

namespace {

// A part of an all-to-all below this costs more of a launch's blocks and of a message's header than it saves; many
// small parts share one launch, so that it is less than for a lone message.
constexpr std::uint64_t least_part_bytes = 64 << 10;

// Whatever a message's values, and its pool: the record of its overflow is one that can be sent.
bool has_room(std::uint64_t count) {
  constexpr std::uint32_t no_pool = 0;
  return count <= codec::max_count &&
         codec::Layout::of(count, no_pool).max_overflow_bytes() <= RecordTransport::most_bytes;
}

Route route_by_size(std::uint64_t count, bool small) {
  if (!has_room(count)) {
    return Route::large;
  }
  return count == 0 || small ? Route::small : Route::compressed;
}

// The port tells exchanges in flight apart by their numbers; transfers are never two at a time.
constexpr std::uint64_t only_number = 0;

}  // namespace

Route route_transfer(const Communicator& communicator, int peer, std::uint64_t count, ncclDataType_t dtype) {
  const Agreement& agreement = communicator.agreement;
  if (!agreement.point_to_point) {
    return Route::disabled;
  }
  if (dtype != ncclBfloat16) {
    return Route::dtype;
  }
  if (peer == communicator.rank || peer < 0 || peer >= communicator.rank_count) {
    return Route::single_rank;  // to itself, or for NCCL to refuse
  }
  if (!compresses_link(communicator, peer)) {
    return Route::link;
  }
  const std::uint64_t least = communicator.link_min_bytes[static_cast<std::size_t>(peer)];
  return route_by_size(count, count * value_bytes < least);
}

Route route_all_to_all(const Communicator& communicator, std::uint64_t count, ncclDataType_t dtype) {
  const Agreement& agreement = communicator.agreement;
  const Route route = route_collective(communicator, agreement.all_to_all, dtype);
  const auto ranks = static_cast<std::uint64_t>(communicator.rank_count);
  const bool small = count * value_bytes * ranks < agreement.min_bytes ||
                     count * value_bytes < std::min(agreement.min_bytes, least_part_bytes);
  return route == Route::compressed ? route_by_size(count, small) : route;
}

bool compresses_link(const Communicator& communicator, int peer) {
  return communicator.link_min_bytes[static_cast<std::size_t>(peer)] != never;
}

std::size_t TransferGroup::add(const Transfer& transfer) {
  Message message;
  message.transfer = transfer;
  message.offset = bytes_;
  message.bytes = codec::Layout::of(transfer.count, transfer.pool_fraction).static_bytes;
  bytes_ += message.bytes;
  sends_ += transfer.send != nullptr ? 1 : 0;
  messages_.push_back(message);
  if (std::find(rooms_.begin(), rooms_.end(), transfer.pool_fraction) == rooms_.end()) {
    rooms_.push_back(transfer.pool_fraction);
  }
  return messages_.size() - 1;
}

Outcome TransferGroup::encode() {
  if (const Outcome outcome = usable(); !outcome.ok()) {
    return outcome;
  }
  find_streams();
  Status status = begin();
  for (const std::uint32_t room : rooms_) {
    status = status == Status::ok ? enqueue_encode(room) : status;
  }
  return Outcome::of(status);
}

Outcome TransferGroup::usable() const {
  if (communicator_.failure != ncclSuccess) {
    return {communicator_.failure, Status::ok};  // said before
  }
  return communicator_.aborted.load() ? Outcome::of(Status::aborted)
                                      : blame(communicator_, communicator_.port->status());
}

void TransferGroup::find_streams() {
  for (const Message& message : messages_) {
    const codec::Stream stream = message.transfer.stream;
    if (stream != lead() && std::find(others_.begin(), others_.end(), stream) == others_.end()) {
      others_.push_back(stream);
    }
  }
}

Status TransferGroup::begin() {
  Status status = communicator_.device->capture(lead(), &capture_);
  if (status == Status::ok) {
    if (capture_ != 0) {
      communicator_.port->set_captured();
    }
    begun_ = true;
    status = communicator_.chain->begin(lead(), capture_);
  }
  for (codec::Stream stream : others_) {
    status = status == Status::ok ? communicator_.chain->order(stream, lead()) : status;
  }
  if (status == Status::ok) {
    status = communicator_.transfers->reserve(bytes_, sends_, capture_ != 0, lead());
    communicator_.transfer_staging_bytes.store(communicator_.transfers->bytes(), std::memory_order_relaxed);
  }
  return status;
}

Status TransferGroup::enqueue_encode(std::uint32_t room) const {
  std::vector<codec::EncodeItem> items;
  items.reserve(sends_ + 1);  // an empty list has an address, too
  for (const Message& message : messages_) {
    const Transfer& transfer = message.transfer;
    if (transfer.send != nullptr && transfer.pool_fraction == room) {
      items.push_back({transfer.send, transfer.count, communicator_.transfers->messages() + message.offset,
                       static_cast<std::uint32_t>(transfer.peer)});
    }
  }
  codec::EncodeJob job;
  job.items = items.data();
  job.item_count = static_cast<std::uint32_t>(items.size());
  job.pool_fraction = room;
  job.scratch = communicator_.transfers->scratch();
  job.message_counter = communicator_.port->message_counter();
  communicator_.port->attach(only_number, &job);
  return communicator_.device->encode(job, lead());
}

Outcome TransferGroup::issue(std::size_t index) const {
  const Message& message = messages_[index];
  const NcclTable& nccl = *communicator_.nccl;
  std::byte* bytes = communicator_.transfers->messages() + message.offset;
  const int peer = message.transfer.peer;
  return Outcome::of(message.transfer.send != nullptr
                         ? nccl.ncclSend(bytes, message.bytes, ncclUint8, peer, communicator_.handle, lead())
                         : nccl.ncclRecv(bytes, message.bytes, ncclUint8, peer, communicator_.handle, lead()));
}

Outcome TransferGroup::decode() {
  Status status = Status::ok;
  for (const std::uint32_t room : rooms_) {
    status = status == Status::ok ? enqueue_decode(room, true) : status;
  }
  if (status == Status::ok) {
    status = end();
  }
  if (status == Status::ok) {
    count();
  }
  return Outcome::of(status);
}

// Also without receives: the job counts the encode as finished.
Status TransferGroup::enqueue_decode(std::uint32_t room, bool received) const {
  std::vector<codec::DecodeItem> items;
  items.reserve(messages_.size() - sends_ + 1);
  for (const Message& message : messages_) {
    const Transfer& transfer = message.transfer;
    if (received && transfer.receive != nullptr && transfer.pool_fraction == room) {
      items.push_back({communicator_.transfers->messages() + message.offset, transfer.receive, transfer.count,
                       static_cast<std::uint32_t>(transfer.peer)});
    }
  }
  codec::DecodeJob job;
  job.items = items.data();
  job.item_count = static_cast<std::uint32_t>(items.size());
  job.pool_fraction = room;
  job.any_sequence = true;
  OverflowPort& port = *communicator_.port;
  return port.receive(port.receive_job(only_number, job), lead());
}

Status TransferGroup::end() const {
  for (codec::Stream stream : others_) {
    if (const Status status = communicator_.chain->order(lead(), stream); status != Status::ok) {
      return status;
    }
  }
  return communicator_.chain->end(lead(), capture_);
}

void TransferGroup::count() const {
  for (const Message& message : messages_) {
    const Transfer& transfer = message.transfer;
    Bucket& bucket = communicator_.statistics->bucket(transfer.kind, transfer.call_bytes);
    bucket.calls[static_cast<std::size_t>(Route::compressed)].fetch_add(transfer.calls, std::memory_order_relaxed);
    if (transfer.send != nullptr) {
      bucket.raw_bytes.fetch_add(transfer.count * value_bytes, std::memory_order_relaxed);
      bucket.wire_bytes.fetch_add(message.bytes, std::memory_order_relaxed);
    }
  }
}

void TransferGroup::drop() {
  if (!begun_) {
    return;
  }
  const Outcome outcome = attempt([&] {
    Status status = Status::ok;
    for (const std::uint32_t room : rooms_) {
      status = status == Status::ok ? enqueue_decode(room, false) : status;
    }
    return Outcome::of(status == Status::ok ? end() : status);
  });
  if (!outcome.ok()) {
    abandon(outcome);
  }
}

void TransferGroup::abandon(const Outcome& outcome) {
  if (communicator_.failure == ncclSuccess) {
    communicator_.failure = outcome.result;
    communicator_.statistics->note_error(outcome.status);
  }
  if (begun_) {
    // Again: the first time may be what failed, and end() needs it.
    static_cast<void>(communicator_.chain->begin(lead(), capture_));
    communicator_.port->settle(lead());
    static_cast<void>(end());
  }
}

}  // namespace zipccl::collectives
