#include "switcher/listener.hpp"

#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <atomic>
#include <deque>
#include <list>
#include <new>
#include <optional>
#include <utility>

#include "switcher/acceptor.hpp"
#include "switcher/agreements.hpp"
#include "switcher/introductions.hpp"
#include "switcher/text.hpp"

namespace zipccl::switcher {
namespace {

using asio::ip::tcp;

class Connection;
using Strangers = std::list<std::shared_ptr<Connection>>;

// What the connections of one listener share. Used on the helper thread only, but for issuing stamps.
struct Shared {
  explicit Shared(const Limits& own) : limits(own) {}
  const Limits limits;
  Agreements agreements;
  Introductions introductions;
  Strangers strangers;
  std::atomic<bool> deciding = false;  // neither open nor pending
};

// stranger -> member (hello accepted) -> connecting (verdict compressed) -> closing (answered or refused, until the
// peer has closed) -> closed
class Connection final : public Participant, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared* shared, Stream stream)
      : shared_(shared), stream_(std::move(stream)), deadline_(stream_.socket().get_executor()) {}

  void start() {
    place_ = shared_->strangers.insert(shared_->strangers.end(), shared_from_this());
    if (shared_->strangers.size() > max_strangers) shared_->strangers.front()->close();
    after(shared_->limits.stranger, &Connection::close);
    read(frame_header_bytes + hello_prefix_bytes, &Connection::on_prefix);
  }

  void answer(const std::shared_ptr<const WireBytes>& frame, More more) override {
    if (more == More::expected && phase_ == Phase::member) {
      after(shared_->limits.introduction, &Connection::on_late);
      phase_ = Phase::connecting;
    } else if (more == More::none) {
      no_deadline();
      phase_ = Phase::closing;
    }
    write(frame);
  }

  void move(std::uint64_t child, const Place& place) override {
    nonce_ = child;
    rank_ = place.rank;
    write(std::make_shared<const WireBytes>(encode_place(place)));
  }

 private:
  using Step = void (Connection::*)();
  enum class Phase { stranger, member, connecting, closing };

  // Of a handler. Whoever comes to an end tells those who count on the rank, also for want of memory.
  template <typename Action>
  void attempt(Action action) {
    try {
      action();
    } catch (const std::bad_alloc&) {
      lose("met a root without memory");
    }
  }

  void read(std::size_t bytes, Step next) {
    buffer_.resize(bytes);
    asio::async_read(stream_.socket(), asio::buffer(buffer_),
                     [self = shared_from_this(), next](const asio::error_code& error, std::size_t) {
                       if (error) {
                         self->lose();
                       } else {
                         self->attempt([&] { (self.get()->*next)(); });
                       }
                     });
  }

  void on_prefix() {
    const ByteView bytes(buffer_);
    const auto header = decode_frame_header(bytes.first(frame_header_bytes));
    const auto prefix = decode_hello_prefix(bytes.subspan(frame_header_bytes));
    const bool child = header && header->type == MessageType::child;
    const std::uint32_t checked_bytes = hello_prefix_bytes + (child ? descent_bytes : 0);
    if (!header || !prefix || (header->type != MessageType::hello && !child) || header->body_bytes < checked_bytes) {
      return close();
    }
    prefix_ = *prefix;
    nonce_ = prefix_.ticket.nonce;
    rank_ = prefix_.rank;
    rest_bytes_ = header->body_bytes - checked_bytes;
    child ? read(descent_bytes, &Connection::on_descent) : on_entitlement();
  }

  void on_descent() {
    const auto descent = decode_descent(buffer_);
    if (!descent) return close();
    descent_ = *descent;
    on_entitlement();
  }

  void on_entitlement() {
    const std::string refusal = shared_->agreements.check(prefix_.ticket, descent_);
    if (!refusal.empty()) return refuse(refusal);
    if (prefix_.protocol != protocol_version) {
      return object(rank_name(prefix_.rank) + " speaks session protocol " + std::to_string(prefix_.protocol) +
                    ", the root " + std::to_string(protocol_version));
    }
    read(rest_bytes_, &Connection::on_hello);
  }

  void on_hello() {
    auto hello = decode_hello(prefix_, descent_, buffer_);
    if (!hello) return object(rank_name(prefix_.rank) + " sent a malformed hello");
    const std::string refusal = shared_->agreements.join(prefix_.ticket, descent_, std::move(*hello), weak_from_this());
    if (!refusal.empty()) return refuse(refusal);
    phase_ = Phase::member;
    no_stranger();
    no_deadline();
    // Nothing was sent on this connection, so its send buffer has room for a frame of five bytes.
    const WireBytes acknowledgement = encode_signal(MessageType::acknowledge);
    asio::error_code error;
    if (stream_.socket().write_some(asio::buffer(acknowledgement), error) != acknowledgement.size()) return lose();
    read(frame_header_bytes, &Connection::on_header);
  }

  void on_header() {
    const auto header = decode_frame_header(buffer_);
    if (phase_ == Phase::closing) return drain();  // its message crossed the answer
    if (!header) return lose(nonsense);
    type_ = header->type;
    read(header->body_bytes, &Connection::on_message);
  }

  void on_message() {
    if (phase_ == Phase::closing) return drain();
    if (!accept_message()) return lose(type_ == MessageType::withdraw ? "withdrew, its NCCL init failed" : nonsense);
    read(frame_header_bytes, &Connection::on_header);
  }

