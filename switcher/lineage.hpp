// How a child communicator's ticket follows from its parent's. The root can check it, and nobody who lacks the parent's
// secret can make it: SipHash-2-4 keyed with that secret.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "switcher/session.hpp"
#include "switcher/stamp.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {

class Parent {
 public:
  // `listeners` by rank, of the ranks' processes.
  Parent(const Stamp& own, std::vector<Endpoint> others) : stamp(own), listeners(std::move(others)) {}
  const Stamp stamp;  // of its root
  const std::vector<Endpoint> listeners;
};

// SipHash-2-4 (Aumasson and Bernstein) of 64 bits; the key is 16 bytes.
std::uint64_t siphash(std::span<const std::uint8_t, secret_bytes> key, ByteView message);

// Of the child that `descent` names.
Ticket descend(const Ticket& parent, const Descent& descent);

// Of the ranks that gave a split this color.
Ticket ticket_of_color(const Ticket& split, std::int32_t color);

}  // namespace zipccl::switcher
