// Exported functions: groups, collectives, point to point and reduction operators.
#include <cstring>

#include "test/standin/call.hpp"
#include "test/standin/stream.hpp"

namespace standin {
namespace {

void check_rank(const Communicator& communicator, int rank, const char* name) {
  if (rank < 0 || rank >= communicator.rank_count()) {
    throw Error(ncclInvalidArgument,
                std::string(name) + " " + std::to_string(rank) + " is not a rank of the communicator");
  }
}

// Checks what all operations have in common. `needs_send` and `needs_receive`: whether this rank's buffers are used.
Operation operation_of(Kind kind, const CommunicatorPointer& communicator, const void* send, void* receive,
                       size_t count, ncclDataType_t type, cudaStream_t stream, bool needs_send, bool needs_receive) {
  communicator->require_operational();
  type_bytes(type);
  find_stream(stream);  // before anything of a group is launched
  if (count > 0 && needs_send) require_pointer(send, "the send buffer");
  if (count > 0 && needs_receive) require_pointer(receive, "the receive buffer");
  Operation operation;
  operation.kind = kind;
  operation.send = send;
  operation.receive = receive;
  operation.count = count;
  operation.type = type;
  operation.communicator = communicator;
  operation.stream = stream;
  return operation;
}

ncclResult_t submit_collective(Kind kind, const CommunicatorPointer& communicator, const void* send, void* receive,
                               size_t count, ncclDataType_t type, cudaStream_t stream) {
  submit(operation_of(kind, communicator, send, receive, count, type, stream, true, true));
  return ncclSuccess;
}

ncclResult_t submit_rooted(Kind kind, const CommunicatorPointer& communicator, const void* send, void* receive,
                           size_t count, ncclDataType_t type, const Reduction& reduction, int root,
                           cudaStream_t stream) {
  check_rank(*communicator, root, "root");
  const bool at_root = communicator->rank() == root;
  const bool broadcasts = kind == Kind::broadcast;
  Operation operation = operation_of(kind, communicator, send, receive, count, type, stream, !broadcasts || at_root,
                                     broadcasts || at_root);
  operation.peer = root;
  operation.reduction = reduction;
  submit(std::move(operation));
  return ncclSuccess;
}

ncclResult_t submit_reduction(Kind kind, const CommunicatorPointer& communicator, const void* send, void* receive,
                              size_t count, ncclDataType_t type, ncclRedOp_t op, cudaStream_t stream) {
  Operation operation = operation_of(kind, communicator, send, receive, count, type, stream, true, true);
  operation.reduction = communicator->reductions().resolve(op, type, communicator->rank_count());
  submit(std::move(operation));
  return ncclSuccess;
}

}  // namespace

void submit_point_to_point(Kind kind, const CommunicatorPointer& communicator, void* buffer, std::size_t count,
                           ncclDataType_t type, int peer, cudaStream_t stream) {
  const bool sends = kind == Kind::send;
  check_rank(*communicator, peer, "peer");
  Operation operation = operation_of(kind, communicator, sends ? buffer : nullptr, sends ? nullptr : buffer, count,
                                     type, stream, sends, !sends);
  operation.peer = peer;
  submit(std::move(operation));
}

}  // namespace standin

using standin::call;
using standin::call_on;
using standin::CommunicatorPointer;
using standin::Error;
using standin::Kind;
using standin::note;
using standin::require_pointer;

STANDIN_EXPORT(ncclGroupStart);
ncclResult_t pncclGroupStart() {
  return call("ncclGroupStart", -1, nullptr, [] {
    standin::group_start();
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclGroupEnd);
ncclResult_t pncclGroupEnd() {
  return call("ncclGroupEnd", -1, nullptr, [] { return standin::group_end(false); });
}

STANDIN_EXPORT(ncclAllGather);
ncclResult_t pncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
  return note(call_on("ncclAllGather", comm, [&](const CommunicatorPointer& communicator) {
    return standin::submit_collective(Kind::all_gather, communicator, send, receive, count, type, stream);
  }));
}

STANDIN_EXPORT(ncclBroadcast);
ncclResult_t pncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                            ncclComm_t comm, cudaStream_t stream) {
  return note(call_on("ncclBroadcast", comm, [&](const CommunicatorPointer& communicator) {
    return standin::submit_rooted(Kind::broadcast, communicator, send, receive, count, type, {}, root, stream);
  }));
}

STANDIN_EXPORT(ncclBcast);
ncclResult_t pncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);  // the public one, as NCCL does
}

STANDIN_EXPORT(ncclAllReduce);
ncclResult_t pncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream) {
  return note(call_on("ncclAllReduce", comm, [&](const CommunicatorPointer& communicator) {
    return standin::submit_reduction(Kind::all_reduce, communicator, send, receive, count, type, op, stream);
  }));
}

STANDIN_EXPORT(ncclReduceScatter);
ncclResult_t pncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream) {
  return note(call_on("ncclReduceScatter", comm, [&](const CommunicatorPointer& communicator) {
    return standin::submit_reduction(Kind::reduce_scatter, communicator, send, receive, count, type, op, stream);
  }));
}

STANDIN_EXPORT(ncclReduce);
ncclResult_t pncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return note(call_on("ncclReduce", comm, [&](const CommunicatorPointer& communicator) {
    const auto reduction = communicator->reductions().resolve(op, type, communicator->rank_count());
    return standin::submit_rooted(Kind::reduce, communicator, send, receive, count, type, reduction, root, stream);
  }));
}

STANDIN_EXPORT(ncclSend);
ncclResult_t pncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return note(call_on("ncclSend", comm, [&](const CommunicatorPointer& communicator) {
    return standin::in_inner_group([&] {
      standin::submit_point_to_point(Kind::send, communicator, const_cast<void*>(send), count, type, peer, stream);
    });
  }));
}

STANDIN_EXPORT(ncclRecv);
ncclResult_t pncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return note(call_on("ncclRecv", comm, [&](const CommunicatorPointer& communicator) {
    return standin::in_inner_group(
        [&] { standin::submit_point_to_point(Kind::receive, communicator, receive, count, type, peer, stream); });
  }));
}

STANDIN_EXPORT(ncclRedOpCreatePreMulSum);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                       ncclScalarResidence_t residence, ncclComm_t comm) {
  return call_on("ncclRedOpCreatePreMulSum", comm, [&](const CommunicatorPointer& communicator) {
    require_pointer(op, "op");
    require_pointer(scalar, "scalar");
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
      throw Error(ncclInvalidArgument, "invalid residence of the scalar");
    }
    communicator->require_ready();
    standin::Reduction reduction;
    reduction.type = type;
    reduction.scaled = true;
    const std::size_t bytes = standin::type_bytes(type);
    if (residence == ncclScalarDevice) {
      reduction.device_scalar = scalar;
    } else {
      std::memcpy(reduction.scalar.data(), scalar, bytes);
    }
    *op = communicator->reductions().create(reduction);
    return ncclSuccess;
  });
}

STANDIN_EXPORT(ncclRedOpDestroy);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return call_on("ncclRedOpDestroy", comm, [&](const CommunicatorPointer& communicator) {
    communicator->reductions().destroy(op);
    return ncclSuccess;
  });
}
