// Records between the ranks of one communicator, apart from NCCL: what a message's pool could not hold (section 4 of
// the design). One authenticated TCP connection joins each pair of processes, shared by all their communicators; it is
// made and proven when a communicator is created. Records are buffered in memory, without bound, on the receiving side
// until taken and on the sending side until the socket has taken them, so neither side ever waits for the other.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codec/status.hpp"
#include "switcher/fence.hpp"

namespace zipccl::switcher {

// A record is found by who sent it and which chunk of which call it belongs to; streams and calls may interleave.
struct RecordKey {
  std::uint32_t sender = 0;  // rank
  std::uint64_t sequence = 0;
  std::uint32_t chunk = 0;
  auto operator<=>(const RecordKey&) const = default;  // NOLINT(modernize-use-nullptr): the generated code
};

using Bytes = std::shared_ptr<const std::vector<std::byte>>;

enum class Arrival : std::uint8_t {
  arrived,  // the record is here
  awaited,  // not yet
  lost      // the sender's process or channel is gone and the record did not arrive before
};

// Which calls of a communicator a fence (fence.hpp) is about; the same on all ranks.
struct FenceClass {
  std::uint32_t kind = 0;                               // what calls
  std::uint64_t detail = 0;                             // whose, where not all ranks take part
  auto operator<=>(const FenceClass&) const = default;  // NOLINT(modernize-use-nullptr): the generated code
};

// What fences hear from a peer, in the order in which it happened there.
struct FenceEvent {
  std::uint32_t sender = 0;  // rank
  bool lost = false;         // its process or channel is gone; no message, and nothing will follow
  FenceClass fence_class;
  FenceMessage message;
};

// One communicator's view. Thread-safe, never blocks, never throws.
class Channel {
 public:
  virtual ~Channel() = default;  // drops records not yet taken; what was sent is still flushed by the process

  // Queues the record, of up to 4 GiB, for rank `receiver` (not this rank); `key.sender` is this rank. connection_lost
  // if its process is gone: not an error by itself, since a peer that has ended awaits nothing.
  virtual Status send(std::uint32_t receiver, const RecordKey& key, Bytes record) = 0;
  // Looks for a record; keeps it.
  virtual Arrival find(const RecordKey& key, Bytes* record) = 0;
  // Forgets a record that has been used.
  virtual void drop(const RecordKey& key) = 0;

  // As send(), for a fence's message; they keep their order.
  virtual Status send_fence(std::uint32_t receiver, const FenceClass& fence_class, const FenceMessage& message) = 0;
  // Takes the next event; false if there is none. Pollers are woken for each.
  virtual bool next_fence_event(FenceEvent* event) = 0;

  // All sent records have reached the hosts of their receivers, or those are lost: this process may end.
  virtual bool flushed() const = 0;
  virtual std::uint64_t buffered_bytes() const = 0;  // held in this process for this communicator, both directions
};

// Work for the helper thread that no socket announces: looking at memory that a GPU writes.
class Poller {
 public:
  virtual ~Poller() = default;
  // Called on the helper thread. True: call again soon (within about 50 us; 200 us when nothing has waked for 20 ms);
  // false: not before Rendezvous::wake().
  virtual bool poll() = 0;
};

}  // namespace zipccl::switcher
