// NCCL's C interface as far as zipccl touches it, so that zipccl builds on machines without nccl.h and CUDA. Values
// and layouts are NCCL's public ABI (2.18 to 2.30); test/unit/nccl_abi_test.cpp holds them against a real nccl.h
// where there is one.
#pragma once

#include <cstddef>

#include "codec/device.hpp"

extern "C" {

struct ncclComm;
typedef struct ncclComm* ncclComm_t;
struct ncclWindow_vidmem;
typedef struct ncclWindow_vidmem* ncclWindow_t;

enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};

enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11
};

enum ncclRedOp_t : int { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };
enum ncclScalarResidence_t : int { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

#define NCCL_SHRINK_ABORT 0x01

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

// Only the fields that every version has, and of those only the first `size` bytes may be read. Never copied by
// value: newer versions are longer.
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;  // 0: nonblocking; 1 or INT_MIN (undefined): blocking
} ncclConfig_t;

struct ncclSimInfo_t;

typedef struct CUstream_st* cudaStream_t;
}
