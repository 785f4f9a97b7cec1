#include "switcher/tcp_session.hpp"

#include <utility>

#include "switcher/root_link.hpp"

namespace zipccl::switcher {

Status receive_frame(Socket* socket, Socket::Deadline deadline, Frame* frame) {
  WireBytes header_bytes(frame_header_bytes);
  if (const Status status = socket->receive(header_bytes, deadline); status != Status::ok) return status;
  const auto header = decode_frame_header(header_bytes);
  if (!header) return Status::connection_lost;
  frame->type = header->type;
  frame->body.resize(header->body_bytes);
  return socket->receive(frame->body, deadline);
}

TcpSession::TcpSession(HelperThread* thread, const Limits& limits, std::shared_ptr<RootLink> link)
    : thread_(thread), limits_(limits), link_(std::move(link)) {}

Status TcpSession::open(HelperThread* thread, Socket socket, bool ipv6, const Identity& identity, const Limits& limits,
                        HomeSource home, std::unique_ptr<Session>* session) {
  Stream stream(thread->context().get_executor());
  if (!stream.adopt(std::move(socket), ipv6)) return Status::unsupported;
  auto link = std::make_shared<RootLink>(thread, std::move(stream), identity, std::move(home));
  std::unique_ptr<Session> opened(new TcpSession(thread, limits, link));
  link->start();
  *session = std::move(opened);
  return Status::ok;
}

TcpSession::~TcpSession() {
  if (thread_->foreign()) {
    static_cast<void>(new std::shared_ptr<RootLink>(link_));  // a lock may be held here for ever
    return;
  }
  try {
    link_->end(std::nullopt);
  } catch (...) {
    // No memory: the connection stays until the root closes it.
  }
}

Status TcpSession::verdict(Verdict* verdict) {
  const std::lock_guard lock(mutex_);
  try {
    if (!outcome_) {
      outcome_ = Status::out_of_memory;
      link_->say(MessageType::ask);
      outcome_ = link_->wait_for_verdict(std::chrono::steady_clock::now() + limits_.answer, &verdict_);
      if (*outcome_ != Status::ok) link_->end(std::nullopt);
    }
    if (*outcome_ == Status::ok) *verdict = verdict_;
    return *outcome_;
  } catch (...) {
    return Status::out_of_memory;
  }
}

Place TcpSession::place() { return link_->place(); }

ParentPointer TcpSession::parent() { return link_->parent(); }

Status TcpSession::connect(std::unique_ptr<Channel>* channel, bool* agreed, std::string* why) {
  const std::lock_guard lock(mutex_);
  *agreed = false;
  if (outcome_ != Status::ok || !verdict_.compressed || std::exchange(connected_, true)) {
    return Status::invalid_argument;
  }
  try {
    ConnectResult result;
    std::unique_ptr<Channel> own;
    const Status status = link_->wait_for_result(std::chrono::steady_clock::now() + limits_.answer, &result, &own);
    *why = status == Status::ok ? result.reason : "no answer from the root's process while the ranks connected";
    if (status == Status::ok) {
      *agreed = result.agreed;
      *channel = std::move(own);
    } else {
      link_->end(std::nullopt);
    }
    return status;
  } catch (...) {
    return Status::out_of_memory;
  }
}

void TcpSession::withdraw() {
  const std::lock_guard lock(mutex_);
  if (outcome_) return;
  outcome_ = Status::connection_lost;
  try {
    // Best effort: the loss of the connection says nearly the same.
    link_->end(MessageType::withdraw);
  } catch (...) {
  }
}

}  // namespace zipccl::switcher
