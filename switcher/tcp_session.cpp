#include "switcher/tcp_session.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

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

TcpSession::TcpSession(Socket socket, const Identity& identity, const Limits& limits, MeshSource mesh)
    : limits_(limits), identity_(identity), mesh_(std::move(mesh)), socket_(std::move(socket)) {}

Status TcpSession::verdict(Verdict* verdict) {
  const std::lock_guard lock(mutex_);
  if (!outcome_) {
    try {
      outcome_ = ask();
    } catch (...) {
      outcome_ = Status::out_of_memory;
    }
    if (*outcome_ != Status::ok || !verdict_.compressed) socket_ = Socket();
  }
  if (*outcome_ != Status::ok) return *outcome_;
  try {
    *verdict = verdict_;
    return Status::ok;
  } catch (...) {
    return Status::out_of_memory;
  }
}

Status TcpSession::ask() {
  const auto deadline = answer_deadline();
  // The answer may be here already, from a root that has ended since, so a failure to ask proves nothing.
  static_cast<void>(socket_.send(encode_signal(MessageType::ask), deadline));
  Frame frame;
  if (const Status status = receive_frame(&socket_, deadline, &frame); status != Status::ok) return status;
  if (frame.type != MessageType::verdict) return Status::connection_lost;
  auto decoded = decode_verdict(frame.body);
  const std::size_t links = std::size_t{identity_.rank_count} * identity_.rank_count;
  if (!decoded || (decoded->compressed && decoded->links.size() != links)) return Status::connection_lost;
  verdict_ = std::move(*decoded);
  return Status::ok;
}

void TcpSession::withdraw() {
  const std::lock_guard lock(mutex_);
  if (outcome_) return;
  outcome_ = Status::connection_lost;
  try {
    // Best effort: the loss of the connection says nearly the same.
    static_cast<void>(socket_.send(encode_signal(MessageType::withdraw), answer_deadline()));
  } catch (...) {
  }
  socket_ = Socket();
}

Status TcpSession::connect(std::unique_ptr<Channel>* channel, bool* agreed, std::string* why) {
  const std::lock_guard lock(mutex_);
  *agreed = false;
  if (socket_.descriptor() < 0 || outcome_ != Status::ok) return Status::invalid_argument;
  Status status = Status::out_of_memory;
  try {
    std::unique_ptr<Channel> own;
    ConnectResult result;
    status = connect_ranks(&own, &result);
    if (status == Status::ok) {
      *agreed = result.agreed && own != nullptr;
      if (*agreed) *channel = std::move(own);
      *why = result.reason;
    } else {
      *why = "no answer from the root's process while the ranks connected";
    }
  } catch (...) {
    status = Status::out_of_memory;
  }
  socket_ = Socket();
  return status;
}

Status TcpSession::connect_ranks(std::unique_ptr<Channel>* channel, ConnectResult* result) {
  std::shared_ptr<Membership> member;
  std::string failure;
  Mesh* const mesh = mesh_(&failure);
  if (mesh != nullptr &&
      mesh->join(identity_.ticket, identity_.rank, identity_.rank_count, &member, channel, &failure) == Status::ok) {
    // A failure to send means that the result is here already, or that the root is gone.
    static_cast<void>(socket_.send(encode_enter(mesh->address()), answer_deadline()));
  } else {
    report(failure);
  }
  Frame frame;
  if (const Status status = receive_frame(&socket_, answer_deadline(), &frame); status != Status::ok) return status;
  if (frame.type == MessageType::peers && member != nullptr) {
    if (const Status status = join_peers(mesh, member, frame); status != Status::ok) return status;
    if (const Status status = receive_frame(&socket_, answer_deadline(), &frame); status != Status::ok) return status;
  }
  const auto decoded = decode_result(frame.body);
  if (frame.type != MessageType::result || !decoded) return Status::connection_lost;
  *result = *decoded;
  return Status::ok;
}

Status TcpSession::join_peers(Mesh* mesh, const std::shared_ptr<Membership>& member, const Frame& frame) {
  auto peers = decode_peers(frame.body);
  if (!peers || peers->size() != identity_.rank_count || (*peers)[identity_.rank].process != mesh->address().process) {
    return Status::connection_lost;
  }
  mesh->introduce(member, std::move(*peers));
  wait_for(*member);
  report(member->outcome());
  return Status::ok;
}

void TcpSession::report(const std::string& failure) {
  static_cast<void>(socket_.send(encode_text(MessageType::report, failure), answer_deadline()));
}

// Until joining has ended or the root has something to say; its own limit makes it say something.
void TcpSession::wait_for(const Membership& member) const {
  const auto deadline = answer_deadline();
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    std::array<pollfd, 2> entries = {{{member.completion(), POLLIN, 0}, {socket_.descriptor(), POLLIN, 0}}};
    if (left <= 0 ||
        poll(entries.data(), entries.size(), static_cast<int>(std::min<std::int64_t>(left, 1'000'000))) > 0 ||
        errno != EINTR) {
      return;
    }
  }
}

}  // namespace zipccl::switcher
