#include "switcher/membership.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "switcher/fence_wire.hpp"
#include "switcher/limits.hpp"
#include "switcher/text.hpp"

namespace zipccl::switcher {

Membership::Membership(const Ticket& ticket, std::uint32_t rank, std::uint32_t rank_count, Pollers* pollers,
                       Joined joined)
    : ticket_(ticket),
      rank_(rank),
      rank_count_(rank_count),
      pollers_(pollers),
      joined_(std::move(joined)),
      missing_(2 * (rank_count - 1)),
      peers_(rank_count) {}

PeerHeader Membership::header_to(std::uint32_t peer, PeerFrame type) const {
  PeerHeader header;
  header.type = type;
  header.sender = rank_;
  header.nonce = ticket_.nonce;
  header.receiver = peer;
  return header;
}

void Membership::bind(std::uint32_t peer, const std::shared_ptr<PeerLink>& link) {
  Parcel proof;
  proof.header = header_to(peer, PeerFrame::proof);
  const auto* secret = reinterpret_cast<const std::byte*>(ticket_.secret.data());
  proof.payload = std::make_shared<const std::vector<std::byte>>(secret, secret + secret_bytes);
  proof.header.payload_bytes = secret_bytes;
  std::unique_lock lock(mutex_);
  Peer& place = peers_[peer];
  if (!joining_ || place.bound) return;
  const bool moved =
      place.link != nullptr && place.link != link;  // it proved itself on a connection that is gone since
  if (!moved) {
    place.link = link;
    place.bound = true;
    --missing_;
  }
  lock.unlock();
  if (moved || link->send(std::move(proof)) != Status::ok) fail("lost its connection with " + rank_name(peer));
  bound();
}

void Membership::bind_local(std::uint32_t peer, const std::shared_ptr<Membership>& member) {
  std::unique_lock lock(mutex_);
  Peer& place = peers_[peer];
  if (!joining_ || place.bound) return;
  place.member = member;
  place.bound = place.proven = true;
  missing_ -= 2;
  announce_if_complete(std::move(lock));
}

void Membership::bound() { announce_if_complete(std::unique_lock(mutex_)); }

void Membership::fail(const std::string& reason) { announce(std::unique_lock(mutex_), reason); }

void Membership::announce_if_complete(std::unique_lock<std::mutex> lock) {
  if (missing_ == 0) announce(std::move(lock), {});
}

void Membership::announce(std::unique_lock<std::mutex> lock, const std::string& failure) {
  if (!std::exchange(joining_, false)) return;
  const Joined joined = std::exchange(joined_, nullptr);
  lock.unlock();
  joined(failure);
}

bool Membership::accept(const std::shared_ptr<PeerLink>& link, const PeerHeader& header, Bytes payload) {
  const std::uint32_t sender = header.sender;
  if (sender >= rank_count_ || sender == rank_) return false;
  std::unique_lock lock(mutex_);
  if (closed_) return true;
  Peer& peer = peers_[sender];
  if (header.type == PeerFrame::proof) {
    Ticket claimed = ticket_;
    std::memcpy(claimed.secret.data(), payload->data(), secret_bytes);
    if (!same_secret(claimed, ticket_) || peer.proven || (peer.link != nullptr && peer.link != link)) return false;
    peer.link = link;
    peer.proven = true;
    --missing_;
    announce_if_complete(std::move(lock));
    return true;
  }
  if (!peer.proven || peer.link != link) return false;
  lock.unlock();
  if (header.type == PeerFrame::leave) {
    leave(sender);
    return true;
  }
  if (header.type == PeerFrame::fence) {
    const auto message = decode_fence(*payload);
    if (!message) return false;
    deliver({sender, false, {header.chunk, header.sequence}, *message});
    return true;
  }
  deliver(sender, {sender, header.sequence, header.chunk}, std::move(payload));  // or discards, if it left before
  return true;
}

bool Membership::deliver(std::uint32_t sender, const RecordKey& key, Bytes record) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return true;
    if (peers_[sender].lost) return false;
    store(key, std::move(record));
  }
  pollers_->wake();
  return true;
}

bool Membership::deliver(const FenceEvent& event) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return true;
    if (peers_[event.sender].lost) return false;
    fence_events_.push_back(event);
  }
  pollers_->wake();
  return true;
}

// Once for a peer; under the lock.
void Membership::note_loss(std::uint32_t peer) {
  if (std::exchange(peers_[peer].lost, true) || closed_) return;
  FenceEvent event;
  event.sender = peer;
  event.lost = true;
  fence_events_.push_back(event);
}

void Membership::store(const RecordKey& key, Bytes record) {
  const std::size_t bytes = record->size();
  auto [place, added] = records_.try_emplace(key);
  if (!added) stored_bytes_ -= place->second->size();
  place->second = std::move(record);
  stored_bytes_ += bytes;
}

