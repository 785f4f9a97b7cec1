// The numbers of NCCL's ABI that zipccl relies on, evaluated in whichever translation unit includes this after a
// declaration of NCCL: zipccl's own (collectives/nccl_api.hpp) or NVIDIA's nccl.h. Both declare the same names, so
// they cannot meet in one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#define ZIPCCL_NCCL_ABI                                                                                                \
  {                                                                                                                    \
    std::int64_t{ncclSuccess}, std::int64_t{ncclUnhandledCudaError}, std::int64_t{ncclSystemError},                    \
        std::int64_t{ncclInternalError}, std::int64_t{ncclInvalidArgument}, std::int64_t{ncclInvalidUsage},            \
        std::int64_t{ncclRemoteError}, std::int64_t{ncclInProgress}, std::int64_t{ncclInt8}, std::int64_t{ncclUint8},  \
        std::int64_t{ncclInt32}, std::int64_t{ncclUint32}, std::int64_t{ncclInt64}, std::int64_t{ncclUint64},          \
        std::int64_t{ncclFloat16}, std::int64_t{ncclFloat32}, std::int64_t{ncclFloat64}, std::int64_t{ncclBfloat16},   \
        std::int64_t{ncclFloat8e4m3}, std::int64_t{ncclFloat8e5m2}, std::int64_t{ncclSum}, std::int64_t{ncclProd},     \
        std::int64_t{ncclMax}, std::int64_t{ncclMin}, std::int64_t{ncclAvg}, std::int64_t{ncclScalarDevice},           \
        std::int64_t{ncclScalarHostImmediate}, std::int64_t{sizeof(ncclUniqueId)}, std::int64_t{sizeof(ncclResult_t)}, \
        std::int64_t{sizeof(ncclDataType_t)}, std::int64_t{sizeof(ncclRedOp_t)},                                       \
        std::int64_t{offsetof(ncclConfig_t, size)}, std::int64_t{offsetof(ncclConfig_t, magic)},                       \
        std::int64_t{offsetof(ncclConfig_t, version)}, std::int64_t {                                                  \
      offsetof(ncclConfig_t, blocking)                                                                                 \
    }                                                                                                                  \
  }

namespace zipccl::test {

inline constexpr std::size_t nccl_abi_numbers = 35;
using NcclAbi = std::array<std::int64_t, nccl_abi_numbers>;

NcclAbi nvidia_nccl_abi();  // nccl_abi_nvidia.cpp

}  // namespace zipccl::test
