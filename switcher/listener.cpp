#include "switcher/listener.hpp"

#include <asio/buffer.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <list>
#include <new>
#include <optional>
#include <utility>

#include "switcher/agreements.hpp"
#include "switcher/text.hpp"

namespace zipccl::switcher {
namespace {

using asio::ip::tcp;

class Connection;
using Strangers = std::list<std::shared_ptr<Connection>>;

// What the connections of one listener share. Used on the helper thread only.
struct Shared {
  Limits limits;
  Agreements agreements;
  Strangers strangers;
};

// stranger -> member (hello accepted) -> closing (answered or refused, until the peer has closed) -> closed
class Connection final : public Participant, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared* shared, tcp::socket socket)
      : shared_(shared), socket_(std::move(socket)), deadline_(socket_.get_executor()) {}

  void start() {
    place_ = shared_->strangers.insert(shared_->strangers.end(), shared_from_this());
    if (shared_->strangers.size() > max_strangers) shared_->strangers.front()->close();
    close_after(shared_->limits.stranger);
    read(frame_header_bytes + hello_prefix_bytes, &Connection::on_prefix);
  }

  void answer(const std::shared_ptr<const Bytes>& frame) override {
    member_ = false;
    write_last(frame);
  }

 private:
  using Step = void (Connection::*)();

  void read(std::size_t bytes, Step next) {
    buffer_.resize(bytes);
    asio::async_read(socket_, asio::buffer(buffer_),
                     [self = shared_from_this(), next](const asio::error_code& error, std::size_t) {
                       if (error) {
                         self->lose();
                       } else {
                         (self.get()->*next)();
                       }
                     });
  }

  void on_prefix() {
    const ByteView bytes(buffer_);
    const auto header = decode_frame_header(bytes.first(frame_header_bytes));
    const auto prefix = decode_hello_prefix(bytes.subspan(frame_header_bytes));
    if (!header || !prefix || header->type != MessageType::hello || header->body_bytes < hello_prefix_bytes) {
      return close();
    }
    prefix_ = *prefix;
    const std::string refusal = shared_->agreements.check(prefix_.ticket);
    if (!refusal.empty()) return refuse(refusal);
    if (prefix_.protocol != protocol_version) {
      return object(rank_name(prefix_.rank) + " speaks session protocol " + std::to_string(prefix_.protocol) +
                    ", the root " + std::to_string(protocol_version));
    }
    read(header->body_bytes - hello_prefix_bytes, &Connection::on_hello);
  }

  void on_hello() {
    auto hello = decode_hello(prefix_, buffer_);
    if (!hello) return object(rank_name(prefix_.rank) + " sent a malformed hello");
    const std::string refusal = shared_->agreements.join(prefix_.ticket.nonce, std::move(*hello), weak_from_this());
    if (!refusal.empty()) return refuse(refusal);
    member_ = true;
    no_stranger();
    no_deadline();
    // Nothing was sent on this connection, so its send buffer has room for a frame of five bytes.
    const Bytes acknowledgement = encode_signal(MessageType::acknowledge);
    asio::error_code error;
    if (socket_.write_some(asio::buffer(acknowledgement), error) != acknowledgement.size()) return lose();
    read(frame_header_bytes, &Connection::on_message);
  }

  void on_message() {
    const auto header = decode_frame_header(buffer_);
    if (!member_) return drain();  // its question crossed the answer
    if (header && header->type == MessageType::ask) {
      shared_->agreements.decide(prefix_.ticket.nonce, prefix_.rank);
      return drain();
    }
    lose(header && header->type == MessageType::withdraw ? "withdrew, its NCCL init failed"
                                                         : "broke the session's protocol");
  }

  void object(const std::string& reason) {
    shared_->agreements.object(prefix_.ticket.nonce, reason);
    refuse(reason);
  }

  void refuse(const std::string& text) {
    write_last(std::make_shared<const Bytes>(encode_refuse(text)));
    drain();
  }