  bool accept_message() {
    if (type_ == MessageType::ask) {
      if (phase_ == Phase::connecting) return true;  // its question crossed the verdict
      shared_->deciding = true;
      try {
        for (Agreed& agreed : shared_->agreements.decide(nonce_, rank_)) {
          shared_->introductions.begin(agreed.nonce, std::move(agreed.participants));
        }
      } catch (...) {
        shared_->deciding = false;  // or the process would never seem free to end
        throw;
      }
      shared_->deciding = false;
      return true;
    }
    if (phase_ != Phase::connecting) return false;
    if (type_ == MessageType::enter) {
      const auto address = decode_enter(buffer_);
      return address && shared_->introductions.enter(nonce_, rank_, *address);
    }
    if (type_ != MessageType::report) return false;
    const auto failure = decode_text(buffer_);
    return failure && shared_->introductions.report(nonce_, rank_, *failure);
  }

  void on_late() { shared_->introductions.expire(nonce_); }

  void object(const std::string& reason) {
    shared_->agreements.object(nonce_, reason);
    refuse(reason);
  }

  void refuse(const std::string& text) {
    answer(std::make_shared<const WireBytes>(encode_text(MessageType::refuse, text)), More::none);
    drain();
  }

  void write(const std::shared_ptr<const WireBytes>& frame) {
    outgoing_.push_back(frame);
    if (outgoing_.size() == 1) write_next();
  }

  // After the last frame the peer gets the limit's time to read it and close, for a close here would discard what it
  // has not read while unread bytes of its own are left.
  void write_next() {
    asio::async_write(stream_.socket(), asio::buffer(*outgoing_.front()),
                      [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                        if (error) return self->lose();
                        self->outgoing_.pop_front();
                        if (!self->outgoing_.empty()) return self->attempt([&] { self->write_next(); });
                        if (self->phase_ == Phase::closing) self->finish();
                      });
  }

  void finish() {
    asio::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    after(shared_->limits.stranger, &Connection::close);
  }

  void drain() {
    buffer_.resize(256);
    stream_.socket().async_read_some(asio::buffer(buffer_),
                                     [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                                       if (error) return self->close();
                                       self->drain();
                                     });
  }

  void lose(const char* reason = nullptr) {
    const Phase phase = std::exchange(phase_, Phase::closing);
    if (phase == Phase::member) {
      shared_->agreements.leave(nonce_, rank_, reason != nullptr ? reason : "lost its connection before the verdict");
    } else if (phase == Phase::connecting) {
      shared_->introductions.leave(nonce_, rank_, reason != nullptr ? reason : "left before all ranks were connected");
    }
    close();
  }

  void after(std::chrono::milliseconds limit, Step step) {
    deadline_.expires_after(limit);
    deadline_.async_wait([self = shared_from_this(), step](const asio::error_code& error) {
      if (!error && self->deadline_.expiry() <= asio::steady_timer::clock_type::now()) (self.get()->*step)();
    });
  }

  void close() {
    const auto alive = shared_from_this();
    no_stranger();
    no_deadline();
    stream_.close();
  }

  void no_stranger() {
    if (place_) shared_->strangers.erase(*std::exchange(place_, std::nullopt));
  }

  // Also revokes an expiry whose handler is queued already.
  void no_deadline() { deadline_.expires_at(asio::steady_timer::time_point::max()); }

  static constexpr const char* nonsense = "broke the session's protocol";

  Shared* shared_;
  Stream stream_;
  asio::steady_timer deadline_;
  WireBytes buffer_;
  HelloPrefix prefix_;
  Descent descent_;
  std::uint32_t rest_bytes_ = 0;           // of the hello
  std::uint64_t nonce_ = 0;                // of the communicator that it belongs to
  std::uint32_t rank_ = 0;                 // there
  MessageType type_ = MessageType::hello;  // of the message being read
  std::deque<std::shared_ptr<const WireBytes>> outgoing_;
  Phase phase_ = Phase::stranger;
  std::optional<Strangers::iterator> place_;  // while a stranger
};

class AsioListener final : public Listener {
 public:
  AsioListener(asio::io_context& context, const Limits& limits)
      : shared_(limits), acceptor_(context, [this](Stream stream) {
          std::make_shared<Connection>(&shared_, std::move(stream))->start();
        }) {}

  Status open(const Endpoint& address, std::string* why) { return acceptor_.open(address, why); }

  Status issue(Stamp* stamp) override {
    stamp->listener = acceptor_.endpoint();
    return shared_.agreements.issue(&stamp->ticket);
  }

  void admit_children(const Ticket& parent) override { shared_.agreements.admit_children(parent); }
  const Endpoint& endpoint() const override { return acceptor_.endpoint(); }
  bool awaited() const override {
    // In the order in which a child goes through them.
    return shared_.agreements.child_is_open() || shared_.deciding || shared_.introductions.pending() > 0;
  }

 private:
  Shared shared_;
  Acceptor acceptor_;
};

}  // namespace

Status Listener::open(HelperThread* thread, const Endpoint& address, const Limits& limits,
                      std::unique_ptr<Listener>* listener, std::string* why) {
  auto opened = std::make_unique<AsioListener>(thread->context(), limits);
  if (const Status status = opened->open(address, why); status != Status::ok) return status;
  *listener = std::move(opened);
  return Status::ok;
}

}  // namespace zipccl::switcher
