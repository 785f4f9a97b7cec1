#include "collectives/overflow_port.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "codec/host_exchange.hpp"

namespace zipccl::collectives {

using codec::load_acquire;
using codec::store_release;

Status OverflowPort::create(codec::Device& device, std::unique_ptr<OverflowPort>* port) {
  std::unique_ptr<OverflowPort> made(new (std::nothrow) OverflowPort(device));
  if (made == nullptr) {
    return Status::out_of_memory;
  }
  const Status status = made->reserve();
  if (status == Status::ok) {
    *port = std::move(made);
  }
  return status;
}

Status OverflowPort::reserve() {
  void* memory = nullptr;
  if (const Status status = device_.allocate(&memory, mailbox_bytes + sizeof(DeviceWords)); status != Status::ok) {
    return status;
  }
  room_ = static_cast<std::byte*>(memory);
  words_ = reinterpret_cast<DeviceWords*>(room_ + mailbox_bytes);
  if (const Status status = device_.clear(words_, sizeof(DeviceWords)); status != Status::ok) {
    return status;
  }
  const std::uint64_t bytes = sizeof(codec::ExchangeCounters) + line + sizeof(codec::Outbox) + outbox_bytes +
                              sizeof(codec::Mailbox) + mailbox_bytes;
  if (const Status status = device_.allocate_mapped(&memory, bytes); status != Status::ok) {
    return status;
  }
  mapped_bytes_ = bytes;
  mapped_ = static_cast<std::byte*>(memory);
  std::byte* next = mapped_;
  const auto take = [&next](std::uint64_t size) { return std::exchange(next, next + size); };
  counters_ = reinterpret_cast<codec::ExchangeCounters*>(take(sizeof(codec::ExchangeCounters)));
  released_ = reinterpret_cast<std::uint32_t*>(take(line));
  outbox_ = reinterpret_cast<codec::Outbox*>(take(sizeof(codec::Outbox) + outbox_bytes));
  mailbox_ = reinterpret_cast<codec::Mailbox*>(take(sizeof(codec::Mailbox) + mailbox_bytes));
  return Status::ok;
}

OverflowPort::~OverflowPort() {
  if (mapped_ != nullptr) {
    device_.release_mapped(mapped_);
  }
  if (room_ != nullptr) {
    device_.release(room_);
  }
}

void OverflowPort::open(std::uint32_t own_rank, RecordTransport* transport) {
  own_rank_ = own_rank;
  transport_ = transport;
}

void OverflowPort::attach(std::uint64_t number, codec::EncodeJob* encode) {
  encode->overflow = nullptr;
  encode->overflow_bytes = 0;
  encode->outbox = outbox_;
  encode->outbox_capacity = outbox_bytes;
  encode->outbox_lock = words_->outbox_lock;
  encode->release = released_;
  DeviceWords::Exchange& exchange = words_->exchanges[number % in_flight];
  encode->header_copy = exchange.header;
  encode->started_ns = exchange.started_ns;
  enqueued_.fetch_add(1, std::memory_order_release);
  transport_->wake();
}

codec::ReceiveJob OverflowPort::receive_job(std::uint64_t number, const codec::DecodeJob& decode) const {
  codec::ReceiveJob job;
  job.decode = decode;
  job.mailbox = mailbox_;
  job.mailbox_capacity = mailbox_bytes;
  job.room = room_;
  job.release = released_;
  job.counters = counters_;
  DeviceWords::Exchange& exchange = words_->exchanges[number % in_flight];
  job.own_header = exchange.header;
  job.started_ns = exchange.started_ns;
  return job;
}

Status OverflowPort::receive(const codec::ReceiveJob& job, codec::Stream stream) {
  const Status status = device_.receive(job, stream);
  received_ += status == Status::ok ? 1 : 0;
  return status;
}

Status OverflowPort::encode_and_receive(const codec::EncodeJob& encode, const codec::ReceiveJob& job,
                                        codec::Stream stream) {
  const Status status = device_.encode_and_receive(encode, job, stream);
  received_ += status == Status::ok ? 1 : 0;
  return status;
}

// Also for an exchange whose encode was refused: a part of it may have been launched and wait for poll().
void OverflowPort::settle(codec::Stream stream) {
  codec::ReceiveJob counting = receive_job(0, {});
  counting.started_ns = nullptr;  // an encode that never ran left none
  while (received_ < enqueued() && receive(counting, stream) == Status::ok) {
  }
}

void OverflowPort::set_captured() {
  captured_.store(true);
  transport_->wake();
}

bool OverflowPort::poll() {
  // Asked first: an exchange that has finished has posted before, so what is shipped below includes it.
  const std::uint64_t finished = load_acquire(counters_->finished);
  const bool busy =
      load_acquire(*released_) == 0 && (captured_.load() || finished < enqueued_.load(std::memory_order_acquire));
  ship();
  answer();
  return busy;
}

// Throws where there is no memory. The piece is then still there, and comes again.
void OverflowPort::ship() {
  const std::uint64_t posted = load_acquire(outbox_->posted);
  if (posted == outbox_->taken) {
    return;
  }
  const std::uint64_t offset = outbox_->offset;
  const std::uint64_t piece = outbox_->piece_bytes;
  const std::uint64_t bytes = outbox_->record_bytes;
  if (offset == 0) {
    record_ = std::make_shared<std::vector<std::byte>>();
    record_->reserve(bytes);
  }
  if (record_ == nullptr || offset > record_->size() || piece > outbox_bytes || piece > bytes - offset) {
    fault_.store(Status::bad_totals);
  } else {
    incomplete_.store(offset + piece < bytes);
    record_->resize(offset);  // without what a try before has appended
    record_->insert(record_->end(), outbox_->data(), outbox_->data() + piece);
    if (offset + piece == bytes) {
      send_record();
    }
    sent_bytes_.fetch_add(piece, std::memory_order_relaxed);
  }
  store_release(outbox_->taken, posted);  // after the transport has it: see flushed()
}

void OverflowPort::send_record() {
  Sent* sent = nullptr;
  {
    const std::lock_guard lock(mutex_);
    sent = &sent_[outbox_->receiver];
  }
  const RecordId id = {own_rank_, outbox_->sequence, outbox_->chunk};
  if (const Status status = transport_->send(outbox_->receiver, id, record_); status != Status::ok) {
    fault_.store(status);
  }
  {
    const std::lock_guard lock(mutex_);
    ++sent->records;
    sent->bytes += record_->size();
  }
  record_ = nullptr;
}

OverflowPort::Sent OverflowPort::sent_to(std::uint32_t receiver) const {
  const std::lock_guard lock(mutex_);
  const auto found = sent_.find(receiver);
  return found == sent_.end() ? Sent{} : found->second;
}

void OverflowPort::answer() {
  const std::uint64_t ticket = load_acquire(mailbox_->ticket);
  if (ticket == mailbox_->answered) {
    return;
  }
  const RecordId id = {mailbox_->sender, mailbox_->sequence, mailbox_->chunk};
  RecordTransport::Record record;
  const RecordTransport::Found found = transport_->find(id, &record);
  if (found == RecordTransport::Found::awaited) {
    return;
  }
  if (found == RecordTransport::Found::lost) {
    mailbox_->status = static_cast<std::int32_t>(Status::connection_lost);
  } else if (mailbox_->offset > record->size()) {
    mailbox_->status = static_cast<std::int32_t>(Status::bad_totals);
  } else {
    const std::uint64_t piece = std::min<std::uint64_t>(mailbox_bytes, record->size() - mailbox_->offset);
    std::memcpy(mailbox_->data(), record->data() + mailbox_->offset, piece);
    mailbox_->piece_bytes = piece;
    mailbox_->record_bytes = record->size();
    mailbox_->status = static_cast<std::int32_t>(Status::ok);
    if (mailbox_->offset + piece == record->size()) {
      transport_->drop(id);
    }
  }
  store_release(mailbox_->answered, ticket);
}

codec::ExchangeCounters OverflowPort::counters() const {
  codec::ExchangeCounters now{};
  now.finished = load_acquire(counters_->finished);  // stored last
  now.values = load_acquire(counters_->values);
  now.escapes = load_acquire(counters_->escapes);
  now.overflow_messages = load_acquire(counters_->overflow_messages);
  now.overflow_bytes = load_acquire(counters_->overflow_bytes);
  now.wait_ns = load_acquire(counters_->wait_ns);
  now.exchange_ns = load_acquire(counters_->exchange_ns);
  now.status = load_acquire(counters_->status);
  now.tile_status = load_acquire(counters_->tile_status);
  return now;
}

void OverflowPort::release() { store_release(*released_, std::uint32_t{1}); }

Status OverflowPort::status() const {
  const Status fault = fault_.load();
  return fault != Status::ok ? fault : counters().fault();
}

// An encode that a release found past its last look at the word posts when poll() has been called for the last time.
bool OverflowPort::flushed() const {
  const bool taken = load_acquire(outbox_->taken) == load_acquire(outbox_->posted);
  if (!taken) {
    transport_->wake();
  }
  const bool whole = !incomplete_.load() || load_acquire(*released_) != 0;
  return taken && whole && transport_->flushed();
}

}  // namespace zipccl::collectives
