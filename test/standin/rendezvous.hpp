// How ranks find each other: all ranks of a meeting exchange a card, and may come away with a connection to each.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "test/standin/socket.hpp"

namespace standin {

using Card = std::array<std::int64_t, 2>;

struct Meeting {
  std::vector<Card> cards;                  // by rank
  std::vector<FileDescriptor> connections;  // by rank, the own one invalid; empty if not asked for
};

// Returns when all ranks have entered. Rank 0 gathers what the others say, and all of them fail alike when they
// differ in the number of ranks.
Meeting meet(const Token& token, int rank, int rank_count, const Card& card, bool connect_all, const WakeSignal& wake);

}  // namespace standin
