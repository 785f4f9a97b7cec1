// A listening socket on the helper thread.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <string>

#include "switcher/stream.hpp"

namespace zipccl::switcher {

class Acceptor {
 public:
  // `serve` is called on the helper thread for every connection.
  Acceptor(asio::io_context& context, std::function<void(Stream)> serve);
  ~Acceptor();

  // Listens on the address, at a port that the kernel chooses.
  Status open(const Endpoint& address, std::string* why);
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  template <typename Wait>
  void persist(Wait wait);
  void accept_when_ready();
  void accept_waiting();
  void retry_later();
  void serve(Socket accepted);

  std::function<void(Stream)> serve_;
  Endpoint endpoint_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer retry_;
};

}  // namespace zipccl::switcher
