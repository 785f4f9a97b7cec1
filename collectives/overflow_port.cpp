#include "collectives/overflow_port.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "codec/host_exchange.hpp"

namespace zipccl::collectives {

namespace {

using codec::load_acquire;
using codec::store_release;

constexpr std::size_t halves = 2;
constexpr std::size_t device_line = 128;  // the halves' time stamps must not share one

}  // namespace

OverflowPort::OverflowPort(codec::Device& device, std::uint64_t buffer_bytes, int rank_count)
    : device_(device), buffer_bytes_(buffer_bytes), rank_count_(static_cast<std::uint32_t>(rank_count)) {}

Status OverflowPort::create(codec::Device& device, std::uint64_t buffer_bytes, int rank_count,
                            std::unique_ptr<OverflowPort>* port) {
  std::unique_ptr<OverflowPort> made(new (std::nothrow) OverflowPort(device, buffer_bytes, rank_count));
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
  if (const Status status = device_.allocate(&memory, halves * device_line); status != Status::ok) {
    return status;
  }
  started_ns_ = static_cast<std::uint64_t*>(memory);
  const std::uint64_t control = halves * sizeof(codec::OverflowNotice) + sizeof(codec::ExchangeCounters) +
                                sizeof(codec::OverflowNotice);  // the last one's place is the release word's
  mapped_bytes_ = halves * buffer_bytes_ + control + sizeof(codec::Mailbox) + mailbox_bytes;
  if (const Status status = device_.allocate_mapped(&memory, mapped_bytes_); status != Status::ok) {
    mapped_bytes_ = 0;
    return status;
  }
  mapped_ = static_cast<std::byte*>(memory);
  std::byte* next = mapped_;
  const auto take = [&next](std::uint64_t bytes) { return std::exchange(next, next + bytes); };
  for (std::byte*& buffer : buffers_) {
    buffer = take(buffer_bytes_);
  }
  notices_ = reinterpret_cast<codec::OverflowNotice*>(take(halves * sizeof(codec::OverflowNotice)));
  counters_ = reinterpret_cast<codec::ExchangeCounters*>(take(sizeof(codec::ExchangeCounters)));
  released_ = reinterpret_cast<std::uint32_t*>(take(sizeof(codec::OverflowNotice)));
  mailbox_ = reinterpret_cast<codec::Mailbox*>(take(sizeof(codec::Mailbox) + mailbox_bytes));
  return Status::ok;
}

OverflowPort::~OverflowPort() {
  if (mapped_ != nullptr) {
    device_.release_mapped(mapped_);
  }
  if (started_ns_ != nullptr) {
    device_.release(started_ns_);
  }
}

void OverflowPort::open(std::uint32_t own_rank, RecordTransport* transport) {
  own_rank_ = own_rank;
  transport_ = transport;
}

void OverflowPort::attach(std::uint64_t half, codec::EncodeJob* encode) {
  encode->overflow = buffers_[half];
  encode->overflow_bytes = buffer_bytes_;
  encode->notice = notices_ + half;
  encode->release = released_;
  encode->started_ns = started_ns_ + half * device_line / sizeof(std::uint64_t);
  enqueued_.fetch_add(1, std::memory_order_release);
  transport_->wake();
}

codec::PatchJob OverflowPort::patch_job(std::uint64_t half, const codec::DecodeJob& decode, void* room) const {
  codec::PatchJob job;
  job.decode = decode;
  job.mailbox = mailbox_;
  job.mailbox_capacity = mailbox_bytes;
  job.room = room;
  job.room_bytes = buffer_bytes_;
  job.release = released_;
  job.counters = counters_;
  job.started_ns = started_ns_ + half * device_line / sizeof(std::uint64_t);
  job.ticket = enqueued_.load(std::memory_order_relaxed);
  return job;
}

bool OverflowPort::poll() {
  // Asked first: a chunk that has finished has posted before, so what is shipped below includes it.
  const bool busy =
      load_acquire(*released_) == 0 && load_acquire(counters_->finished) < enqueued_.load(std::memory_order_acquire);
  for (std::size_t half = 0; half < halves; ++half) {
    ship(half);
  }
  answer();
  return busy;
}

void OverflowPort::ship(std::size_t half) {
  codec::OverflowNotice& notice = notices_[half];
  const std::uint64_t posted = load_acquire(notice.posted);
  if (posted == notice.drained) {
    return;
  }
  const std::uint64_t bytes = std::min(notice.bytes, buffer_bytes_);
  const std::byte* first = buffers_[half];
  auto record = std::make_shared<const std::vector<std::byte>>(first, first + bytes);
  sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (const Status status = transport_->send_to_all({own_rank_, notice.sequence, notice.chunk}, std::move(record));
      status != Status::ok) {
    fault_.store(status);
  }
  store_release(notice.drained, posted);  // after the transport has it: see flushed()
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

void OverflowPort::release() { store_release(*released_, std::uint32_t{1}); }

Status OverflowPort::status() const {
  const Status fault = fault_.load();
  return fault != Status::ok ? fault : static_cast<Status>(load_acquire(counters_->status));
}

bool OverflowPort::flushed() const {
  for (std::size_t half = 0; half < halves; ++half) {
    if (load_acquire(notices_[half].drained) != load_acquire(notices_[half].posted)) {
      return false;
    }
  }
  return transport_->flushed();
}

}  // namespace zipccl::collectives
