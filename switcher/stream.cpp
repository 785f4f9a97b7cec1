#include "switcher/stream.hpp"

#include <algorithm>
#include <asio/ip/address.hpp>

#include "switcher/descriptors.hpp"

namespace zipccl::switcher {

using asio::ip::tcp;

tcp::endpoint asio_endpoint(const Endpoint& endpoint) {
  if (endpoint.ipv6) return {asio::ip::address_v6(endpoint.address), endpoint.port};
  asio::ip::address_v4::bytes_type bytes;
  std::copy_n(endpoint.address.begin(), bytes.size(), bytes.begin());
  return {asio::ip::address_v4(bytes), endpoint.port};
}

bool Stream::adopt(Socket socket, bool ipv6) {
  asio::error_code error;
  socket_.assign(ipv6 ? tcp::v6() : tcp::v4(), socket.descriptor(), error);
  if (error) return false;
  socket.release();
  socket_.non_blocking(true, error);
  return !error;
}

void Stream::close() {
  if (!socket_.is_open()) return;
  asio::error_code ignored;
  if (descriptors::forget(socket_.native_handle())) {
    socket_.close(ignored);
  } else {
    socket_.release(ignored);
  }
}

}  // namespace zipccl::switcher
