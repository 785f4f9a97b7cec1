#include "interpose/lifecycle.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "interpose/child_creation.hpp"
#include "interpose/copy_engines.hpp"
#include "interpose/creation.hpp"
#include "interpose/devices.hpp"
#include "interpose/group.hpp"
#include "interpose/log.hpp"
#include "interpose/process.hpp"
#include "interpose/real_nccl.hpp"
#include "interpose/report.hpp"
#include "interpose/staging_pool.hpp"

namespace zipccl::interpose::lifecycle {

namespace {

// A user's configuration for a call that may come later. Only `size` bytes of it exist; a size that no NCCL knows is
// left for NCCL to refuse.
class ConfigCopy {
 public:
  explicit ConfigCopy(ncclConfig_t* config) : original_(config) {
    constexpr std::size_t largest = 4096;
    if (config != nullptr && Group::recording() && config->size <= largest) {
      words_.resize(config->size / sizeof(std::uint64_t) + 1);
      std::memcpy(words_.data(), config, config->size);
    }
  }
  ncclConfig_t* get() { return words_.empty() ? original_ : reinterpret_cast<ncclConfig_t*>(words_.data()); }

 private:
  ncclConfig_t* original_;
  std::vector<std::uint64_t> words_;  // keeps the alignment
};

// Calls the real NCCL now, or at the end of a recording group.
template <typename Call>
ncclResult_t issue(Call call) {
  if (Group::recording()) {
    return Group::add(
        NativeCall{[call = std::move(call)](const NcclTable& nccl, cudaStream_t) mutable { return call(nccl); }});
  }
  const RealCall scope;
  return call(RealNccl::get().table());
}

// As issue(); `after(result)`, whose result counts, runs when the communicators of the call are ready.
template <typename Call, typename After>
ncclResult_t issue(Call call, After after) {
  const ncclResult_t result = issue(std::move(call));
  if (Group::open()) {
    Group::at_end(std::move(after));
    return result;
  }
  return after(result);
}

constexpr auto look_interval = std::chrono::microseconds(50);
constexpr auto shipping_patience = std::chrono::seconds(1);  // for peers that do not take what they wait for

Status port_fault(const CommState& state) {
  const OverflowLink* overflow = state.overflow();
  return overflow != nullptr ? overflow->port().status() : Status::ok;
}

// Once for a communicator.
void log_fault(CommState& state, Status status) {
  if (state.statistics.note_error(status)) {
    log::write(LogLevel::error,
               "communicator %s, rank %d: a compressed call failed: %s (NCCL result %d); its output is undefined",
               state.name.c_str(), state.communicator.rank, describe(status),
               static_cast<int>(collectives::nccl_result(status)));
  }
}

bool nccl_lost(const CommState& state) {
  const RealCall scope;
  return !nccl_state(state.communicator).ok();
}

// A decode behind a lost operation finds in its place what was there before, and would wait for that one's overflow for
// ever. It goes on when what this process has encoded has left for the peers.
void release_decodes(CommState& state, collectives::OverflowPort& port) {
  const auto limit = std::chrono::steady_clock::now() + shipping_patience;
  while (!port.flushed() && !state.communicator.aborted.load() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(look_interval);
  }
  port.release();
}

// What the communicator's kernels still wait for must come from this process's and the peers' helper threads, and what
// peers still wait for must have left this process, before anything is taken apart. Asks the device and not the port
// whether all is done, and NCCL: what a failed call has left out, or a lost device or peer, never finishes. An abort by
// another thread ends the wait.
void flush(const CommPointer& state) {
  OverflowLink* const overflow = state != nullptr ? state->overflow() : nullptr;
  if (overflow == nullptr) {
    return;
  }
  ++state->callers;
  bool idle = false;
  bool lost = false;
  const auto ended = [&] {
    return state->communicator.chain->idle(&idle) != Status::ok || (idle && overflow->port().flushed());
  };
  while (!ended() && port_fault(*state) == Status::ok && !state->communicator.aborted.load() && !lost) {
    std::this_thread::sleep_for(look_interval);
    lost = nccl_lost(*state);
  }
  const Status fault = port_fault(*state);
  lost = lost || (fault != Status::ok && nccl_lost(*state));
  if (lost) {
    release_decodes(*state, overflow->port());
  }
  if (fault == Status::ok || state->communicator.aborted.load()) {
    if (idle) {
      unregister_staging(*state);
    }
  } else if (!lost) {
    log_fault(*state, fault);  // the caller may not ask any more
  }
  --state->callers;
}

// Peers may still wait for what this process's last calls could not put into a pool. A process that ends without
// Destroy has waited for its own output only; one that ends with Abort, too. And this process may be the root of
// children that others create, without being a member of them.
void flush_at_exit() {
  if (in_forked_child()) {
    return;
  }
  constexpr auto patience = std::chrono::seconds(10);  // for a peer's host that does not answer
  const auto limit = std::chrono::steady_clock::now() + patience;
  std::vector<CommPointer> states = CommTable::instance().all();
  std::ranges::move(StagingPool::instance().retired(), std::back_inserter(states));
  for (const CommPointer& state : states) {
    const OverflowLink* overflow = state->overflow();
    while (overflow != nullptr && !overflow->port().flushed() && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(look_interval);
    }
  }
  while (awaited_by_others() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(look_interval);
  }
}

void watch_exit() {
  static std::once_flag once;
  std::call_once(once, [] { std::atexit(flush_at_exit); });
}

template <typename RealInit>
ncclResult_t init(ncclComm_t* comm, const std::shared_ptr<Creation>& creation, RealInit real_init) {
  if (const ncclResult_t result = creation->begin(); result != ncclSuccess) {
    if (Group::recording()) {
      Group::poison(result);
    }
    return result;
  }
  // NCCL takes the device that is current at the call; a recorded call comes later.
  const int ordinal = Group::recording() ? current_ordinal() : -1;
  return issue(
      [=](const NcclTable& nccl) mutable {
        const OrdinalScope device(ordinal);
        return real_init(nccl);
      },
      [=](ncclResult_t result) {
        const ncclResult_t finished = creation->finish(comm, result);
        if (CommTable::instance().any_compressed()) {
          watch_exit();
        }
        return finished;
      });
}

// A thread that waits for a compressed collective asks NCCL about this communicator now and then. It sees the flag
// within microseconds; one that is inside the real NCCL may need the abort to come out, hence the limit.
void release_waiters(CommState& state) {
  const auto release = [&] {
    if (OverflowLink* overflow = state.overflow()) {
      overflow->port().release();
    }
  };
  release();
  state.communicator.aborted.store(true);
  release();  // one that was opened meanwhile
  if (state.classes != nullptr) {
    state.classes->abort();
  }
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (state.callers.load() > 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// Ends a communicator with a real call, and what zipccl holds of it when that has happened: in a group NCCL does it at
// the end. The communicator leaves the table between `before` and the real call; if another thread has ended it first,
// NCCL's handle is gone and there is nothing left to do. `after` runs at last, with the state unless there was none.
template <typename Before, typename RealEnd, typename After>
ncclResult_t end_life(ncclComm_t comm, Before before, RealEnd real_end, After after) {
  const std::weak_ptr<CommState> known = CommTable::instance().find(comm);  // after() asks who holds the state
  const bool unknown = known.expired();
  const auto removed = std::make_shared<CommPointer>();
  return issue(
      [=](const NcclTable& nccl) {
        if (!unknown) {
          // From the table: what has left it may be taken apart meanwhile by another thread's reclaim().
          const CommPointer state = CommTable::instance().find(comm);
          if (state != nullptr && !known.owner_before(state) && !state.owner_before(known)) {
            before(state);
            *removed = CommTable::instance().remove(comm, state.get());
          }
          if (*removed == nullptr) {
            return ncclSuccess;
          }
        }
        return real_end(nccl, *removed);
      },
      [=](ncclResult_t result) {
        if (*removed != nullptr) {
          after(std::move(*removed));
        }
        return result;
      });
}

}  // namespace

ncclResult_t get_unique_id(ncclUniqueId* id) {
  if (id != nullptr) {
    std::memset(id->internal + switcher::stamp_offset, 0, switcher::unique_id_bytes - switcher::stamp_offset);
  }
  const ncclResult_t result = call_real<&NcclTable::ncclGetUniqueId>(id);
  if (result == ncclSuccess) {
    announce_configuration();
    stamp(id);
  }
  return result;
}

ncclResult_t init_rank(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank) {
  return init(comm, std::make_shared<Creation>(id, ranks, rank, nullptr),
              [=](const NcclTable& nccl) { return nccl.ncclCommInitRank(comm, ranks, id, rank); });
}

ncclResult_t init_rank_config(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank, ncclConfig_t* config) {
  return init(comm, std::make_shared<Creation>(id, ranks, rank, config),
              [=, copy = ConfigCopy(config)](const NcclTable& nccl) mutable {
                return nccl.ncclCommInitRankConfig(comm, ranks, id, rank, copy.get());
              });
}

ncclResult_t init_rank_scalable(ncclComm_t* comm, int ranks, int rank, int id_count, ncclUniqueId* ids,
                                ncclConfig_t* config) {
  std::vector<ncclUniqueId> all_ids(ids, ids + (ids != nullptr && id_count > 0 ? id_count : 0));
  if (all_ids.empty()) {
    return issue(
        [=](const NcclTable& nccl) { return nccl.ncclCommInitRankScalable(comm, ranks, rank, id_count, ids, config); });
  }
  return init(comm, std::make_shared<Creation>(all_ids.front(), ranks, rank, config),
              [=, copy = ConfigCopy(config)](const NcclTable& nccl) mutable {
                return nccl.ncclCommInitRankScalable(comm, ranks, rank, id_count, all_ids.data(), copy.get());
              });
}

ncclResult_t init_all(ncclComm_t* comms, int device_count, const int* devices) {
  announce_configuration();
  std::vector<int> list(devices, devices + (devices != nullptr && device_count > 0 ? device_count : 0));
  return issue(
      [=](const NcclTable& nccl) {
        return nccl.ncclCommInitAll(comms, device_count, devices != nullptr ? list.data() : nullptr);
      },
      [=](ncclResult_t result) {
        for (int i = 0; result == ncclSuccess && i < device_count; ++i) {
          enter_native(comms[i], "local", "ncclCommInitAll made it, for one process with several devices");
        }
        return result;
      });
}

ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  return init(child, ChildCreation::of_split(CommTable::instance().find(comm), color, key, config),
              [=, copy = ConfigCopy(config)](const NcclTable& nccl) mutable {
                return nccl.ncclCommSplit(comm, color, key, child, copy.get());
              });
}

ncclResult_t shrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child, ncclConfig_t* config,
                    int flags) {
  std::vector<int> list(excluded, excluded + (excluded != nullptr && excluded_count > 0 ? excluded_count : 0));
  const CommPointer parent = CommTable::instance().find(comm);
  if (parent != nullptr && (flags & NCCL_SHRINK_ABORT) != 0) {
    release_waiters(*parent);  // what runs on it is aborted
  }
  return init(child, ChildCreation::of_shrink(parent, list, config),
              [=, copy = ConfigCopy(config)](const NcclTable& nccl) mutable {
                return nccl.ncclCommShrink(comm, list.data(), excluded_count, child, copy.get(), flags);
              });
}

// An abort by another thread ends the wait and takes NCCL's handle along; there is then nothing left to do.
ncclResult_t finalize(ncclComm_t comm) {
  return issue([=](const NcclTable& nccl) {
    const CommPointer state = CommTable::instance().find(comm);
    flush(state);
    return CommTable::instance().find(comm) == state ? nccl.ncclCommFinalize(comm) : ncclSuccess;
  });
}

ncclResult_t destroy(ncclComm_t comm) {
  return end_life(
      comm, flush, [=](const NcclTable& nccl, const CommPointer&) { return nccl.ncclCommDestroy(comm); },
      [](CommPointer own) {
        report::closed(*own, "destroyed");
        StagingPool::instance().retire(std::move(own));
        StagingPool::instance().reclaim();
      });
}

// Frees no memory: CUDA would wait for all work of the device, which may be that of a communicator whose abort comes
// next in this thread.
ncclResult_t abort(ncclComm_t comm) {
  const auto after = [](CommPointer state) {
    report::closed(*state, "aborted");
    StagingPool::instance().retire(std::move(state));
  };
  // Out of the table before anybody is released: a Destroy or Finalize that waits in another thread then finds that
  // there is nothing left to do, also where NCCL's abort comes at a group's end.
  if (const CommPointer state = Group::recording() ? CommTable::instance().remove(comm) : nullptr) {
    release_waiters(*state);
    return issue([=](const NcclTable& nccl) { return nccl.ncclCommAbort(comm); },
                 [=](ncclResult_t result) {
                   after(state);
                   return result;
                 });
  }
  return end_life(
      comm, [](const CommPointer&) {},
      [=](const NcclTable& nccl, const CommPointer& state) {
        if (state != nullptr) {
          release_waiters(*state);
        }
        return nccl.ncclCommAbort(comm);
      },
      after);
}

ncclResult_t revoke(ncclComm_t comm, int flags) {
  if (const CommPointer state = CommTable::instance().find(comm)) {
    release_waiters(*state);
  }
  return issue([=](const NcclTable& nccl) { return nccl.ncclCommRevoke(comm, flags); });
}

// A fault that kernels have found shows here, as NCCL's own asynchronous errors do.
ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t* error) {
  const ncclResult_t result = call_real<&NcclTable::ncclCommGetAsyncError>(comm, error);
  if (result != ncclSuccess || error == nullptr || *error != ncclSuccess) {
    return result;
  }
  const CommPointer state = CommTable::instance().find(comm);
  if (const Status status = state != nullptr ? port_fault(*state) : Status::ok; status != Status::ok) {
    *error = collectives::nccl_result(status);
    log_fault(*state, status);
  }
  return result;
}

