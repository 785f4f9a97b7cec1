#include "interpose/overflow_link.hpp"

#include <new>

#include "switcher/limits.hpp"

namespace zipccl::interpose {

namespace {

static_assert(collectives::RecordTransport::most_bytes <= switcher::max_record_bytes);

switcher::RecordKey key_of(const collectives::RecordId& id) { return {id.sender, id.sequence, id.chunk}; }

}  // namespace

OverflowLink::OverflowLink(switcher::Rendezvous& rendezvous, switcher::Channel& channel,
                           collectives::OverflowPort& port, std::uint32_t own_rank, std::uint32_t rank_count)
    : rendezvous_(rendezvous), channel_(channel), port_(port), own_rank_(own_rank), rank_count_(rank_count) {}

Status OverflowLink::open(switcher::Rendezvous& rendezvous, switcher::Channel& channel, collectives::OverflowPort& port,
                          std::uint32_t own_rank, std::uint32_t rank_count, std::unique_ptr<OverflowLink>* link) {
  std::unique_ptr<OverflowLink> opened(new OverflowLink(rendezvous, channel, port, own_rank, rank_count));
  port.open(own_rank, opened.get());
  const Status status = rendezvous.add(opened.get());
  if (status == Status::ok) *link = std::move(opened);
  return status;
}

OverflowLink::~OverflowLink() { rendezvous_.remove(this); }

// The helper thread has nobody to tell. What could not be copied for want of memory is still there the next time.
bool OverflowLink::poll() {
  try {
    return port_.poll();
  } catch (const std::bad_alloc&) {
    return true;
  }
}

// A peer that has gone awaits nothing; one that still does finds its own end lost.
Status OverflowLink::send(std::uint32_t receiver, const collectives::RecordId& id, Record record) {
  Status worst = Status::ok;
  for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
    if (rank != own_rank_ && (receiver == all_receivers || receiver == rank)) {
      const Status status = channel_.send(rank, key_of(id), record);
      worst = status == Status::ok || status == Status::connection_lost ? worst : status;
    }
  }
  return worst;
}

collectives::RecordTransport::Found OverflowLink::find(const collectives::RecordId& id, Record* record) {
  switch (channel_.find(key_of(id), record)) {
    case switcher::Arrival::arrived:
      return Found::arrived;
    case switcher::Arrival::awaited:
      return Found::awaited;
    case switcher::Arrival::lost:
      return Found::lost;
  }
  return Found::lost;
}

void OverflowLink::drop(const collectives::RecordId& id) { channel_.drop(key_of(id)); }

}  // namespace zipccl::interpose
