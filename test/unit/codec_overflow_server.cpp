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
  const Key key = {sender.rank, outbox.sequence, outbox.chunk, outbox.receiver};
  if (outbox.offset == 0) {
    records_[key] = {outbox.record_bytes, {}};
  }
  Held& held = records_[key];
  const auto [open, is_new] = open_.try_emplace(sender.rank, key);
  const bool in_turn = is_new || open->second == key;  // no other record's pieces in between
  const bool follows = in_turn && posted == outbox.taken + 1 && outbox.offset == held.bytes.size() &&
                       outbox.record_bytes == held.size && outbox.piece_bytes != 0 &&
                       outbox.piece_bytes <= held.size - outbox.offset;
  if (follows) {
    held.bytes.insert(held.bytes.end(), outbox.data(), outbox.data() + outbox.piece_bytes);
    if (held.bytes.size() == held.size) {
      ++drained;
      open_.erase(open);
    }
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
      whole.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key), held.bytes});
    }
  }
  return whole;
}

void OverflowServer::answer(const Receiver& receiver) {
  codec::Mailbox& mailbox = *receiver.mailbox;
  const std::uint64_t ticket = load_acquire(mailbox.ticket);
  const bool good = answered < good_answers;
  if (ticket == mailbox.answered || (hold_answers && !good)) {
    return;
  }
  if (mailbox.sender == lost_sender && !good) {
    mailbox.status = static_cast<std::int32_t>(Status::connection_lost);
  } else {
    const std::lock_guard lock(mutex_);
    const auto find = [&](std::uint32_t named) {
      return records_.find({mailbox.sender, mailbox.sequence, mailbox.chunk, named});
    };
    auto found = find(receiver.rank);
    found = found == records_.end() ? find(codec::all_receivers) : found;
    if (found == records_.end() || found->second.bytes.size() < found->second.size) {
      return;
    }
    const std::vector<std::byte>& record = found->second.bytes;
    const std::uint64_t bytes = std::min(receiver.capacity, record.size() - std::min(mailbox.offset, record.size()));
    std::memcpy(mailbox.data(), record.data() + (bytes == 0 ? 0 : mailbox.offset), bytes);
    mailbox.status = static_cast<std::int32_t>(Status::ok);
    mailbox.record_bytes = record.size() + (good ? 0 : wrong_record.load());
    mailbox.piece_bytes = bytes + (good ? 0 : wrong_piece.load());
  }
  ++answered;
  store_release(mailbox.answered, ticket);
}

}  // namespace zipccl::test
