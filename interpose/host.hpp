// What tells a rank's host, and the parts of it that NCCL cares about, from others'.
#pragma once

#include <string>

namespace zipccl::interpose {

std::string host_identity();           // NCCL_HOSTID, or the host's name and boot
std::string shared_memory_identity();  // of /dev/shm, which containers of one host need not share

}  // namespace zipccl::interpose
