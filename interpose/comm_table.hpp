// What zipccl knows of the process's communicators, in a table beside NCCL's own handles.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/communicator.hpp"
#include "interpose/classes.hpp"
#include "interpose/offspring.hpp"
#include "interpose/overflow_link.hpp"
#include "switcher/session.hpp"

namespace zipccl::interpose {

// Memory that the user has registered with one communicator. Thread-safe.
class RegisteredRanges {
 public:
  // `handle` is what the registration returned.
  void add(const void* handle, const void* begin, std::size_t size);
  void remove(const void* handle);
  bool overlaps(const void* begin, std::size_t size) const;  // without a lock while nothing is registered

 private:
  struct Range {
    const void* handle;
    std::uintptr_t begin;
    std::uintptr_t end;
  };
  std::atomic<std::size_t> count_ = 0;
  mutable std::mutex mutex_;
  std::vector<Range> ranges_;
};

// One communicator and rank. Complete before it enters the table; afterwards only what is thread-safe changes, and what
// the thread that makes the communicator's calls has for itself: `communicator` but for its atomics.
struct CommState {
  collectives::Communicator communicator;  // handle and device only if `compressed`
  collectives::Statistics statistics;
  RegisteredRanges registered;
  bool compressed = false;       // the ranks have agreed: its calls may be compressed
  std::string name;              // the same on all ranks: a hash of the unique id, with "/..." for children
  std::string reason;            // why it is not compressed
  std::uint64_t number = 0;      // in order of creation in this process
  std::atomic<int> callers = 0;  // threads that wait inside a compressed collective or before the real Destroy
  // Of a nonblocking communicator: nobody asks for its verdict, but until all ranks have said hello it must stay open.
  std::unique_ptr<switcher::Session> session;
  Offspring offspring;
  ncclWindow_t window = nullptr;  // of the staging, which copy engines then move (copy_engines.hpp)
  // Between the ranks of a communicator that is `compressed`.
  std::unique_ptr<switcher::Channel> channel;
  std::unique_ptr<Classes> classes;

  // From open_exchange() on; else null. From any thread.
  OverflowLink* overflow() const { return overflow_.load(std::memory_order_acquire); }
  // What all compressed calls share: the communicator's chain and port, unless they exist. out_of_memory, device_error.
  Status reserve_exchange();
  // The same, and the port's link with the other ranks, which have been connected. By the calling thread; also the
  // errors of Rendezvous::add.
  Status open_exchange(switcher::Rendezvous& rendezvous);
  // What compressed calls have cost so far, and how many chunks there are, finished or not.
  Usage usage() const;
  std::uint64_t enqueued_chunks() const;
  collectives::OverflowPort::Sent sent_to(std::uint32_t peer) const;  // what messages to it lacked room for
  void close_exchange();  // frees them and staging for transfers; nobody else uses the state any more
  // As CallChain::idle(), with all else that runs on the device. When no thread makes calls.
  Status idle(bool* done);

  bool active() const { return compressed && !communicator.aborted.load(std::memory_order_relaxed); }

 private:
  std::unique_ptr<OverflowLink> own_overflow_;  // destroyed before channel and port
  std::atomic<OverflowLink*> overflow_ = nullptr;
};
using CommPointer = std::shared_ptr<CommState>;

class CommTable {
 public:
  // Returns what was there under the same handle: NCCL uses addresses again.
  CommPointer insert(ncclComm_t handle, CommPointer state);
  CommPointer find(ncclComm_t handle) const;
  // Null if there is none, or not `expected`.
  CommPointer remove(ncclComm_t handle, const CommState* expected = nullptr);
  std::vector<CommPointer> all() const;  // in order of creation
  bool any_compressed() const { return compressed_.load(std::memory_order_acquire) > 0; }

  // The process's own; never destroyed.
  static CommTable& instance();

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<ncclComm_t, CommPointer> states_;
  std::atomic<std::size_t> compressed_ = 0;
};

}  // namespace zipccl::interpose
