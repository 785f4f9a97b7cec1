// Moving bytes between the ranks of communicators: programs of steps, each step a set of messages that travel at the
// same time over one connection per peer. One thread drives several programs with one poll loop, sending and
// receiving whatever can move, so that no order of messages among ranks can block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "test/standin/socket.hpp"

namespace standin {

class Communicator;

// Precedes every message. The receiver knows what it must be; another one means that ranks disagree.
struct Header {
  std::uint32_t kind = 0;       // Kind
  std::uint32_t type = 0;       // ncclDataType_t; 0 for point to point
  std::uint64_t count = 0;      // values; bytes for point to point
  std::uint32_t parameter = 0;  // root or operator
  std::uint32_t sequence = 0;   // of the communicator's collectives; 0 for point to point

  bool operator==(const Header&) const = default;
};

struct Message {
  Header header;
  std::byte* data = nullptr;  // only read when sending
  std::size_t bytes = 0;
  const Message* source = nullptr;  // being received to the same place: only what has arrived can be sent on
  std::size_t done = 0;             // bytes moved, header included
  Header arrived{};

  bool complete() const { return done == sizeof(Header) + bytes; }
  std::size_t payload_done() const { return done > sizeof(Header) ? done - sizeof(Header) : 0; }
};

// The messages to and from one peer, each direction in order.
struct Lane {
  int peer = 0;
  std::vector<Message> outgoing;
  std::vector<Message> incoming;
  std::size_t sent = 0;       // messages
  std::size_t received = 0;   // messages
  bool acknowledged = false;  // a message has been sent when the peer says that it has it
  std::size_t acknowledgements_sent = 0;
  std::size_t acknowledgements_received = 0;

  bool awaits_acknowledgement() const { return acknowledged && acknowledgements_received < sent; }
  bool owes_acknowledgement() const { return acknowledged && acknowledgements_sent < received; }
  bool complete() const {
    return sent == outgoing.size() && received == incoming.size() && !awaits_acknowledgement() &&
           !owes_acknowledgement();
  }
};

struct Step {
  std::chrono::nanoseconds latency{0};  // before the first byte
  std::vector<Lane> lanes;
  std::function<void()> finish;  // may be null

  Lane& lane(int peer);  // adds it if there is none; invalidates references to other lanes
};

struct Program {
  Communicator* communicator = nullptr;
  std::vector<Step> steps;
  std::function<void()> done;  // runs once, whether the program succeeded or not
};

// Runs programs until each is done. What goes wrong in one is reported to its communicator and ends that one only.
void run_programs(std::vector<Program>* programs);

// A rank's outgoing link: admits bytes at its rate.
class Link {
 public:
  // Bytes that may be sent now; if none, *retry says when to ask again.
  std::size_t admit(Clock::time_point now, double bytes_per_second, Clock::time_point* retry);
  void consume(Clock::time_point now, double bytes_per_second, std::size_t bytes);

 private:
  std::mutex mutex_;
  Clock::time_point free_at_{};
};

// The link of a device of this process.
Link& link_of(int device);

std::string describe(const Header& header);

}  // namespace standin
