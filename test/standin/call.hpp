// How every exported function is made: a strong pncclX, the function itself, and a weak ncclX beside it, as in NCCL.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "test/standin/communicator.hpp"
#include "test/standin/error.hpp"
#include "test/standin/faults.hpp"
#include "test/standin/group.hpp"

// Stands before the definition of pncclX; the declaration of ncclX gives both their type.
#define STANDIN_EXPORT(name)                                                \
  extern "C" __attribute__((visibility("default"))) decltype(name) p##name; \
  extern "C" __attribute__((weak, alias("p" #name), visibility("default"))) decltype(name) name

namespace standin {

// Runs a call: an injected fault, else `body`, whose exceptions become results. `communicator` may be null.
template <typename Body>
ncclResult_t call(const char* name, int rank, Communicator* communicator, Body&& body) noexcept {
  try {
    const Injection injection = inject_fault(name, rank);
    if (injection.result != ncclSuccess) return injection.result;
    const ncclResult_t result = body();
    if (injection.asynchronous != ncclSuccess) {
      if (communicator == nullptr) throw Error(ncclSystemError, "STANDIN_FAULT: no communicator takes the async error");
      communicator->set_async_error(injection.asynchronous);
    }
    return result;
  } catch (const Error& error) {
    set_last_error(std::string(name) + ": " + error.what());
    return error.code();
  } catch (const std::exception& error) {
    set_last_error(std::string(name) + ": " + error.what());
    return ncclSystemError;
  }
}

// The same for a call on a communicator; `body` takes a CommunicatorPointer.
template <typename Body>
ncclResult_t call_on(const char* name, ncclComm_t handle, Body&& body) noexcept {
  CommunicatorPointer communicator;
  try {
    communicator = find_handle(handle);
  } catch (const Error& error) {
    set_last_error(std::string(name) + ": " + error.what());
    return error.code();
  }
  return call(name, communicator->rank(), communicator.get(), [&] { return body(communicator); });
}

template <typename Pointer>
void require_pointer(Pointer pointer, const char* name) {
  if (pointer == nullptr) throw Error(ncclInvalidArgument, std::string(name) + " is null");
}

// The creation of ncclCommInitRank and its successors.
ncclResult_t create_rank(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config);

// The creation of ncclCommSplit and ncclCommShrink. `make` may return null: the rank gets no child.
ncclResult_t create_child(ncclComm_t* child, std::function<CommunicatorPointer()> make);

// Checks and submits a send or a receive.
void submit_point_to_point(Kind kind, const CommunicatorPointer& communicator, void* buffer, std::size_t count,
                           ncclDataType_t type, int peer, cudaStream_t stream);

// Throws Error(ncclInvalidArgument) unless null or properly initialised; true if it asks for a nonblocking
// communicator.
bool is_nonblocking(const ncclConfig_t* config);

// Runs `body`, several operations or creations that one call stands for, as a group. Before 2.26 NCCL used its own
// exported functions for that, so that an interposer sees them.
inline constexpr bool groups_are_public = STANDIN_DEFAULT_VERSION < 22600;

template <typename Body>
ncclResult_t in_inner_group(Body&& body) {
  const auto end = [] { return groups_are_public ? ncclGroupEnd() : group_end(false); };
  if (groups_are_public) {
    ncclGroupStart();
  } else {
    group_start();
  }
  try {
    body();
  } catch (const Error& error) {
    note(error.code());
    end();
    throw;
  }
  return end();
}

}  // namespace standin
