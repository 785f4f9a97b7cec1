// What the session's suites share: ids, hellos, and ranks as threads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "switcher/rendezvous.hpp"
#include "switcher/session.hpp"
#include "switcher/wire.hpp"

namespace zipccl::test {

using switcher::UniqueId;

// Of an id that is stamped.
inline switcher::Invitation invited(const UniqueId& id) { return switcher::invitation_of(id).value(); }

inline switcher::Ticket make_ticket() {
  switcher::Ticket ticket{0x0123456789abcdefu, {}};
  for (std::size_t i = 0; i < switcher::secret_bytes; ++i) ticket.secret[i] = static_cast<std::uint8_t>(200 + i);
  return ticket;
}

inline switcher::Hello make_hello(std::uint32_t rank, std::uint32_t rank_count) {
  switcher::Hello hello;
  hello.rank = rank;
  hello.rank_count = rank_count;
  hello.library_version = "0.1.0";
  hello.configuration = "ZIPCCL_COLLECTIVES=allgather\nZIPCCL_MIN_BYTES=1048576\n";
  hello.host = "node" + std::to_string(rank / 8) + "-5f2c";
  hello.shared_memory = "shm-" + std::to_string(rank / 8);
  hello.device = "0000:" + std::to_string(10 + rank % 8) + ":00.0";
  hello.process = 1000 + rank;
  hello.staging_bytes = 128u << 20;
  return hello;
}

// A rank's course from hello to verdict. `error` is empty if both went well.
struct Outcome {
  Status hello = Status::aborted;
  Status verdict = Status::aborted;
  switcher::Verdict answer;
  std::string why;
};

// Root and ranks live in one process here: two descriptors a rank and more.
void raise_descriptor_limit();

// Runs rank_count threads; every one that `joins` says hello, then waits for the others like a real init, then asks.
std::vector<Outcome> run_ranks(switcher::Rendezvous& rendezvous, const UniqueId& id, std::uint32_t rank_count,
                               const std::function<switcher::Hello(std::uint32_t)>& hello_of,
                               const std::function<bool(std::uint32_t)>& joins);

inline UniqueId stamped_id(switcher::Rendezvous& rendezvous) {
  UniqueId id{};
  std::string why;
  if (rendezvous.stamp(id, &why) != Status::ok) throw std::runtime_error(why);
  return id;
}

}  // namespace zipccl::test
