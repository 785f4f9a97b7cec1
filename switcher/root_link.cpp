#include "switcher/root_link.hpp"

#include <asio/buffer.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <new>
#include <utility>
#include <vector>

#include "switcher/lineage.hpp"

namespace zipccl::switcher {

RootLink::RootLink(HelperThread* thread, Stream stream, const TcpSession::Identity& identity,
                   TcpSession::HomeSource home)
    : thread_(thread),
      stamp_(identity.stamp),
      home_source_(std::move(home)),
      stream_(std::move(stream)),
      place_(identity.place) {}

// Of a handler. Who waits for the root's answer holds the link, so a step that fails must say that none will come.
template <typename Step>
void RootLink::attempt(Step step) {
  try {
    step();
  } catch (const std::bad_alloc&) {
    lose();
  }
}

void RootLink::start() {
  asio::post(thread_->context(), [self = shared_from_this()] { self->attempt([&] { self->read_header(); }); });
}

void RootLink::say(MessageType signal) {
  asio::post(thread_->context(),
             [self = shared_from_this(), signal] { self->attempt([&] { self->write(encode_signal(signal)); }); });
}

Place RootLink::place() {
  const std::lock_guard lock(mutex_);
  return place_.value_or(Place{});
}

ParentPointer RootLink::parent() {
  const std::lock_guard lock(mutex_);
  return result_ && result_->agreed ? parent_ : nullptr;
}

Status RootLink::wait_for_verdict(Socket::Deadline deadline, Verdict* verdict) {
  std::unique_lock lock(mutex_);
  if (!heard_.wait_until(lock, deadline, [this] { return verdict_ || lost_; })) return Status::timed_out;
  if (!verdict_) return Status::connection_lost;
  *verdict = *verdict_;
  return Status::ok;
}

Status RootLink::wait_for_result(Socket::Deadline deadline, ConnectResult* result, std::unique_ptr<Channel>* channel) {
  std::unique_lock lock(mutex_);
  if (!heard_.wait_until(lock, deadline, [this] { return result_ || lost_; })) return Status::timed_out;
  if (!result_) return Status::connection_lost;
  *result = *result_;
  if (result->agreed) *channel = std::move(channel_);
  return Status::ok;
}

void RootLink::end(std::optional<MessageType> last_word) {
  std::unique_ptr<Channel> unused;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    unused = std::move(channel_);
  }
  asio::post(thread_->context(), [self = shared_from_this(), last_word] {
    self->closing_ = true;
    self->attempt([&] {
      if (last_word) self->write(encode_signal(*last_word));
      if (self->outgoing_.empty()) self->close();
    });
  });
}

void RootLink::read_header() {
  buffer_.resize(frame_header_bytes);
  asio::async_read(stream_.socket(), asio::buffer(buffer_),
                   [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                     error ? self->lose() : self->attempt([&] { self->on_header(); });
                   });
}

void RootLink::on_header() {
  const auto header = decode_frame_header(buffer_);
  if (!header) return lose();
  type_ = header->type;
  buffer_.resize(header->body_bytes);
  asio::async_read(stream_.socket(), asio::buffer(buffer_),
                   [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                     error ? self->lose() : self->attempt([&] { self->on_body(); });
                   });
}

void RootLink::on_body() {
  if (!accept_frame()) return lose();
  if (stream_.socket().is_open()) read_header();
}

bool RootLink::accept_frame() {
  switch (type_) {
    case MessageType::place:
      return accept_place();
    case MessageType::verdict:
      return accept_verdict();
    case MessageType::peers:
      return accept_peers();
    case MessageType::result:
      return accept_result();
    default:
      return false;
  }
}

bool RootLink::accept_place() {
  const auto place = decode_place(buffer_);
  const std::lock_guard lock(mutex_);
  if (!place || place_) return false;
  place_ = *place;
  return true;
}

bool RootLink::accept_verdict() {
  auto verdict = decode_verdict(buffer_);
  const std::size_t ranks = place_ ? place_->rank_count : 0;
  if (!verdict || verdict_ || (verdict->compressed && (ranks == 0 || verdict->links.size() != ranks * ranks))) {
    return false;
  }
  if (verdict->compressed) {
    enter();
  } else {
    close();
  }
  const std::lock_guard lock(mutex_);
  verdict_ = std::move(*verdict);
  heard_.notify_all();
  return true;
}

void RootLink::enter() {
  std::string failure;
  std::unique_ptr<Channel> channel;
  const auto joined = [thread = thread_, weak = weak_from_this()](const std::string& why) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    try {
      asio::post(thread->context(), [self, why] { self->attempt([&] { self->report(why); }); });
    } catch (...) {
      // No memory: the root's limit speaks for this rank.
    }
  };
  home_ = home_source_(stamp_.ticket, &failure);
  if (home_.mesh == nullptr || home_.mesh->join(stamp_.ticket, place_->rank, place_->rank_count, joined, &member_,
                                                &channel, &failure) != Status::ok) {
    return report(failure);
  }
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) channel_ = std::move(channel);
  }
  write(encode_enter({home_.mesh->process(), home_.mesh->endpoint(), home_.listener}));
}

bool RootLink::accept_peers() {
  auto peers = decode_peers(buffer_);
  if (member_ == nullptr || !peers || peers->size() != place_->rank_count ||
      (*peers)[place_->rank].process != home_.mesh->process()) {
    return false;
  }
  std::vector<Endpoint> listeners;
  for (const PeerAddress& peer : *peers) listeners.push_back(peer.listener);
  auto parent = std::make_shared<const Parent>(stamp_, std::move(listeners));
  {
    const std::lock_guard lock(mutex_);
    parent_ = std::move(parent);
  }
  home_.mesh->introduce(member_, std::move(*peers));
  return true;
}

bool RootLink::accept_result() {
  auto result = decode_result(buffer_);
  if (!result) return false;
  close();
  std::unique_ptr<Channel> unused;
  const std::lock_guard lock(mutex_);
  if (!verdict_ || !verdict_->compressed) return false;
  if (result->agreed && channel_ == nullptr && !ended_) return false;
  if (!result->agreed) unused = std::move(channel_);
  result_ = std::move(*result);
  heard_.notify_all();
  return true;
}

void RootLink::report(const std::string& failure) { write(encode_text(MessageType::report, failure)); }

void RootLink::write(WireBytes frame) {
  if (mute_ || !stream_.socket().is_open()) return;
  outgoing_.push_back(std::move(frame));
  if (outgoing_.size() == 1) write_next();
}

// A failure means that the answer is here already, or that the root is gone: reading will tell.
void RootLink::write_next() {
  asio::async_write(stream_.socket(), asio::buffer(outgoing_.front()),
                    [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                      self->outgoing_.pop_front();
                      self->mute_ = self->mute_ || error;
                      if (self->mute_) self->outgoing_.clear();
                      if (!self->outgoing_.empty()) return self->attempt([&] { self->write_next(); });
                      if (self->closing_) self->close();
                    });
}

void RootLink::close() {
  mute_ = true;
  stream_.close();
}

void RootLink::lose() {
  close();
  const std::lock_guard lock(mutex_);
  lost_ = true;
  heard_.notify_all();
}

}  // namespace zipccl::switcher
