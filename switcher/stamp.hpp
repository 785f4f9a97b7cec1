// What the root writes into the last 64 bytes of a ncclUniqueId. Integers are little-endian.
//
//   offset  bytes
//        0      8  magic "zipcclID"
//        8      2  layout version, 1
//       10      2  address family, 4 or 6
//       12      2  port of the listener
//       14      2  zero
//       16     16  address in network order; IPv4 in the first four bytes, then zeros
//       32      8  nonce, the id's number at the listener
//       40     16  secret; whoever knows it may take part
//       56      8  zero
#pragma once

#include <optional>

#include "switcher/session.hpp"
#include "switcher/socket.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {

struct Stamp {
  Endpoint listener;
  Ticket ticket;
};

void write_stamp(const Stamp& stamp, UniqueIdBytes id);
std::optional<Stamp> read_stamp(ConstUniqueIdBytes id);
Stamp stamp_of(const Invitation& invitation);  // port 0 if there is none

}  // namespace zipccl::switcher
