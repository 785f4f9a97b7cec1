// Exported functions: identity, life cycle and properties of communicators.
#include <sys/random.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "test/standin/call.hpp"

namespace standin {
namespace {

constexpr std::uint64_t id_magic = 0x6e6363732d696e31u;
constexpr std::size_t id_bytes = 36;  // the rest of a unique id is neither written (since 2.22: zero) nor read
constexpr bool clears_ids = STANDIN_DEFAULT_VERSION >= 22200;

Token token_of(const ncclUniqueId& id) {
  std::uint64_t magic = 0;
  std::memcpy(&magic, id.internal, sizeof(magic));
  if (magic != id_magic) throw Error(ncclInvalidArgument, "the unique id is not one of this library");
  Token token;
  std::memcpy(token.data(), id.internal + sizeof(magic), token.size());
  return token;
}

void make_id(ncclUniqueId* id) {
  Token token{};
  const char* agreed = std::getenv("NCCL_COMM_ID");
  if (agreed != nullptr && *agreed != '\0') {
    token = derive(token, agreed);
  } else if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    throw system_error("getrandom");
  }
  std::memset(id->internal, 0, clears_ids ? sizeof(id->internal) : id_bytes);
  std::memcpy(id->internal, &id_magic, sizeof(id_magic));
  std::memcpy(id->internal + sizeof(id_magic), token.data(), token.size());
}

CommunicatorPointer split(Communicator* parent, const Token& token, int color, int key) {
  const Meeting meeting = meet(token, parent->rank(), parent->rank_count(), {color, key}, false, parent->wake());
  if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
  std::vector<std::tuple<std::int64_t, int>> members;  // key and rank in the parent
  for (int rank = 0; rank < parent->rank_count(); ++rank) {
    const Card& card = meeting.cards[static_cast<std::size_t>(rank)];
    if (card[0] == color) members.emplace_back(card[1], rank);
  }
  std::sort(members.begin(), members.end());
  const auto own = std::find(members.begin(), members.end(), std::tuple(std::int64_t{key}, parent->rank()));
  return std::make_shared<Communicator>(derive(token, std::to_string(color)), static_cast<int>(own - members.begin()),
                                        static_cast<int>(members.size()), parent->device());
}

// Connects a communicator that already has its handle.
ncclResult_t create_listed(ncclComm_t* comm, const CommunicatorPointer& communicator) {
  return create({[communicator] { communicator->connect(); },
                 [comm] {
                   remove_handle(*comm);
                   *comm = nullptr;
                 }});
}

const char* result_text(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

}  // namespace

bool is_nonblocking(const ncclConfig_t* config) {
  if (config == nullptr) return false;
  constexpr std::size_t needed = offsetof(ncclConfig_t, blocking) + sizeof(config->blocking);
  if (config->size < needed || config->magic != NCCL_CONFIG_MAGIC) {
    throw Error(ncclInvalidArgument, "the configuration was not made by NCCL_CONFIG_INITIALIZER");
  }
  if (config->blocking != 0 && config->blocking != 1 && config->blocking != NCCL_CONFIG_UNDEF_INT) {
    throw Error(ncclInvalidArgument, "config.blocking is neither 0 nor 1");
  }
  return config->blocking == 0;
}

ncclResult_t create_rank(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  require_pointer(comm, "comm");
  *comm = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw Error(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  require_valid_faults();
  const bool nonblocking = is_nonblocking(config);
  auto communicator = std::make_shared<Communicator>(token_of(id), rank, ranks, -1);
  *comm = add_handle(communicator);
  if (nonblocking) return create_in_background([communicator] { communicator->connect_in_background(); });
  return create_listed(comm, communicator);
}

ncclResult_t create_child(ncclComm_t* child, std::function<CommunicatorPointer()> make) {
  return create({[child, make = std::move(make)] {
                   const CommunicatorPointer made = make();
                   if (made == nullptr) return;
                   made->connect();
                   *child = add_handle(made);
                 },
                 [child] {
                   remove_handle(*child);
                   *child = nullptr;
                 }});
}

}  // namespace standin

using standin::call;
using standin::call_on;
using standin::Communicator;
using standin::CommunicatorPointer;
using standin::Error;
using standin::note;
using standin::require_pointer;

STANDIN_EXPORT(ncclGetVersion);
ncclResult_t pncclGetVersion(int* version) {
  return call("ncclGetVersion", -1, nullptr, [&] {
    require_pointer(version, "version");
    *version = standin::reported_version();
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclGetErrorString);
const char* pncclGetErrorString(ncclResult_t result) { return standin::result_text(result); }

STANDIN_EXPORT(ncclGetLastError);
const char* pncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  try {
    text = comm == nullptr ? std::string() : standin::find_handle(comm)->error_text();
  } catch (const Error&) {
    text.clear();
  }
  return text.empty() ? standin::last_error() : text.c_str();
}

STANDIN_EXPORT(ncclMemAlloc);
ncclResult_t pncclMemAlloc(void** pointer, size_t size) {
  return call("ncclMemAlloc", -1, nullptr, [&] {
    require_pointer(pointer, "pointer");
    return static_cast<ncclResult_t>(zipccl_host_runtime.allocate(pointer, size));
  });
}

STANDIN_EXPORT(ncclMemFree);
ncclResult_t pncclMemFree(void* pointer) {
  return call("ncclMemFree", -1, nullptr,
              [&] { return static_cast<ncclResult_t>(zipccl_host_runtime.release(pointer)); });
}

STANDIN_EXPORT(ncclGetUniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId* id) {
  return call("ncclGetUniqueId", -1, nullptr, [&] {
    require_pointer(id, "id");
    standin::require_valid_faults();
    standin::make_id(id);
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommInitRank);
ncclResult_t pncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return note(
      call("ncclCommInitRank", rank, nullptr, [&] { return standin::create_rank(comm, ranks, id, rank, nullptr); }));
}

STANDIN_EXPORT(ncclCommInitRankConfig);
ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return note(call("ncclCommInitRankConfig", rank, nullptr,
                   [&] { return standin::create_rank(comm, ranks, id, rank, config); }));
}

STANDIN_EXPORT(ncclCommInitAll);
ncclResult_t pncclCommInitAll(ncclComm_t* comms, int device_count, const int* devices) {
  return note(call("ncclCommInitAll", -1, nullptr, [&] {
    require_pointer(comms, "comms");
    if (device_count < 1) throw Error(ncclInvalidArgument, "the number of devices is " + std::to_string(device_count));
    standin::require_valid_faults();
    std::set<int> used;
    for (int rank = 0; devices != nullptr && rank < device_count; ++rank) {
      if (devices[rank] < 0) throw Error(ncclInvalidArgument, "invalid device " + std::to_string(devices[rank]));
      if (!used.insert(devices[rank]).second) throw Error(ncclInvalidUsage, "a device is listed twice");
    }
    ncclUniqueId id;
    standin::make_id(&id);
    std::vector<CommunicatorPointer> made;
    for (int rank = 0; rank < device_count; ++rank) {
      const int device = devices == nullptr ? rank : devices[rank];
      made.push_back(std::make_shared<Communicator>(standin::token_of(id), rank, device_count, device));
    }
    return standin::in_inner_group([&] {
      for (int rank = 0; rank < device_count; ++rank) {
        const CommunicatorPointer& communicator = made[static_cast<std::size_t>(rank)];
        comms[rank] = standin::add_handle(communicator);
        standin::create_listed(&comms[rank], communicator);
      }
    });
  }));
}

STANDIN_EXPORT(ncclCommSplit);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  return note(call_on("ncclCommSplit", comm, [&](const CommunicatorPointer& parent) {
    require_pointer(child, "child");
    *child = nullptr;
    if (color < NCCL_SPLIT_NOCOLOR) throw Error(ncclInvalidArgument, "invalid color " + std::to_string(color));
    standin::is_nonblocking(config);
    parent->require_operational();
    // Counted here: several of a group are made at the same time.
    return standin::create_child(child, [parent, token = parent->child_token("split"), color, key] {
      return standin::split(parent.get(), token, color, key);
    });
  }));
}

STANDIN_EXPORT(ncclCommFinalize);
ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  return call_on("ncclCommFinalize", comm, [](const CommunicatorPointer& communicator) {
    communicator->require_operational();
    communicator->finalize();
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommDestroy);
ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return call_on("ncclCommDestroy", comm, [&](const CommunicatorPointer& communicator) {
    communicator->finalize();
    communicator->close();
    standin::remove_handle(comm);
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommAbort);
ncclResult_t pncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return call_on("ncclCommAbort", comm, [&](const CommunicatorPointer& communicator) {
    communicator->abort();
    communicator->close();
    standin::remove_handle(comm);
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommGetAsyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return call_on("ncclCommGetAsyncError", comm, [&](const CommunicatorPointer& communicator) {
    require_pointer(error, "error");
    *error = communicator->async_error();
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommCount);
ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
  return call_on("ncclCommCount", comm, [&](const CommunicatorPointer& communicator) {
    require_pointer(count, "count");
    communicator->require_ready();
    *count = communicator->rank_count();
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommCuDevice);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
  return call_on("ncclCommCuDevice", comm, [&](const CommunicatorPointer& communicator) {
    require_pointer(device, "device");
    communicator->require_ready();
    *device = communicator->device();
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommUserRank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
  return call_on("ncclCommUserRank", comm, [&](const CommunicatorPointer& communicator) {
    require_pointer(rank, "rank");
    communicator->require_ready();
    *rank = communicator->rank();
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommRegister);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buffer, size_t size, void** handle) {
  return call_on("ncclCommRegister", comm, [&](const CommunicatorPointer& communicator) {
    require_pointer(handle, "handle");
    require_pointer(buffer, "buffer");
    if (size == 0) throw Error(ncclInvalidArgument, "the buffer is empty");
    communicator->require_ready();
    *handle = communicator->add_registration();
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommDeregister);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle) {
  return call_on("ncclCommDeregister", comm, [&](const CommunicatorPointer& communicator) {
    communicator->remove_registration(handle);
    return ncclSuccess;
  });
}
