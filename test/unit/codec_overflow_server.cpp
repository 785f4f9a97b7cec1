#include "test/unit/codec_overflow_server.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "codec/host_exchange.hpp"
#include "codec/status.hpp"

namespace zipccl::test {

using codec::load_acquire;
using codec::store_release;

OverflowServer::OverflowServer(std::vector<Sender> senders, std::vector<Receiver> receivers)
    : senders_(std::move(senders)), receivers_(std::move(receivers)), thread_([this] { serve(); }) {}

OverflowServer::~OverflowServer() {
  stop_ = true;
  thread_.join();
}

void OverflowServer::serve() {
  while (!stop_) {
    for (const Sender& sender : senders_) {
      drain(sender);
    }
    for (const Receiver& receiver : receivers_) {
      answer(receiver);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
}

void OverflowServer::drain(const Sender& sender) {
  codec::OverflowNotice& notice = *sender.notice;
  const std::uint64_t posted = load_acquire(notice.posted);
  if (posted == notice.drained || hold_drains) {
    return;
  }
  records_[{sender.rank, notice.sequence, notice.chunk}].assign(sender.buffer, sender.buffer + notice.bytes);
  ++drained;
  store_release(notice.drained, posted);
}

void OverflowServer::answer(const Receiver& receiver) {
  codec::Mailbox& mailbox = *receiver.mailbox;
  const std::uint64_t ticket = load_acquire(mailbox.ticket);
  if (ticket == mailbox.answered || hold_answers) {
    return;
  }
  if (mailbox.sender == lost_sender) {
    mailbox.status = static_cast<std::int32_t>(Status::connection_lost);
  } else {
    const auto found = records_.find({mailbox.sender, mailbox.sequence, mailbox.chunk});
    if (found == records_.end()) {
      return;
    }
    const std::vector<std::byte>& record = found->second;
    const std::uint64_t bytes = std::min(receiver.capacity, record.size() - std::min(mailbox.offset, record.size()));
    std::memcpy(mailbox.data(), record.data() + (bytes == 0 ? 0 : mailbox.offset), bytes);
    mailbox.status = static_cast<std::int32_t>(Status::ok);
    mailbox.record_bytes = record.size() + wrong_record;
    mailbox.piece_bytes = bytes + wrong_piece;
  }
  ++answered;
  store_release(mailbox.answered, ticket);
}

}  // namespace zipccl::test
