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

// One communicator and rank. Complete before it enters the table; afterwards only what is thread-safe changes.
struct CommState {
  collectives::Communicator communicator;  // handle, device and staging only if `compressed`
  collectives::Statistics statistics;
  RegisteredRanges registered;
  bool compressed = false;
  std::string name;              // the same on all ranks: a hash of the unique id, with "/..." for children
  std::string reason;            // why it is not compressed
  std::uint64_t number = 0;      // in order of creation in this process
  std::atomic<int> callers = 0;  // threads that wait inside a compressed collective or before the real Destroy
  // Of a nonblocking communicator: nobody asks for its verdict, but until all ranks have said hello it must stay open.
  std::unique_ptr<switcher::Session> session;
  Offspring offspring;
  std::unique_ptr<switcher::Channel> channel;  // to the other ranks' processes, where `overflow` does not have it
  std::unique_ptr<OverflowLink> overflow;      // exchange mode static

  bool active() const { return compressed && !communicator.aborted.load(std::memory_order_relaxed); }
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
