#include <nccl.h>

#include "test/unit/nccl_abi.hpp"

namespace zipccl::test {

NcclAbi nvidia_nccl_abi() { return ZIPCCL_NCCL_ABI; }

}  // namespace zipccl::test
