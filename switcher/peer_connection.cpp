#include "switcher/peer_connection.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <asio/buffer.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <new>
#include <utility>

namespace zipccl::switcher {
namespace {

// A record's memory grows with what has arrived: at first by this, then by doubling.
constexpr std::size_t first_payload_bytes = std::size_t{1} << 20;

std::size_t payload_bytes(const Parcel& parcel) { return parcel.payload == nullptr ? 0 : parcel.payload->size(); }

void finish(const Parcel& parcel, std::uint64_t written) {
  if (parcel.owner != nullptr) parcel.owner->sent(parcel.header.receiver, payload_bytes(parcel), written);
}

}  // namespace

PeerConnection::PeerConnection(Owner* owner, Stream stream)
    : owner_(owner),
      stream_(std::move(stream)),
      descriptor_(stream_.descriptor()),
      deadline_(stream_.socket().get_executor()) {}

template <typename Step>
auto PeerConnection::handler(Step step) {
  return [self = shared_from_this(), step](const asio::error_code& error, std::size_t bytes = 0) {
    try {
      if (error) return self->close(error.message());
      if (!self->lost_) step(*self, bytes);  // closed after the operation had succeeded; written on this thread only
    } catch (const std::bad_alloc&) {
      self->close("out of memory");
    }
  };
}

void PeerConnection::dial(const PeerAddress& peer, const Greeting& greeting, std::chrono::milliseconds limit) {
  process_ = peer.process;
  dialled_ = true;
  greeting_ = encode_greeting(greeting);
  close_after(limit);
  stream_.socket().async_connect(asio_endpoint(peer.endpoint),
                                 handler([](PeerConnection& self, std::size_t) { self.on_dialled(); }));
}

void PeerConnection::on_dialled() {
  deadline_.expires_at(asio::steady_timer::time_point::max());
  written_ = greeting_bytes;
  asio::async_write(stream_.socket(), asio::buffer(greeting_),
                    handler([](PeerConnection& self, std::size_t) { self.write_next(); }));
  read_header();
  established_ = true;  // from here on; without memory for the above the dial has failed
  owner_->on_connected(shared_from_this());
}

void PeerConnection::serve(std::chrono::milliseconds limit) {
  close_after(limit);
  input_.resize(greeting_bytes);
  asio::async_read(stream_.socket(), asio::buffer(input_),
                   handler([](PeerConnection& self, std::size_t) { self.on_served(); }));
}

void PeerConnection::on_served() {
  const auto greeting = decode_greeting(input_);
  if (!greeting) return close("sent no greeting");
  process_ = greeting->sender;
  established_ = true;
  deadline_.expires_at(asio::steady_timer::time_point::max());
  if (!owner_->on_greeting(shared_from_this(), *greeting)) {
    established_ = false;
    return close("is not entitled to connect");
  }
  write_next();
  read_header();
}

void PeerConnection::read_header() {
  input_.resize(peer_header_bytes);
  asio::async_read(stream_.socket(), asio::buffer(input_),
                   handler([](PeerConnection& self, std::size_t) { self.on_header(); }));
}

void PeerConnection::on_header() {
  const auto header = decode_peer_header(input_);
  if (!header) return close("it broke the protocol");
  header_ = *header;
  payload_.clear();
  filled_ = 0;
  on_payload();
}

void PeerConnection::on_payload() {
  if (filled_ == header_.payload_bytes) {
    return on_frame(std::make_shared<const std::vector<std::byte>>(std::exchange(payload_, {})));
  }
  if (filled_ == payload_.size()) {
    const auto room = std::min<std::size_t>(header_.payload_bytes, std::max(first_payload_bytes, 2 * filled_));
    payload_.reserve(room);  // exactly, where resize() alone would take more
    payload_.resize(room);
  }
  read_payload();
}

void PeerConnection::read_payload() {
  stream_.socket().async_read_some(asio::buffer(payload_.data() + filled_, payload_.size() - filled_),
                                   handler([](PeerConnection& self, std::size_t bytes) {
                                     self.filled_ += bytes;
                                     self.on_payload();
                                   }));
}

void PeerConnection::on_frame(Bytes payload) {
  if (!owner_->on_frame(shared_from_this(), header_, std::move(payload))) return close("it broke the protocol");
  read_header();
}

Status PeerConnection::send(Parcel parcel) {
  try {
    const std::lock_guard lock(mutex_);
    if (lost_ || mute_) return Status::connection_lost;
    queue_.push_back(std::move(parcel));
    if (writing_) return Status::ok;
    try {
      asio::post(stream_.socket().get_executor(), [self = shared_from_this()] { self->write_next(); });
    } catch (...) {
      queue_.pop_back();
      throw;
    }
    writing_ = true;
    return Status::ok;
  } catch (...) {
    return Status::out_of_memory;
  }
}

void PeerConnection::write_next() {
  {
    const std::lock_guard lock(mutex_);
    writing_ = !lost_ && !queue_.empty();
    if (!writing_) return;
    current_ = std::move(queue_.front());
    queue_.pop_front();
  }
  current_header_ = encode_peer_header(current_.header);
  const void* payload = current_.payload == nullptr ? nullptr : current_.payload->data();
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(current_header_),
                                                     asio::const_buffer(payload, payload_bytes(current_))};
  try {
    asio::async_write(stream_.socket(), buffers,
                      [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                        self->on_written(!error);
                        error ? self->stop_writing() : self->write_next();
                      });
  } catch (const std::bad_alloc&) {
    on_written(false);
    close("out of memory");
  }
}

void PeerConnection::on_written(bool taken) {
  std::uint64_t written = 0;
  if (taken) {
    const std::lock_guard lock(mutex_);
    written = written_ += peer_header_bytes + payload_bytes(current_);
  }
  finish(current_, written);
  current_ = {};
}

// A peer that has ended takes nothing more, but may have sent before. Reading that meets the end, which closes.
void PeerConnection::stop_writing() {
  std::deque<Parcel> dropped;
  {
    const std::lock_guard lock(mutex_);
    mute_ = true;
    dropped.swap(queue_);
  }
  for (const Parcel& parcel : dropped) finish(parcel, 0);
}

// The kernel counts the bytes that it holds; what it was given since the last completion only makes the result smaller.
std::uint64_t PeerConnection::acknowledged() const {
  const std::lock_guard lock(mutex_);
  if (lost_ || mute_) return ~std::uint64_t{0};
  int unacknowledged = 0;
  if (ioctl(descriptor_, SIOCOUTQ, &unacknowledged) != 0) return written_;
  return written_ - std::min(written_, static_cast<std::uint64_t>(unacknowledged));
}

void PeerConnection::close_after(std::chrono::milliseconds limit) {
  deadline_.expires_after(limit);
  deadline_.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error && self->deadline_.expiry() <= asio::steady_timer::clock_type::now()) self->close("timed out");
  });
}

void PeerConnection::close(const std::string& reason) {
  std::deque<Parcel> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(lost_, true)) return;
    dropped.swap(queue_);
    stream_.close();
  }
  deadline_.expires_at(asio::steady_timer::time_point::max());
  for (const Parcel& parcel : dropped) finish(parcel, 0);
  if (dialled_ || established_) owner_->on_lost(shared_from_this(), reason);
}

}  // namespace zipccl::switcher
