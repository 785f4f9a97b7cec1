// Arithmetic of the reductions, as NCCL's ring does it: every value is scaled in its type, every sum rounded to it.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <mutex>

#include "test/standin/standin_nccl.h"

namespace standin {

std::size_t type_bytes(ncclDataType_t type);  // throws Error(ncclInvalidArgument) for what is no type

// An operator as it was when the call was made.
struct Reduction {
  ncclRedOp_t combine = ncclSum;  // ncclSum, ncclProd, ncclMax or ncclMin
  ncclDataType_t type = ncclFloat32;
  bool scaled = false;                  // multiply every value by the scalar first
  int divisor = 1;                      // divide the sum of integers (ncclAvg)
  std::array<std::byte, 8> scalar{};    // one value of the type
  const void* device_scalar = nullptr;  // read when the operation runs, instead of `scalar`

  // parts: rank_count pointers to `count` values by rank; the sum starts behind `owner` in rank order and ends with
  // it, as in a ring. The result may be one of the parts.
  void reduce(void* result, const std::byte* const* parts, int rank_count, int owner, std::size_t count) const;
};

// A communicator's operators made by ncclRedOpCreatePreMulSum.
class ReductionTable {
 public:
  ncclRedOp_t create(const Reduction& reduction);
  void destroy(ncclRedOp_t op);
  Reduction resolve(ncclRedOp_t op, ncclDataType_t type, int rank_count);

 private:
  std::mutex mutex_;
  int next_ = ncclNumOps;
  std::map<int, Reduction> made_;
};

}  // namespace standin
