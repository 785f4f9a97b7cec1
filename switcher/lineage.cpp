#include "switcher/lineage.hpp"

#include <algorithm>
#include <bit>
#include <concepts>
#include <vector>

#include "switcher/stamp.hpp"

namespace zipccl::switcher {
namespace {

template <std::unsigned_integral T>
void append(WireBytes* bytes, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes->push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

std::uint64_t word_at(ByteView bytes) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) word |= std::uint64_t{bytes[i]} << (8 * i);
  return word;
}

// Nonce and halves of the secret are hashes of the same label, told apart by one more byte.
Ticket derive(const Ticket& parent, WireBytes label) {
  label.push_back(0);
  const auto hash = [&](std::uint8_t part) {
    label.back() = part;
    return siphash(parent.secret, label);
  };
  Ticket ticket;
  ticket.nonce = hash(0);
  for (std::uint8_t half = 0; half < 2; ++half) {
    const std::uint64_t word = hash(static_cast<std::uint8_t>(1 + half));
    for (std::size_t i = 0; i < 8; ++i) ticket.secret[8 * half + i] = static_cast<std::uint8_t>(word >> (8 * i));
  }
  return ticket;
}

constexpr std::uint8_t color_label = 0x80;  // no kind of descent

Invitation invite(const Stamp& stamp, const Descent& descent) {
  Invitation invitation;
  UniqueId id{};
  write_stamp(stamp, id);
  std::copy(id.begin() + stamp_offset, id.end(), invitation.stamp.begin());
  invitation.descent = descent;
  return invitation;
}

}  // namespace

std::uint64_t siphash(std::span<const std::uint8_t, secret_bytes> key, ByteView message) {
  const std::uint64_t low = word_at(key.first<8>());
  const std::uint64_t high = word_at(key.last<8>());
  std::uint64_t v0 = low ^ 0x736f6d6570736575u;
  std::uint64_t v1 = high ^ 0x646f72616e646f6du;
  std::uint64_t v2 = low ^ 0x6c7967656e657261u;
  std::uint64_t v3 = high ^ 0x7465646279746573u;
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  };
  const auto absorb = [&](std::uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  };
  ByteView left = message;
  for (; left.size() >= 8; left = left.subspan(8)) absorb(word_at(left.first(8)));
  absorb(word_at(left) | std::uint64_t{message.size()} << 56);
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

Ticket descend(const Ticket& parent, const Descent& descent) {
  WireBytes label = {static_cast<std::uint8_t>(descent.kind)};
  append(&label, descent.number);
  append(&label, descent.subset);
  return derive(parent, std::move(label));
}

Ticket ticket_of_color(const Ticket& split, std::int32_t color) {
  WireBytes label = {color_label};
  append(&label, static_cast<std::uint32_t>(color));
  return derive(split, std::move(label));
}

std::optional<Invitation> invitation_of(ConstUniqueIdBytes id) {
  const auto stamp = read_stamp(id);
  if (!stamp) return std::nullopt;
  return invite(*stamp, {});
}

Stamp stamp_of(const Invitation& invitation) {
  UniqueId id{};
  std::copy(invitation.stamp.begin(), invitation.stamp.end(), id.begin() + stamp_offset);
  return read_stamp(id).value_or(Stamp{});
}

Invitation split_of(const Parent& parent, std::uint64_t number) {
  const Descent descent{Descent::Kind::split, parent.stamp.ticket.nonce, number, 0};
  return invite({parent.stamp.listener, descend(parent.stamp.ticket, descent)}, descent);
}

Invitation shrink_of(const Parent& parent, std::span<const int> excluded, std::uint64_t number) {
  std::vector<int> sorted(excluded.begin(), excluded.end());
  std::ranges::sort(sorted);
  WireBytes bytes;
  for (const int rank : sorted) append(&bytes, static_cast<std::uint32_t>(rank));
  const Ticket& ticket = parent.stamp.ticket;
  const Descent descent{Descent::Kind::shrink, ticket.nonce, number, siphash(ticket.secret, bytes)};
  std::size_t root = 0;
  while (root + 1 < parent.listeners.size() && std::ranges::binary_search(sorted, static_cast<int>(root))) ++root;
  return invite({parent.listeners[root], descend(ticket, descent)}, descent);
}

}  // namespace zipccl::switcher
