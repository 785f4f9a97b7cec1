#include "switcher/acceptor.hpp"

#include <asio/post.hpp>
#include <cerrno>
#include <new>
#include <thread>
#include <utility>

#include "switcher/descriptors.hpp"

namespace zipccl::switcher {

using asio::ip::tcp;

Acceptor::Acceptor(asio::io_context& context, std::function<void(Stream)> serve)
    : serve_(std::move(serve)), acceptor_(context), retry_(context) {}

Acceptor::~Acceptor() {
  if (acceptor_.is_open()) descriptors::forget(acceptor_.native_handle());
}

Status Acceptor::open(const Endpoint& address, std::string* why) {
  endpoint_ = address;
  Socket socket;
  if (const Status status = Socket::listen(&endpoint_, &socket, why); status != Status::ok) return status;
  asio::error_code error;
  acceptor_.assign(endpoint_.ipv6 ? tcp::v6() : tcp::v4(), socket.descriptor(), error);
  if (error) {
    *why = "cannot wait for connections to " + endpoint_.text() + ": " + error.message();
    return Status::unsupported;
  }
  socket.release();
  asio::post(acceptor_.get_executor(), [this] { accept_when_ready(); });
  return Status::ok;
}

// A listener that once failed to wait would be deaf for good, so the helper thread stays here until there is memory.
template <typename Wait>
void Acceptor::persist(Wait wait) {
  for (;;) {
    try {
      return wait();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void Acceptor::accept_when_ready() {
  persist([this] {
    acceptor_.async_wait(tcp::acceptor::wait_read, [this](const asio::error_code& error) {
      if (!error) accept_waiting();
    });
  });
}

// Accepts by hand, because asio's own accept leaves descriptors open across exec.
void Acceptor::accept_waiting() {
  for (;;) {
    Socket accepted(Socket::accept(acceptor_.native_handle()));
    if (accepted.descriptor() >= 0) {
      serve(std::move(accepted));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return accept_when_ready();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return retry_later();
    }
  }
}

// Out of descriptors or memory: the waiting ranks stay in the backlog.
void Acceptor::retry_later() {
  retry_.expires_after(std::chrono::milliseconds(100));
  persist([this] {
    retry_.async_wait([this](const asio::error_code& error) {
      if (!error) accept_waiting();
    });
  });
}

void Acceptor::serve(Socket accepted) {
  try {
    Stream stream(acceptor_.get_executor());
    if (stream.adopt(std::move(accepted), endpoint_.ipv6)) serve_(std::move(stream));
  } catch (const std::bad_alloc&) {
    // This connection is lost; the next one may find memory.
  }
}

}  // namespace zipccl::switcher
