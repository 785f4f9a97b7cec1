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
  codec::Outbox& outbox = *sender.outbox;
  const std::uint64_t posted = load_acquire(outbox.posted);
  if (posted == outbox.taken || hold_drains) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const Key key = {sender.rank, outbox.sequence, outbox.chunk};
  if (outbox.offset == 0) {
    records_[key] = {outbox.receiver, outbox.record_bytes, {}};
  }
  Held& held = records_[key];
  const bool follows = posted == outbox.taken + 1 && outbox.offset == held.bytes.size() &&
                       outbox.record_bytes == held.size && outbox.receiver == held.receiver &&
                       outbox.piece_bytes != 0 && outbox.piece_bytes <= held.size - outbox.offset;
  if (follows) {
    held.bytes.insert(held.bytes.end(), outbox.data(), outbox.data() + outbox.piece_bytes);
    drained += held.bytes.size() == held.size;
  } else {
    ++broken;
  }
  ++pieces;
  store_release(outbox.taken, posted);
}

std::vector<OverflowServer::Record> OverflowServer::records() const {
  const std::lock_guard lock(mutex_);
  std::vector<Record> whole;
  for (const auto& [key, held] : records_) {
    if (held.bytes.size() == held.size) {
      whole.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), held.receiver, held.bytes});
    }
  }
  return whole;
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
    const std::lock_guard lock(mutex_);
    const auto found = records_.find({mailbox.sender, mailbox.sequence, mailbox.chunk});
    if (found == records_.end() || found->second.bytes.size() < found->second.size ||
        (found->second.receiver != codec::all_receivers && found->second.receiver != receiver.rank)) {
      return;
    }
    const std::vector<std::byte>& record = found->second.bytes;
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
