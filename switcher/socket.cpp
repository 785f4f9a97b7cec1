#include "switcher/socket.hpp"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "switcher/descriptors.hpp"

namespace zipccl::switcher {
namespace {

constexpr int backlog = 4096;  // the kernel takes the smaller of this and somaxconn

void set_option(int descriptor, int level, int name, int value) {
  setsockopt(descriptor, level, name, &value, sizeof(value));
}

// A vanished host is noticed within 40 seconds, idle or with data under way.
void set_stream_options(int descriptor) {
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 6);
  set_option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, 40'000);
}

int open_stream(const Endpoint& endpoint) {
  return socket(endpoint.ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
}

std::string failure(const char* action, const Endpoint& endpoint, int error) {
  return std::string("cannot ") + action + " " + endpoint.text() + ": " + std::strerror(error);
}

const sockaddr* generic(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr*>(&storage); }

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

std::optional<Endpoint> Endpoint::from(const sockaddr* address) {
  Endpoint endpoint;
  if (address->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, address, sizeof(in));
    std::memcpy(endpoint.address.data(), &in.sin_addr, sizeof(in.sin_addr));
    endpoint.port = ntohs(in.sin_port);
    return endpoint;
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, address, sizeof(in));
    endpoint.ipv6 = true;
    std::memcpy(endpoint.address.data(), &in.sin6_addr, sizeof(in.sin6_addr));
    endpoint.port = ntohs(in.sin6_port);
    return endpoint;
  }
  return std::nullopt;
}

socklen_t Endpoint::to(sockaddr_storage* storage) const {
  *storage = {};
  if (!ipv6) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, address.data(), sizeof(in.sin_addr));
    std::memcpy(storage, &in, sizeof(in));
    return sizeof(in);
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  std::memcpy(&in.sin6_addr, address.data(), sizeof(in.sin6_addr));
  std::memcpy(storage, &in, sizeof(in));
  return sizeof(in);
}

std::string Endpoint::text() const {
  char name[INET6_ADDRSTRLEN] = "";
  inet_ntop(ipv6 ? AF_INET6 : AF_INET, address.data(), name, sizeof(name));
  std::string text = name;
  if (ipv6) text = std::string("[").append(text).append("]");
  return text.append(":").append(std::to_string(port));
}

Socket::Socket(int descriptor) : descriptor_(descriptor) { descriptors::remember(descriptor); }

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Socket::~Socket() {
  if (descriptors::forget(descriptor_)) close(descriptor_);
}

int Socket::release() { return std::exchange(descriptor_, -1); }

Status Socket::listen(Endpoint* endpoint, Socket* socket, std::string* why) {
  Socket opened(open_stream(*endpoint));
  sockaddr_storage storage;
  socklen_t size = endpoint->to(&storage);
  if (opened.descriptor_ < 0 || bind(opened.descriptor_, generic(storage), size) != 0 ||
      ::listen(opened.descriptor_, backlog) != 0 ||
      getsockname(opened.descriptor_, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    *why = failure("listen on", *endpoint, errno);
    return Status::unsupported;
  }
  *endpoint = *Endpoint::from(generic(storage));
  *socket = std::move(opened);
  return Status::ok;
}

Status Socket::open(const Endpoint& endpoint, Socket* socket, std::string* why) {
  Socket opened(open_stream(endpoint));
  if (opened.descriptor_ < 0) {
    *why = failure("connect to", endpoint, errno);
    return Status::unsupported;
  }
  set_stream_options(opened.descriptor_);
  *socket = std::move(opened);
  return Status::ok;
}

Status Socket::connect(const Endpoint& endpoint, Deadline deadline, Socket* socket, std::string* why) {
  Socket opened(open_stream(endpoint));
  sockaddr_storage storage;
  const socklen_t size = endpoint.to(&storage);
  int error = 0;
  if (opened.descriptor_ < 0) {
    error = errno;
  } else if (::connect(opened.descriptor_, generic(storage), size) != 0) {
    error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      socklen_t error_size = sizeof(error);
      if (opened.wait(POLLOUT, deadline) != Status::ok) {
        error = ETIMEDOUT;
      } else if (getsockopt(opened.descriptor_, SOL_SOCKET, SO_ERROR, &error, &error_size) != 0) {
        error = errno;
      }
    }
  }
  if (error != 0) {
    *why = failure("connect to", endpoint, error);
    return Status::connection_lost;
  }
  set_stream_options(opened.descriptor_);
  *socket = std::move(opened);
  return Status::ok;
}

int Socket::accept(int listener) {
  const int descriptor = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (descriptor >= 0) set_stream_options(descriptor);
  return descriptor;
}

Status Socket::wait(short events, Deadline deadline) const {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return Status::timed_out;
    pollfd poll_entry{descriptor_, events, 0};
    const int ready = poll(&poll_entry, 1, static_cast<int>(std::min<std::int64_t>(left, 1'000'000)));
    if (ready > 0) return Status::ok;
    if (ready < 0 && errno != EINTR) return Status::connection_lost;
  }
}

Status Socket::send(std::span<const std::uint8_t> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (sent < 0 && would_block(errno)) {
      if (const Status status = wait(POLLOUT, deadline); status != Status::ok) return status;
    } else if (!(sent < 0 && errno == EINTR)) {
      return Status::connection_lost;
    }
  }
  return Status::ok;
}

Status Socket::receive(std::span<std::uint8_t> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t received = recv(descriptor_, bytes.data(), bytes.size(), 0);
    if (received > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(received));
    } else if (received < 0 && would_block(errno)) {
      if (const Status status = wait(POLLIN, deadline); status != Status::ok) return status;
    } else if (!(received < 0 && errno == EINTR)) {
      return Status::connection_lost;
    }
  }
  return Status::ok;
}

}  // namespace zipccl::switcher
