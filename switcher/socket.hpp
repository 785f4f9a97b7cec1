// POSIX sockets as both sides use them: close-on-exec, non-blocking, without delay, with bounded keepalive.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "codec/status.hpp"

namespace zipccl::switcher {

// An IPv4 or IPv6 address and a TCP port.
struct Endpoint {
  bool ipv6 = false;
  std::array<std::uint8_t, 16> address{};  // network order; IPv4 uses the first four bytes
  std::uint16_t port = 0;

  bool operator==(const Endpoint&) const = default;

  static std::optional<Endpoint> from(const sockaddr* address);  // nothing for other families
  socklen_t to(sockaddr_storage* storage) const;
  std::string text() const;  // "10.0.0.1:4711" or "[fd00::1]:4711"
};

// Owns one file descriptor, and has it remembered (switcher/descriptors.hpp) until it is closed. Every operation ends
// at its deadline.
class Socket {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  Socket() = default;
  explicit Socket(int descriptor);
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  // Bound to the endpoint's address and listening; its port, if 0, becomes the one that the kernel chose.
  static Status listen(Endpoint* endpoint, Socket* socket, std::string* why);
  // A stream socket for the endpoint's family, not connected.
  static Status open(const Endpoint& endpoint, Socket* socket, std::string* why);
  // connection_lost if nothing answers before the deadline.
  static Status connect(const Endpoint& endpoint, Deadline deadline, Socket* socket, std::string* why);
  // The next waiting connection; -1 and errno if there is none. The caller owns the descriptor.
  static int accept(int listener);

  // ok, connection_lost or timed_out.
  Status send(std::span<const std::uint8_t> bytes, Deadline deadline);
  Status receive(std::span<std::uint8_t> bytes, Deadline deadline);

  int descriptor() const { return descriptor_; }
  int release();  // the new owner forgets and closes it

 private:
  Status wait(short events, Deadline deadline) const;

  int descriptor_ = -1;
};

}  // namespace zipccl::switcher
