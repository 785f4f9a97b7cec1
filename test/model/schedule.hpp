// How NCCL runs a program: which operations wait for which. Decides whether a program can block, and in which order
// the reference may execute it.
//
// All-gathers must be grouped alike on all ranks, because NCCL may reorder those of one group; messages need not.
//
// A communicator's operations of one launch run as *nodes*: one for each all-gather, in order, then one for everything
// point to point. A node starts when the nodes before it on its streams and on its communicator, on this rank, have
// ended; it ends when all nodes that it exchanges data with have started. A launch's communicators start one after the
// other in an order that is the same on all ranks, but unknown.
#pragma once

#include <cstddef>
#include <vector>

#include "test/model/program.hpp"

namespace zipccl::test {

// A piece of data from one rank to another (or itself).
struct Transfer {
  std::size_t id = 0;     // equal on both sides
  std::size_t arena = 0;  // of the world: rank * streams + stream
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

struct Node {
  std::vector<std::size_t> before;  // nodes that must have ended
  std::vector<std::size_t> peers;   // nodes that must have started before this one ends
  std::vector<Transfer> out;        // read when it starts
  std::vector<Transfer> in;         // written when it ends
};

struct ScheduleOptions {
  // Whether the host, too, waits for every call before it makes the next one, as exchange mode exact may.
  bool host_waits = false;
};

class Schedule {
 public:
  // `communicator_order`: ranks the communicators within a launch.
  Schedule(const World& world, const Program& program, const ScheduleOptions& options,
           const std::vector<int>& communicator_order);

  // False if the two sides of a pair disagree, or ranks in how they group all-gathers.
  bool matched() const { return matched_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::size_t transfers() const { return transfers_; }

  // The nodes in an order in which they may start, each after the ends of those before it. Empty if there is none
  // although there are nodes: the program may block.
  std::vector<std::size_t> order() const;

 private:
  std::vector<Node> nodes_;
  std::size_t transfers_ = 0;
  bool matched_ = true;

  friend class ScheduleBuilder;
};

// Whether the program cannot block, in whatever order communicators start.
bool is_legal(const World& world, const Program& program, const ScheduleOptions& options);

}  // namespace zipccl::test
