#include "switcher/stamp.hpp"

#include <algorithm>
#include <array>
#include <concepts>
#include <string_view>

namespace zipccl::switcher {
namespace {

constexpr std::string_view magic = "zipcclID";
constexpr std::uint16_t layout_version = 1;
constexpr std::size_t version_at = stamp_offset + 8;
constexpr std::size_t family_at = stamp_offset + 10;
constexpr std::size_t port_at = stamp_offset + 12;
constexpr std::size_t address_at = stamp_offset + 16;
constexpr std::size_t nonce_at = stamp_offset + 32;
constexpr std::size_t secret_at = stamp_offset + 40;

template <std::unsigned_integral T>
void put(UniqueIdBytes id, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) id[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
}

template <std::unsigned_integral T>
T get(ConstUniqueIdBytes id, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | (T{id[at + i]} << (8 * i)));
  return value;
}

}  // namespace

void write_stamp(const Stamp& stamp, UniqueIdBytes id) {
  std::fill(id.begin() + stamp_offset, id.end(), std::uint8_t{0});
  std::copy(magic.begin(), magic.end(), id.begin() + stamp_offset);
  put(id, version_at, layout_version);
  put(id, family_at, static_cast<std::uint16_t>(stamp.listener.ipv6 ? 6 : 4));
  put(id, port_at, stamp.listener.port);
  std::copy(stamp.listener.address.begin(), stamp.listener.address.end(), id.begin() + address_at);
  put(id, nonce_at, stamp.ticket.nonce);
  std::copy(stamp.ticket.secret.begin(), stamp.ticket.secret.end(), id.begin() + secret_at);
}

std::optional<Stamp> read_stamp(ConstUniqueIdBytes id) {
  const auto family = get<std::uint16_t>(id, family_at);
  if (!std::equal(magic.begin(), magic.end(), id.begin() + stamp_offset) ||
      get<std::uint16_t>(id, version_at) != layout_version || (family != 4 && family != 6)) {
    return std::nullopt;
  }
  Stamp stamp;
  stamp.listener.ipv6 = family == 6;
  stamp.listener.port = get<std::uint16_t>(id, port_at);
  std::copy_n(id.begin() + address_at, stamp.listener.address.size(), stamp.listener.address.begin());
  stamp.ticket.nonce = get<std::uint64_t>(id, nonce_at);
  std::copy_n(id.begin() + secret_at, secret_bytes, stamp.ticket.secret.begin());
  return stamp;
}

}  // namespace zipccl::switcher
