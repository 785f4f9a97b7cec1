// The operations of the C interface, and how each becomes steps of messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "test/standin/communicator.hpp"
#include "test/standin/reduction.hpp"
#include "test/standin/transport.hpp"

namespace standin {

enum class Kind : std::uint32_t { all_gather, broadcast, reduce, all_reduce, reduce_scatter, send, receive };

struct Operation {
  Kind kind = Kind::all_gather;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  int peer = 0;  // or the root
  Reduction reduction;
  std::shared_ptr<Communicator> communicator;
  cudaStream_t stream = nullptr;

  bool point_to_point() const { return kind == Kind::send || kind == Kind::receive; }
};

// Throws Error(ncclInvalidUsage) unless every send to the rank itself has its receive among the operations.
void require_matched_self(std::span<const Operation> operations);

// The steps of one communicator's operations in one group: collectives in the given order, then everything point to
// point at once.
std::vector<Step> plan(std::span<const Operation> operations);

}  // namespace standin
