// The functions that zipccl puts in front of NCCL's, and nothing else: libzipccl.map lists them. What is not here, NCCL
// answers directly.

#include <exception>
#include <new>
#include <type_traits>

#include "interpose/all_gather_call.hpp"
#include "interpose/compressed_calls.hpp"
#include "interpose/config.hpp"
#include "interpose/group.hpp"
#include "interpose/lifecycle.hpp"
#include "interpose/log.hpp"
#include "interpose/process.hpp"
#include "interpose/real_nccl.hpp"
#include "interpose/transfer_call.hpp"

#define ZIPCCL_EXPORT extern "C" __attribute__((visibility("default")))
#define ZIPCCL_CALLER __builtin_return_address(0)  // of the exported function: this must not move into a callee

namespace {

using namespace zipccl::interpose;

// Whether a call is none of zipccl's business: NCCL's own, a forked child's, or zipccl is off.
bool bypass(const RealNccl& real, const void* caller) {
  return RealCall::active() || !configuration().settings.enabled || in_forked_child() || !real.usable() ||
         real.contains(caller);
}

// No exception crosses the C boundary. Only standard ones are caught: a thread's cancellation must go through.
template <typename Body>
ncclResult_t guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    log::write(LogLevel::error, "out of host memory");
  } catch (const std::exception& error) {
    log::write(LogLevel::error, "internal error: %s", error.what());
  }
  if (Group::recording()) {
    Group::poison(ncclSystemError);
  }
  return ncclSystemError;
}

// zipccl's version of `function`, or the real one where zipccl has no business.
template <auto function, typename Own, typename... Arguments>
ncclResult_t intercept(const void* caller, Own own, Arguments... arguments) {
  return guarded([&] {
    const RealNccl& real = RealNccl::get(caller);
    if (bypass(real, caller)) {
      return call_real<function>(arguments...);
    }
    return own(arguments...);
  });
}

// The first argument of a type, if there is one.
template <typename T, typename... Arguments>
T among(Arguments... arguments) {
  T found{};
  const auto look = [&](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), T>) {
      found = argument;
    }
  };
  (look(arguments), ...);
  return found;
}

// The argument, or in a stream's place that stream.
template <typename T>
T on(cudaStream_t stream, T argument) {
  if constexpr (std::is_same_v<T, cudaStream_t>) {
    return stream;
  } else {
    return argument;
  }
}

// A function that zipccl leaves to NCCL, at the end of a group that is being recorded and at once otherwise.
template <auto function, typename... Arguments>
ncclResult_t forward(const void* caller, Arguments... arguments) {
  return guarded([&] {
    const RealNccl& real = RealNccl::get(caller);
    if (!Group::recording() || bypass(real, caller)) {
      return call_real<function>(arguments...);
    }
    if (!real.has(function)) {
      const ncclResult_t result = call_real<function>(arguments...);
      Group::poison(result);
      return result;
    }
    const bool works = (std::is_same_v<Arguments, cudaStream_t> || ...) && among<std::size_t>(arguments...) > 0;
    return Group::add(NativeCall{
        [=](const NcclTable& nccl, cudaStream_t stream) { return (nccl.*function)(on(stream, arguments)...); },
        works ? among<ncclComm_t>(arguments...) : nullptr, among<cudaStream_t>(arguments...)});
  });
}

// Works on every NCCL, also where zipccl has no business otherwise: a job may have been built for one that has it.
ncclResult_t intercept_all_to_all(const void* caller, const void* send, void* receive, std::size_t count,
                                  ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    const RealNccl& real = RealNccl::get(caller);
    if (!bypass(real, caller)) {
      return all_to_all(send, receive, count, dtype, comm, stream);
    }
    const RealCall scope;
    return all_to_all_natively(real.table(), send, receive, count, dtype, comm, stream);
  });
}

}  // namespace

ZIPCCL_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return intercept<&NcclTable::ncclGetUniqueId>(ZIPCCL_CALLER, lifecycle::get_unique_id, id);
}

ZIPCCL_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return intercept<&NcclTable::ncclCommInitRank>(ZIPCCL_CALLER, lifecycle::init_rank, comm, ranks, id, rank);
}

ZIPCCL_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                                  ncclConfig_t* config) {
  return intercept<&NcclTable::ncclCommInitRankConfig>(ZIPCCL_CALLER, lifecycle::init_rank_config, comm, ranks, id,
                                                       rank, config);
}

ZIPCCL_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int id_count,
                                                    ncclUniqueId* ids, ncclConfig_t* config) {
  return intercept<&NcclTable::ncclCommInitRankScalable>(ZIPCCL_CALLER, lifecycle::init_rank_scalable, comm, ranks,
                                                         rank, id_count, ids, config);
}

ZIPCCL_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t* comms, int device_count, const int* devices) {
  return intercept<&NcclTable::ncclCommInitAll>(ZIPCCL_CALLER, lifecycle::init_all, comms, device_count, devices);
}

ZIPCCL_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  return intercept<&NcclTable::ncclCommSplit>(ZIPCCL_CALLER, lifecycle::split, comm, color, key, child, config);
}

ZIPCCL_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child,
                                          ncclConfig_t* config, int flags) {
  return intercept<&NcclTable::ncclCommShrink>(ZIPCCL_CALLER, lifecycle::shrink, comm, excluded, excluded_count, child,
                                               config, flags);
}

