// A connection on the helper thread: an asio socket whose descriptor is remembered until it is closed.
#pragma once

#include <asio/ip/tcp.hpp>

#include "switcher/socket.hpp"

namespace zipccl::switcher {

asio::ip::tcp::endpoint asio_endpoint(const Endpoint& endpoint);

class Stream {
 public:
  explicit Stream(const asio::ip::tcp::socket::executor_type& executor) : socket_(executor) {}
  Stream(Stream&&) = default;
  Stream& operator=(Stream&&) = delete;
  ~Stream() { close(); }

  // Takes the socket; false if asio cannot wait for it.
  bool adopt(Socket socket, bool ipv6);
  void close();

  asio::ip::tcp::socket& socket() { return socket_; }
  int descriptor() { return socket_.native_handle(); }

 private:
  asio::ip::tcp::socket socket_;
};

}  // namespace zipccl::switcher
