// One rank's part in one communicator's channel: the records it was sent and how it reaches its peers. No sockets.
//
// It is joining until it is bound to every peer (a proof is on its way) and every peer has proven itself; then records
// may flow. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "switcher/channel.hpp"
#include "switcher/peer_wire.hpp"
#include "switcher/pollers.hpp"

namespace zipccl::switcher {

class Membership;

// A frame on its way out. `owner` is told when the socket has taken it; null for all but records.
struct Parcel {
  PeerHeader header;
  Bytes payload;
  std::shared_ptr<Membership> owner;
};

// The connection with a peer's process.
class PeerLink {
 public:
  // Queues the parcel. connection_lost if the connection is.
  virtual Status send(Parcel parcel) = 0;
  // Of the bytes written to the socket, those that the peer's host has acknowledged; all of them once it is lost.
  virtual std::uint64_t acknowledged() const = 0;

 protected:
  ~PeerLink() = default;  // owned through its own type
};

class Membership : public std::enable_shared_from_this<Membership> {
 public:
  // Called once, when joining has ended, by the thread that ended it: why it failed, or empty. Not after close().
  using Joined = std::function<void(const std::string& failure)>;

  Membership(const Ticket& ticket, std::uint32_t rank, std::uint32_t rank_count, Pollers* pollers, Joined joined);

  const Ticket& ticket() const { return ticket_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t rank_count() const { return rank_count_; }

  // Joining. A failure is final; the first one counts.
  void bind(std::uint32_t peer, const std::shared_ptr<PeerLink>& link);
  void bind_local(std::uint32_t peer, const std::shared_ptr<Membership>& member);
  void fail(const std::string& reason);
  void bound();  // ends joining if nothing is missing, as for a communicator of one rank

  // What a link received. False if the peer broke the protocol.
  bool accept(const std::shared_ptr<PeerLink>& link, const PeerHeader& header, Bytes payload);
  // The peers behind the link are lost.
  void lose(const PeerLink& link, const std::string& reason);
  // The peer has left this communicator.
  void leave(std::uint32_t peer);

  // The socket has taken a record for `peer`; `written` is the link's count after it. Or the link was lost.
  void sent(std::uint32_t peer, std::size_t bytes, std::uint64_t written);

  // Channel.
  Status send(std::uint32_t receiver, const RecordKey& key, Bytes record);
  Arrival find(const RecordKey& key, Bytes* record) const;
  void drop(const RecordKey& key);
  Status send_fence(std::uint32_t receiver, const FenceClass& fence_class, const FenceMessage& message);
  bool next_fence_event(FenceEvent* event);
  bool flushed() const;
  std::uint64_t buffered_bytes() const;
  // Drops all records, tells the peers, and takes nothing any more.
  void close();

 private:
  struct Peer {
    std::shared_ptr<PeerLink> link;    // of a rank in another process
    std::weak_ptr<Membership> member;  // of a rank in this one
    bool bound = false;
    bool proven = false;
    bool lost = false;
    std::uint64_t written = 0;  // the link's count after the last record
  };

  PeerHeader header_to(std::uint32_t peer, PeerFrame type) const;
  // Both take the lock along. Joining ends, unless it had ended before.
  void announce_if_complete(std::unique_lock<std::mutex> lock);
  void announce(std::unique_lock<std::mutex> lock, const std::string& failure);
  bool deliver(std::uint32_t sender, const RecordKey& key, Bytes record);
  bool deliver(const FenceEvent& event);
  void note_loss(std::uint32_t peer);
  void store(const RecordKey& key, Bytes record);

  const Ticket ticket_;
  const std::uint32_t rank_;
  const std::uint32_t rank_count_;
  Pollers* const pollers_;

  mutable std::mutex mutex_;
  Joined joined_;  // until it was called
  bool joining_ = true;
  bool closed_ = false;
  std::uint32_t missing_;  // bindings and proofs
  std::vector<Peer> peers_;
  std::map<RecordKey, Bytes> records_;
  std::deque<FenceEvent> fence_events_;
  std::uint64_t stored_bytes_ = 0;
  std::uint64_t outgoing_records_ = 0;
  std::uint64_t outgoing_bytes_ = 0;
};

}  // namespace zipccl::switcher