// At once also inside a group: the caller needs the handle.
ncclResult_t register_buffer(ncclComm_t comm, void* buffer, std::size_t size, void** handle) {
  const ncclResult_t result = call_real<&NcclTable::ncclCommRegister>(comm, buffer, size, handle);
  if (const CommPointer state = result == ncclSuccess ? CommTable::instance().find(comm) : nullptr) {
    state->registered.add(*handle, buffer, size);
  }
  return result;
}

ncclResult_t deregister_buffer(ncclComm_t comm, void* handle) {
  return issue([=](const NcclTable& nccl) {
    const ncclResult_t result = nccl.ncclCommDeregister(comm, handle);
    if (const CommPointer state = result == ncclSuccess ? CommTable::instance().find(comm) : nullptr) {
      state->registered.remove(handle);
    }
    return result;
  });
}

ncclResult_t register_window(ncclComm_t comm, void* buffer, std::size_t size, ncclWindow_t* window, int flags) {
  return issue([=](const NcclTable& nccl) { return nccl.ncclCommWindowRegister(comm, buffer, size, window, flags); },
               [=](ncclResult_t result) {
                 if (const CommPointer state = result == ncclSuccess ? CommTable::instance().find(comm) : nullptr) {
                   state->registered.add(*window, buffer, size);
                 }
                 return result;
               });
}

ncclResult_t deregister_window(ncclComm_t comm, ncclWindow_t window) {
  return issue([=](const NcclTable& nccl) {
    const ncclResult_t result = nccl.ncclCommWindowDeregister(comm, window);
    if (const CommPointer state = result == ncclSuccess ? CommTable::instance().find(comm) : nullptr) {
      state->registered.remove(window);
    }
    return result;
  });
}

}  // namespace zipccl::interpose::lifecycle
