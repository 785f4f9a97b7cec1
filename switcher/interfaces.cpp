#include "switcher/interfaces.hpp"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <memory>

namespace zipccl::switcher {
namespace {

bool link_local(const Endpoint& endpoint) {
  return endpoint.ipv6 && endpoint.address[0] == 0xfe && (endpoint.address[1] & 0xc0) == 0x80;
}

}  // namespace

std::vector<Interface> list_interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const auto address = Endpoint::from(entry->ifa_addr);
    if (address && !link_local(*address)) interfaces.push_back({entry->ifa_name, *address});
  }
  return interfaces;
}

bool matches(std::string_view pattern, std::string_view name) {
  const bool exclude = pattern.starts_with('^');
  if (exclude) pattern.remove_prefix(1);
  const bool exact = pattern.starts_with('=');
  if (exact) pattern.remove_prefix(1);
  bool listed = false;
  while (!pattern.empty()) {
    const std::string_view item = pattern.substr(0, pattern.find(','));
    pattern.remove_prefix(std::min(item.size() + 1, pattern.size()));
    listed = listed || (!item.empty() && (exact ? name == item : name.starts_with(item)));
  }
  return listed != exclude;
}

Status choose_address(std::span<const Interface> interfaces, const std::string& pattern, Endpoint* address,
                      std::string* why) {
  std::vector<std::string> tiers = {pattern};
  if (pattern.empty()) tiers = {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"};
  for (const std::string& tier : tiers) {
    for (const Interface& interface : interfaces) {
      if (matches(tier, interface.name)) {
        *address = interface.address;
        return Status::ok;
      }
    }
  }
  *why = pattern.empty() ? "no network interface is up" : "no network interface that is up matches \"" + pattern + '"';
  return Status::unsupported;
}

}  // namespace zipccl::switcher
