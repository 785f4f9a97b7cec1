// Programs of the model-based test: what every rank calls, in which order and groups, on which memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "test/support/nccl.hpp"

namespace zipccl::test {

// What programs of one run have in common. Communicators are lists of ranks, in the order of their communicator ranks.
struct World {
  int ranks = 0;
  std::vector<std::vector<int>> communicators;
  int streams = 0;
  std::size_t arena_bytes = 0;  // memory of one stream; its operations touch nothing else

  // Of a rank in a communicator; -1 if it is no member.
  int member(int communicator, int rank) const;
};

enum class Kind : std::uint8_t { send, receive, all_gather, all_to_all };

// One call. Sizes are of one rank's part.
struct Action {
  Kind kind = Kind::send;
  int communicator = 0;
  int peer = 0;  // in the communicator
  ncclDataType_t type = ncclBfloat16;
  std::size_t count = 0;
  int stream = 0;
  bool in_place = false;  // all-gather
  std::size_t send_offset = 0;
  std::size_t receive_offset = 0;

  bool sends() const { return kind != Kind::receive; }
  bool receives() const { return kind != Kind::send; }
  bool collective() const { return kind == Kind::all_gather || kind == Kind::all_to_all; }
  std::size_t part_bytes() const;
  std::size_t send_bytes(const World& world) const;
  std::size_t receive_bytes(const World& world) const;

  bool operator==(const Action&) const = default;
};

// Calls that stand alone or in one group, or a step of the rank itself.
struct Launch {
  enum class Step : std::uint8_t { call, wait, synchronize };

  Step step = Step::call;
  std::vector<Action> actions;  // of a call
  bool grouped = false;         // must be if there are several
  // Further groups inside: opened before and closed after an action.
  std::vector<int> opens;
  std::vector<int> closes;
  int stream = 0;  // that waits for `other`, or that the host waits for
  int other = 0;

  bool operator==(const Launch&) const = default;
};

struct Program {
  std::string name;
  std::uint64_t seed = 0;
  std::vector<std::vector<Launch>> ranks;
  // If not zero: the calls are captured into a graph, beginning and ending on stream 0, and launched so many times.
  int replays = 0;
};

std::size_t type_bytes(ncclDataType_t type);
const char* type_name(ncclDataType_t type);

// One line a call.
std::string describe(const World& world, const Program& program);

}  // namespace zipccl::test
