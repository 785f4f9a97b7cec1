#include "interpose/rdma.hpp"

#include <strings.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "interpose/environment.hpp"

namespace zipccl::interpose {

bool has_rdma(const std::string& devices) {
  if (const std::string net = variable("NCCL_NET"); !net.empty()) {
    return strcasecmp(net.c_str(), "Socket") != 0;  // as NCCL compares it
  }
  if (std::atoi(variable("NCCL_IB_DISABLE").c_str()) != 0) {
    return false;
  }
  std::error_code error;
  const bool empty = std::filesystem::is_empty(devices, error);
  return !error && !empty;
}

}  // namespace zipccl::interpose
