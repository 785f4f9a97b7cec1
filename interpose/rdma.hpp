// Whether NCCL will use RDMA between hosts, as far as zipccl can tell without asking it.
#pragma once

#include <string>

namespace zipccl::interpose {

// NCCL_NET and NCCL_IB_DISABLE decide; without them, whether `devices` has any. A plugin that NCCL_NET names counts.
bool has_rdma(const std::string& devices = "/sys/class/infiniband");

}  // namespace zipccl::interpose