  // The peer gets the limit's time to read the frame and close, for a close here would discard what it has not read
  // while unread bytes of its own are left.
  void write_last(const std::shared_ptr<const Bytes>& frame) {
    asio::async_write(socket_, asio::buffer(*frame),
                      [self = shared_from_this(), frame](const asio::error_code& error, std::size_t) {
                        if (error) return self->close();
                        asio::error_code ignored;
                        self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
                        self->close_after(self->shared_->limits.stranger);
                      });
  }

  void drain() {
    buffer_.resize(256);
    socket_.async_read_some(asio::buffer(buffer_),
                            [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                              if (error) return self->close();
                              self->drain();
                            });
  }

  void lose(const char* reason = "lost its connection before the verdict") {
    if (std::exchange(member_, false)) shared_->agreements.leave(prefix_.ticket.nonce, prefix_.rank, reason);
    close();
  }

  void close_after(std::chrono::milliseconds limit) {
    deadline_.expires_after(limit);
    deadline_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error && self->deadline_.expiry() <= asio::steady_timer::clock_type::now()) self->close();
    });
  }

  void close() {
    const auto alive = shared_from_this();
    no_stranger();
    no_deadline();
    asio::error_code ignored;
    socket_.close(ignored);
  }

  void no_stranger() {
    if (place_) shared_->strangers.erase(*std::exchange(place_, std::nullopt));
  }

  // Also revokes an expiry whose handler is queued already.
  void no_deadline() { deadline_.expires_at(asio::steady_timer::time_point::max()); }

  Shared* shared_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  Bytes buffer_;
  HelloPrefix prefix_;
  bool member_ = false;
  std::optional<Strangers::iterator> place_;  // while a stranger
};

class AsioListener final : public Listener {
 public:
  AsioListener(asio::io_context& context, const Endpoint& endpoint, const Limits& limits)
      : endpoint_(endpoint), shared_{limits, {}, {}}, acceptor_(context), retry_(context) {}

  Status adopt(Socket socket, std::string* why) {
    asio::error_code error;
    acceptor_.assign(protocol(), socket.descriptor(), error);
    if (error) {
      *why = "cannot wait for connections to " + endpoint_.text() + ": " + error.message();
      return Status::unsupported;
    }
    socket.release();
    asio::post(acceptor_.get_executor(), [this] { accept_when_ready(); });
    return Status::ok;
  }

  Status issue(Stamp* stamp) override {
    stamp->listener = endpoint_;
    return shared_.agreements.issue(&stamp->ticket);
  }

 private:
  tcp protocol() const { return endpoint_.ipv6 ? tcp::v6() : tcp::v4(); }

  void accept_when_ready() {
    acceptor_.async_wait(tcp::acceptor::wait_read, [this](const asio::error_code& error) {
      if (!error) accept_waiting();
    });
  }

  // Accepts by hand, because asio's own accept leaves descriptors open across exec.
  void accept_waiting() {
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
  void retry_later() {
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([this](const asio::error_code& error) {
      if (!error) accept_waiting();
    });
  }

  void serve(Socket accepted) {
    try {
      tcp::socket socket(acceptor_.get_executor());
      asio::error_code error;
      socket.assign(protocol(), accepted.descriptor(), error);
      if (error) return;
      accepted.release();
      socket.non_blocking(true, error);
      std::make_shared<Connection>(&shared_, std::move(socket))->start();
    } catch (const std::bad_alloc&) {
      // This connection is lost; the next one may find memory.
    }
  }

  Endpoint endpoint_;
  Shared shared_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
};

}  // namespace

Status Listener::open(HelperThread* thread, const Endpoint& address, const Limits& limits,
                      std::unique_ptr<Listener>* listener, std::string* why) {
  Endpoint endpoint = address;
  Socket socket;
  if (const Status status = Socket::listen(&endpoint, &socket, why); status != Status::ok) return status;
  auto opened = std::make_unique<AsioListener>(thread->context(), endpoint, limits);
  if (const Status status = opened->adopt(std::move(socket), why); status != Status::ok) return status;
  *listener = std::move(opened);
  return Status::ok;
}

}  // namespace zipccl::switcher
