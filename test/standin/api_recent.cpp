// Exported functions that came after NCCL 2.21: the old library is built without this file.
#include <algorithm>
#include <set>
#include <string>

#include "test/standin/call.hpp"

namespace standin {
namespace {

// A call that NCCL, too, makes of sends and receives.
struct Exchange {
  CommunicatorPointer communicator;
  std::size_t count;  // values of one rank
  ncclDataType_t type;
  cudaStream_t stream;

  void send(const void* buffer, int part, int peer) const {
    submit_point_to_point(Kind::send, communicator, place(buffer, part), count, type, peer, stream);
  }
  void receive(void* buffer, int part, int peer) const {
    submit_point_to_point(Kind::receive, communicator, place(buffer, part), count, type, peer, stream);
  }

 private:
  void* place(const void* buffer, int part) const {
    const std::size_t offset = static_cast<std::size_t>(part) * count * type_bytes(type);
    return const_cast<std::byte*>(static_cast<const std::byte*>(buffer) + offset);
  }
};

Exchange exchange_of(const CommunicatorPointer& communicator, std::size_t count, ncclDataType_t type,
                     bool buffers_given, cudaStream_t stream) {
  communicator->require_operational();
  type_bytes(type);
  if (count > 0 && !buffers_given) throw Error(ncclInvalidArgument, "a buffer is null");
  return {communicator, count, type, stream};
}

void require_root(const Communicator& communicator, int root) {
  if (root < 0 || root >= communicator.rank_count()) {
    throw Error(ncclInvalidArgument, "root " + std::to_string(root) + " is not a rank of the communicator");
  }
}

CommunicatorPointer shrink(Communicator* parent, const std::set<int>& excluded) {
  std::string purpose = "shrink without";
  for (const int rank : excluded) purpose.append(1, ' ').append(std::to_string(rank));
  const auto lower = static_cast<int>(
      std::count_if(excluded.begin(), excluded.end(), [parent](int rank) { return rank < parent->rank(); }));
  const int left = parent->rank_count() - static_cast<int>(excluded.size());
  return std::make_shared<Communicator>(parent->child_token(purpose), parent->rank() - lower, left, parent->device());
}

}  // namespace
}  // namespace standin

using standin::call;
using standin::call_on;
using standin::Communicator;
using standin::CommunicatorPointer;
using standin::Error;
using standin::note;
using standin::require_pointer;

STANDIN_EXPORT(ncclCommInitRankScalable);
ncclResult_t pncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int id_count, ncclUniqueId* ids,
                                       ncclConfig_t* config) {
  return note(call("ncclCommInitRankScalable", rank, nullptr, [&] {
    require_pointer(ids, "ids");
    if (id_count < 1 || id_count > ranks) throw Error(ncclInvalidArgument, "the number of ids is out of range");
    return standin::create_rank(comm, ranks, ids[0], rank, config);
  }));
}

STANDIN_EXPORT(ncclCommShrink);
ncclResult_t pncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child,
                             ncclConfig_t* config, int flags) {
  return note(call_on("ncclCommShrink", comm, [&](const CommunicatorPointer& parent) {
    require_pointer(child, "child");
    *child = nullptr;
    require_pointer(excluded, "the list of excluded ranks");
    if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT) throw Error(ncclInvalidArgument, "invalid flags");
    standin::is_nonblocking(config);
    std::set<int> ranks;
    for (int index = 0; index < excluded_count; ++index) {
      const int rank = excluded[index];
      if (rank < 0 || rank >= parent->rank_count() || !ranks.insert(rank).second) {
        throw Error(ncclInvalidArgument,
                    "the excluded rank " + std::to_string(rank) + " does not exist or is listed twice");
      }
    }
    if (ranks.empty()) throw Error(ncclInvalidArgument, "no rank is excluded");
    if (ranks.count(parent->rank()) != 0) throw Error(ncclInvalidArgument, "an excluded rank must not take part");
    if (flags == NCCL_SHRINK_ABORT) {
      parent->abort();
    } else {
      parent->require_operational();
    }
    return standin::create_child(child, [parent, ranks] { return standin::shrink(parent.get(), ranks); });
  }));
}

STANDIN_EXPORT(ncclCommRevoke);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int flags) {
  return call_on("ncclCommRevoke", comm, [&](const CommunicatorPointer& communicator) {
    if (flags != NCCL_REVOKE_DEFAULT) throw Error(ncclInvalidArgument, "invalid flags");
    communicator->revoke();
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclCommWindowRegister);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size, ncclWindow_t* window, int) {
  return note(call_on("ncclCommWindowRegister", comm, [&](const CommunicatorPointer& communicator) {
    require_pointer(window, "window");
    *window = nullptr;
    require_pointer(buffer, "buffer");
    if (size == 0) throw Error(ncclInvalidArgument, "the buffer is empty");
    communicator->require_operational();
    *window = static_cast<ncclWindow_t>(communicator->add_registration());
    return ncclSuccess;
  }));
}

STANDIN_EXPORT(ncclCommWindowDeregister);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return call_on("ncclCommWindowDeregister", comm, [&](const CommunicatorPointer& communicator) {
    if (window != nullptr) communicator->remove_registration(window);
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclGroupSimulateEnd);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* info) {
  return call("ncclGroupSimulateEnd", -1, nullptr, [&] {
    if (info != nullptr && (info->magic != NCCL_SIM_INFO_MAGIC || info->size < sizeof(ncclSimInfo_t))) {
      throw Error(ncclInvalidArgument, "the information was not made by NCCL_SIM_INFO_INITIALIZER");
    }
    const ncclResult_t result = standin::group_end(true);
    if (info != nullptr) info->estimatedTime = 0;
    return result;
  });
}

STANDIN_EXPORT(ncclAlltoAll);
ncclResult_t pncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return note(call_on("ncclAlltoAll", comm, [&](const CommunicatorPointer& communicator) {
    const auto exchange =
        standin::exchange_of(communicator, count, type, send != nullptr && receive != nullptr, stream);
    if (count == 0) return ncclSuccess;
    return standin::in_inner_group([&] {
      for (int peer = 0; peer < communicator->rank_count(); ++peer) {
        exchange.send(send, peer, peer);
        exchange.receive(receive, peer, peer);
      }
    });
  }));
}

STANDIN_EXPORT(ncclGather);
ncclResult_t pncclGather(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return note(call_on("ncclGather", comm, [&](const CommunicatorPointer& communicator) {
    standin::require_root(*communicator, root);
    const bool at_root = communicator->rank() == root;
    const bool given = send != nullptr && (receive != nullptr || !at_root);
    const auto exchange = standin::exchange_of(communicator, count, type, given, stream);
    if (count == 0) return ncclSuccess;
    return standin::in_inner_group([&] {
      exchange.send(send, 0, root);
      for (int peer = 0; at_root && peer < communicator->rank_count(); ++peer) exchange.receive(receive, peer, peer);
    });
  }));
}

STANDIN_EXPORT(ncclScatter);
ncclResult_t pncclScatter(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                          cudaStream_t stream) {
  return note(call_on("ncclScatter", comm, [&](const CommunicatorPointer& communicator) {
    standin::require_root(*communicator, root);
    const bool at_root = communicator->rank() == root;
    const bool given = receive != nullptr && (send != nullptr || !at_root);
    const auto exchange = standin::exchange_of(communicator, count, type, given, stream);
    if (count == 0) return ncclSuccess;
    return standin::in_inner_group([&] {
      for (int peer = 0; at_root && peer < communicator->rank_count(); ++peer) exchange.send(send, peer, peer);
      exchange.receive(receive, 0, root);
    });
  }));
}
