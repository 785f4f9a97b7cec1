// Link classes between ranks, as NCCL will connect them.
#include <algorithm>

#include "switcher/session.hpp"

namespace zipccl::switcher {
namespace {

bool lists(const Hello& hello, const std::string& device) {
  return std::find(hello.nvlink_peers.begin(), hello.nvlink_peers.end(), device) != hello.nvlink_peers.end();
}

}  // namespace

const char* to_string(LinkClass link) {
  switch (link) {
    case LinkClass::same_device:
      return "same device";
    case LinkClass::nvlink:
      return "NVLink";
    case LinkClass::pcie:
      return "PCIe";
    case LinkClass::shared_memory:
      return "shared memory";
    case LinkClass::network:
      return "network";
    case LinkClass::sockets:
      return "sockets";
  }
  return "unknown link";
}

LinkClass link_between(const Hello& one, const Hello& other) {
  const LinkClass network = one.rdma && other.rdma ? LinkClass::network : LinkClass::sockets;
  if (one.host != other.host) return network;
  const bool devices = !one.device.empty() && !other.device.empty();
  if (devices && one.device == other.device) return LinkClass::same_device;
  if (devices && !one.p2p_disabled && !other.p2p_disabled) {
    return lists(one, other.device) || lists(other, one.device) ? LinkClass::nvlink : LinkClass::pcie;
  }
  if (one.shared_memory == other.shared_memory && !one.shm_disabled && !other.shm_disabled) {
    return LinkClass::shared_memory;
  }
  return network;
}

}  // namespace zipccl::switcher
