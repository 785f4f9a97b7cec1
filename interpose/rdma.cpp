#include "interpose/rdma.hpp"

#include <strings.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace zipccl::interpose {

bool has_rdma(const std::string& devices) {
  if (const char* net = std::getenv("NCCL_NET"); net != nullptr && *net != '\0') {
    return strcasecmp(net, "Socket") != 0;  // as NCCL compares it
  }
  if (const char* disabled = std::getenv("NCCL_IB_DISABLE"); disabled != nullptr && std::atoi(disabled) != 0) {
    return false;
  }
  std::error_code error;
  const bool empty = std::filesystem::is_empty(devices, error);
  return !error && !empty;
}

}  // namespace zipccl::interpose
