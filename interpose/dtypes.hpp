// NCCL's data types as sizes.
#pragma once

#include <cstdint>

#include "collectives/nccl_api.hpp"

namespace zipccl::interpose {

// Bytes of one value; 1 for types that are not known, as NCCL's newer ones are bytes.
constexpr std::uint64_t bytes_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 1;
  }
}

}  // namespace zipccl::interpose