ZIPCCL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return intercept<&NcclTable::ncclCommFinalize>(ZIPCCL_CALLER, lifecycle::finalize, comm);
}

ZIPCCL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return intercept<&NcclTable::ncclCommDestroy>(ZIPCCL_CALLER, lifecycle::destroy, comm);
}

ZIPCCL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return intercept<&NcclTable::ncclCommAbort>(ZIPCCL_CALLER, lifecycle::abort, comm);
}

ZIPCCL_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  return intercept<&NcclTable::ncclCommRevoke>(ZIPCCL_CALLER, lifecycle::revoke, comm, flags);
}

ZIPCCL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return intercept<&NcclTable::ncclCommGetAsyncError>(ZIPCCL_CALLER, lifecycle::get_async_error, comm, error);
}

ZIPCCL_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t size, void** handle) {
  return intercept<&NcclTable::ncclCommRegister>(ZIPCCL_CALLER, lifecycle::register_buffer, comm, buffer, size, handle);
}

ZIPCCL_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return intercept<&NcclTable::ncclCommDeregister>(ZIPCCL_CALLER, lifecycle::deregister_buffer, comm, handle);
}

ZIPCCL_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size, ncclWindow_t* window,
                                                  int flags) {
  return intercept<&NcclTable::ncclCommWindowRegister>(ZIPCCL_CALLER, lifecycle::register_window, comm, buffer, size,
                                                       window, flags);
}

ZIPCCL_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return intercept<&NcclTable::ncclCommWindowDeregister>(ZIPCCL_CALLER, lifecycle::deregister_window, comm, window);
}

// Deferred with the calls that use the operator: NCCL uses a destroyed operator's handle again.
ZIPCCL_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return forward<&NcclTable::ncclRedOpDestroy>(ZIPCCL_CALLER, op, comm);
}

ZIPCCL_EXPORT ncclResult_t ncclGroupStart() {
  return intercept<&NcclTable::ncclGroupStart>(
      ZIPCCL_CALLER, [] { return Group::start(RealNccl::get().table(), CommTable::instance().any_compressed()); });
}

ZIPCCL_EXPORT ncclResult_t ncclGroupEnd() {
  return intercept<&NcclTable::ncclGroupEnd>(ZIPCCL_CALLER,
                                             [] { return Group::end(RealNccl::get().table(), eligible_calls()); });
}

ZIPCCL_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  return intercept<&NcclTable::ncclGroupSimulateEnd>(
      ZIPCCL_CALLER,
      [](ncclSimInfo_t* own) { return Group::simulate_end(RealNccl::get().table(), eligible_calls(), own); }, info);
}

ZIPCCL_EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                                         ncclComm_t comm, cudaStream_t stream) {
  return intercept<&NcclTable::ncclAllGather>(ZIPCCL_CALLER, all_gather, send, receive, count, dtype, comm, stream);
}

ZIPCCL_EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                                         ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return forward<&NcclTable::ncclAllReduce>(ZIPCCL_CALLER, send, receive, count, dtype, op, comm, stream);
}

ZIPCCL_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                                             ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return forward<&NcclTable::ncclReduceScatter>(ZIPCCL_CALLER, send, receive, count, dtype, op, comm, stream);
}

ZIPCCL_EXPORT ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                                      ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return forward<&NcclTable::ncclReduce>(ZIPCCL_CALLER, send, receive, count, dtype, op, root, comm, stream);
}

ZIPCCL_EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root,
                                         ncclComm_t comm, cudaStream_t stream) {
  return forward<&NcclTable::ncclBroadcast>(ZIPCCL_CALLER, send, receive, count, dtype, root, comm, stream);
}

ZIPCCL_EXPORT ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                                     cudaStream_t stream) {
  return forward<&NcclTable::ncclBcast>(ZIPCCL_CALLER, buffer, count, dtype, root, comm, stream);
}

ZIPCCL_EXPORT ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                                        ncclComm_t comm, cudaStream_t stream) {
  return intercept_all_to_all(ZIPCCL_CALLER, send, receive, count, dtype, comm, stream);
}

// The spelling of libraries that follow RCCL; NCCL has only the other.
ZIPCCL_EXPORT ncclResult_t ncclAllToAll(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                                        ncclComm_t comm, cudaStream_t stream) {
  return intercept_all_to_all(ZIPCCL_CALLER, send, receive, count, dtype, comm, stream);
}

ZIPCCL_EXPORT ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root,
                                      ncclComm_t comm, cudaStream_t stream) {
  return forward<&NcclTable::ncclGather>(ZIPCCL_CALLER, send, receive, count, dtype, root, comm, stream);
}

ZIPCCL_EXPORT ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root,
                                       ncclComm_t comm, cudaStream_t stream) {
  return forward<&NcclTable::ncclScatter>(ZIPCCL_CALLER, send, receive, count, dtype, root, comm, stream);
}

ZIPCCL_EXPORT ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                                    cudaStream_t stream) {
  return intercept<&NcclTable::ncclSend>(ZIPCCL_CALLER, zipccl::interpose::send, send, count, dtype, peer, comm,
                                         stream);
}

ZIPCCL_EXPORT ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                                    cudaStream_t stream) {
  return intercept<&NcclTable::ncclRecv>(ZIPCCL_CALLER, zipccl::interpose::receive, receive, count, dtype, peer, comm,
                                         stream);
}
