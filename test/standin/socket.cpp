#include "test/standin/socket.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "test/standin/error.hpp"

namespace standin {
namespace {

constexpr auto never = Clock::time_point::max();
constexpr int buffer_bytes = 4 << 20;  // the kernel lowers it to what it allows
constexpr std::chrono::milliseconds retry_interval(2);

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

Address address_of(const Token& token, int rank) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text(1, '\0');  // abstract
  text += "nccl-standin/";
  for (const std::uint8_t byte : token) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  text.append(1, '/').append(std::to_string(rank));
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path, text.data(), text.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
  return address;
}

FileDescriptor open_socket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) throw system_error("socket");
  return socket;
}

void enlarge_buffers(const FileDescriptor& socket) {
  setsockopt(socket.number(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
}

int milliseconds_until(Clock::time_point deadline) {
  if (deadline == never) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  FileDescriptor old(std::exchange(number_, other.release()));
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) close(number_);
}

int FileDescriptor::release() { return std::exchange(number_, -1); }

WakeSignal::WakeSignal() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_.valid()) throw system_error("eventfd");
}

void WakeSignal::raise() { eventfd_write(event_.number(), 1); }

Token derive(const Token& token, std::string_view purpose) {
  // Two FNV-1a hashes with different starts, each finished by a multiplication that spreads the last bytes.
  Token result{};
  for (std::size_t half = 0; half < 2; ++half) {
    std::uint64_t hash = 0xcbf29ce484222325u ^ (half * 0x9e3779b97f4a7c15u);
    const auto mix = [&hash](std::uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
    for (const std::uint8_t byte : token) mix(byte);
    for (const char character : purpose) mix(static_cast<std::uint8_t>(character));
    hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93u;
    std::memcpy(result.data() + half * sizeof(hash), &hash, sizeof(hash));
  }
  return result;
}

bool wait_for_events(int number, short events, const WakeSignal& wake, Clock::time_point deadline) {
  while (true) {
    pollfd polled[2] = {{wake.number(), POLLIN, 0}, {number, events, 0}};
    const int ready = poll(polled, 2, milliseconds_until(deadline));
    if (ready < 0 && errno != EINTR) throw system_error("poll");
    if (ready > 0 && polled[0].revents != 0) throw Error(ncclInternalError, "the communicator was aborted");
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
  }
}

FileDescriptor listen_as(const Token& token, int rank) {
  FileDescriptor listener = open_socket();
  const Address address = address_of(token, rank);
  if (bind(listener.number(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) != 0) {
    if (errno == EADDRINUSE) {
      throw Error(ncclInvalidUsage, "rank " + std::to_string(rank) + " has entered this communicator already");
    }
    throw system_error("bind");
  }
  if (listen(listener.number(), SOMAXCONN) != 0) throw system_error("listen");
  return listener;
}

FileDescriptor accept_from(const FileDescriptor& listener, const WakeSignal& wake, Clock::time_point deadline) {
  while (wait_for_events(listener.number(), POLLIN, wake, deadline)) {
    FileDescriptor socket(accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      enlarge_buffers(socket);
      return socket;
    }
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) throw system_error("accept");
  }
  throw Error(ncclSystemError, "a rank did not connect in time");
}

FileDescriptor connect_to(const Token& token, int rank, const WakeSignal& wake, Clock::time_point deadline) {
  const Address address = address_of(token, rank);
  while (true) {
    FileDescriptor socket = open_socket();
    if (connect(socket.number(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) == 0) {
      enlarge_buffers(socket);
      return socket;
    }
    // Not there yet, or its queue of connections is full.
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) throw system_error("connect");
    if (Clock::now() >= deadline) {
      throw Error(ncclSystemError, "rank " + std::to_string(rank) + " did not enter the communicator in time");
    }
    wait_for_events(-1, 0, wake, Clock::now() + retry_interval);
  }
}

void send_all(const FileDescriptor& socket, const void* data, std::size_t bytes, const WakeSignal& wake) {
  const char* position = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket.number(), position, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) {
      wait_for_events(socket.number(), POLLOUT, wake, never);
    } else if (sent < 0 && errno != EINTR) {
      throw Error(ncclRemoteError, "a rank left while the communicator was created");
    } else if (sent > 0) {
      position += sent;
      bytes -= static_cast<std::size_t>(sent);
    }
  }
}

void receive_all(const FileDescriptor& socket, void* data, std::size_t bytes, const WakeSignal& wake) {
  char* position = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t received = recv(socket.number(), position, bytes, 0);
    if (received < 0 && errno == EAGAIN) {
      wait_for_events(socket.number(), POLLIN, wake, never);
    } else if (received == 0 || (received < 0 && errno != EINTR)) {
      throw Error(ncclRemoteError, "a rank left while the communicator was created");
    } else if (received > 0) {
      position += received;
      bytes -= static_cast<std::size_t>(received);
    }
  }
}

}  // namespace standin
