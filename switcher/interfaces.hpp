// Which of this host's addresses the listener takes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/status.hpp"
#include "switcher/socket.hpp"

namespace zipccl::switcher {

struct Interface {
  std::string name;
  Endpoint address;  // port 0
};

// Interfaces that are up, in the kernel's order, with their IPv4 and IPv6 addresses; without link-local IPv6 addresses,
// which mean something else on every host.
std::vector<Interface> list_interfaces();

// NCCL_SOCKET_IFNAME's syntax: prefixes separated by commas; "^" first: all but these; "=" first, or after "^": whole
// names instead of prefixes.
bool matches(std::string_view pattern, std::string_view name);

// The first address that the pattern selects. With an empty pattern NCCL's own order: "ib", then all but loopback,
// docker and virtual bridges, then docker, loopback and bridges.
Status choose_address(std::span<const Interface> interfaces, const std::string& pattern, Endpoint* address,
                      std::string* why);

}  // namespace zipccl::switcher