void Membership::lose(const PeerLink& link, const std::string& reason) {
  std::unique_lock lock(mutex_);
  std::optional<std::uint32_t> first;
  for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
    if (peers_[rank].link.get() != &link || peers_[rank].lost) continue;
    note_loss(rank);
    if (!first) first = rank;
  }
  if (first) {
    announce(std::move(lock), "lost its connection with " + rank_name(*first) + (reason.empty() ? "" : ", " + reason));
  } else {
    lock.unlock();
  }
  pollers_->wake();
}

void Membership::leave(std::uint32_t peer) {
  std::unique_lock lock(mutex_);
  note_loss(peer);
  announce(std::move(lock), rank_name(peer) + " left");
  pollers_->wake();
}

Status Membership::send(std::uint32_t receiver, const RecordKey& key, Bytes record) {
  if (receiver >= rank_count_ || receiver == rank_ || key.sender != rank_ || record == nullptr ||
      record->size() > max_record_bytes) {
    return Status::invalid_argument;
  }
  std::shared_ptr<PeerLink> link;
  std::shared_ptr<Membership> member;
  const std::size_t bytes = record->size();
  {
    const std::lock_guard lock(mutex_);
    if (peers_[receiver].lost) return Status::connection_lost;
    link = peers_[receiver].link;
    member = peers_[receiver].member.lock();
    if (link != nullptr) {
      ++outgoing_records_;
      outgoing_bytes_ += bytes;
    }
  }
  if (link == nullptr) {
    if (member == nullptr) return Status::connection_lost;
    return member->deliver(rank_, key, std::move(record)) ? Status::ok : Status::connection_lost;
  }
  PeerHeader header = header_to(receiver, PeerFrame::record);
  header.chunk = key.chunk;
  header.sequence = key.sequence;
  header.payload_bytes = bytes;
  const Status status = link->send({header, std::move(record), shared_from_this()});
  if (status != Status::ok) sent(receiver, bytes, 0);
  return status;
}

Status Membership::send_fence(std::uint32_t receiver, const FenceClass& fence_class, const FenceMessage& message) {
  if (receiver >= rank_count_ || receiver == rank_) return Status::invalid_argument;
  std::shared_ptr<PeerLink> link;
  std::shared_ptr<Membership> member;
  {
    const std::lock_guard lock(mutex_);
    if (peers_[receiver].lost) return Status::connection_lost;
    link = peers_[receiver].link;
    member = peers_[receiver].member.lock();
  }
  try {
    if (link == nullptr) {
      const bool delivered = member != nullptr && member->deliver({rank_, false, fence_class, message});
      return delivered ? Status::ok : Status::connection_lost;
    }
    const FenceBytes bytes = encode_fence(message);
    PeerHeader header = header_to(receiver, PeerFrame::fence);
    header.chunk = fence_class.kind;
    header.sequence = fence_class.detail;
    header.payload_bytes = bytes.size();
    return link->send({header, std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()), nullptr});
  } catch (...) {
    return Status::out_of_memory;
  }
}

bool Membership::next_fence_event(FenceEvent* event) {
  const std::lock_guard lock(mutex_);
  if (fence_events_.empty()) return false;
  *event = fence_events_.front();
  fence_events_.pop_front();
  return true;
}

void Membership::sent(std::uint32_t peer, std::size_t bytes, std::uint64_t written) {
  const std::lock_guard lock(mutex_);
  --outgoing_records_;
  outgoing_bytes_ -= bytes;
  peers_[peer].written = std::max(peers_[peer].written, written);
}

Arrival Membership::find(const RecordKey& key, Bytes* record) const {
  const std::lock_guard lock(mutex_);
  if (const auto found = records_.find(key); found != records_.end()) {
    *record = found->second;
    return Arrival::arrived;
  }
  if (key.sender >= rank_count_ || key.sender == rank_ || peers_[key.sender].lost) return Arrival::lost;
  return Arrival::awaited;
}

void Membership::drop(const RecordKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(key);
  if (found == records_.end()) return;
  stored_bytes_ -= found->second->size();
  records_.erase(found);
}

bool Membership::flushed() const {
  const std::lock_guard lock(mutex_);
  if (outgoing_records_ > 0) return false;
  for (const Peer& peer : peers_) {
    if (peer.written > 0 && !peer.lost && peer.link->acknowledged() < peer.written) return false;
  }
  return true;
}

std::uint64_t Membership::buffered_bytes() const {
  const std::lock_guard lock(mutex_);
  return stored_bytes_ + outgoing_bytes_;
}

void Membership::close() {
  std::vector<Peer> peers;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    joining_ = false;
    joined_ = nullptr;
    peers = std::exchange(peers_, std::vector<Peer>(rank_count_));
    for (Peer& peer : peers_) peer.lost = true;
    records_.clear();
    fence_events_.clear();
    stored_bytes_ = 0;
  }
  for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
    if (const auto member = peers[rank].member.lock()) member->leave(rank_);
    if (!peers[rank].bound || peers[rank].lost || peers[rank].link == nullptr) continue;
    // Without it the peers learn of this process's end only.
    static_cast<void>(peers[rank].link->send({header_to(rank, PeerFrame::leave), nullptr, nullptr}));
  }
}

}  // namespace zipccl::switcher
