#include "switcher/mesh.hpp"

#include <sys/random.h>

#include <algorithm>
#include <asio/post.hpp>
#include <iterator>
#include <new>

#include "switcher/text.hpp"

namespace zipccl::switcher {

class Mesh::MemberChannel final : public Channel {
 public:
  MemberChannel(Mesh* mesh, std::shared_ptr<Membership> member) : mesh_(mesh), member_(std::move(member)) {}
  ~MemberChannel() override {
    if (mesh_->thread_->foreign()) {
      static_cast<void>(new std::shared_ptr<Membership>(member_));  // a lock may be held here for ever
    } else {
      mesh_->close(member_);
    }
  }

  Status send(std::uint32_t receiver, const RecordKey& key, Bytes record) override {
    return member_->send(receiver, key, std::move(record));
  }
  Arrival find(const RecordKey& key, Bytes* record) override { return member_->find(key, record); }
  void drop(const RecordKey& key) override { member_->drop(key); }
  Status send_fence(std::uint32_t receiver, const FenceClass& fence_class, const FenceMessage& message) override {
    return member_->send_fence(receiver, fence_class, message);
  }
  bool next_fence_event(FenceEvent* event) override { return member_->next_fence_event(event); }
  bool flushed() const override { return member_->flushed(); }
  std::uint64_t buffered_bytes() const override { return member_->buffered_bytes(); }

 private:
  Mesh* const mesh_;
  const std::shared_ptr<Membership> member_;
};

Mesh::Mesh(HelperThread* thread, const Limits& limits, Pollers* pollers)
    : thread_(thread),
      limits_(limits),
      pollers_(pollers),
      acceptor_(thread->context(), [this](Stream stream) { accept(std::move(stream)); }) {}

Status Mesh::open(HelperThread* thread, const Endpoint& address, const Limits& limits, Pollers* pollers,
                  std::unique_ptr<Mesh>* mesh, std::string* why) {
  std::unique_ptr<Mesh> opened(new Mesh(thread, limits, pollers));
  if (getrandom(opened->process_.data(), opened->process_.size(), 0) != static_cast<ssize_t>(opened->process_.size())) {
    *why = "the kernel gave no random bytes for the process's identity";
    return Status::unsupported;
  }
  if (const Status status = opened->acceptor_.open(address, why); status != Status::ok) return status;
  *mesh = std::move(opened);
  return Status::ok;
}

Status Mesh::join(const Ticket& ticket, std::uint32_t rank, std::uint32_t rank_count, Membership::Joined joined,
                  std::shared_ptr<Membership>* member, std::unique_ptr<Channel>* channel, std::string* why) {
  const auto made = std::make_shared<Membership>(ticket, rank, rank_count, pollers_, std::move(joined));
  {
    const std::lock_guard lock(mutex_);
    if (!members_.emplace(MemberKey{ticket.nonce, rank}, made).second) {
      *why = "it has a channel already";
      return Status::invalid_argument;
    }
  }
  *channel = std::make_unique<MemberChannel>(this, made);
  *member = made;
  return Status::ok;
}

void Mesh::introduce(const std::shared_ptr<Membership>& member, std::vector<PeerAddress> peers) {
  asio::post(thread_->context(), [this, member, peers = std::move(peers)] {
    // Every rank starts with its neighbour, so that not all dial the same process at once.
    for (std::uint32_t step = 1; step < member->rank_count(); ++step) {
      const std::uint32_t rank = (member->rank() + step) % member->rank_count();
      reach(member, rank, peers[rank]);
    }
    member->bound();
    start_dials();
  });
}

void Mesh::reach(const std::shared_ptr<Membership>& member, std::uint32_t rank, const PeerAddress& peer) {
  if (peer.process == process_) {
    const auto local = find(member->ticket().nonce, rank);
    return local != nullptr ? member->bind_local(rank, local) : member->fail(rank_name(rank) + " left");
  }
  if (const auto connection = connections_.find(peer.process); connection != connections_.end()) {
    return member->bind(rank, connection->second);
  }
  const auto [absent, added] = absent_.try_emplace(peer.process);
  try {
    absent->second.address = peer;
    absent->second.waiters.push_back({member, rank});
    if (added && peer.process < process_) to_dial_.push_back(peer.process);
  } catch (...) {
    if (added) absent_.erase(absent);  // or nobody would ever dial
    throw;
  }
}

void Mesh::start_dials() {
  while (dialling_ < max_dials && !to_dial_.empty()) {
    const auto absent = absent_.find(to_dial_.front());
    to_dial_.pop_front();
    std::shared_ptr<Membership> member;
    for (const Waiter& waiter : absent->second.waiters) {
      if ((member = waiter.member.lock()) != nullptr) break;
    }
    if (member != nullptr) {
      try {
        dial(absent->second, member->ticket());
      } catch (const std::bad_alloc&) {
        fail_waiters(absent->first, "no memory for a connection");
      }
    } else {
      absent_.erase(absent);
    }
  }
}

void Mesh::dial(const Absent& absent, const Ticket& ticket) {
  const PeerAddress peer = absent.address;
  std::string why;
  Socket socket;
  Stream stream(thread_->context().get_executor());
  if (Socket::open(peer.endpoint, &socket, &why) != Status::ok) return fail_waiters(peer.process, why);
  if (!stream.adopt(std::move(socket), peer.endpoint.ipv6)) {
    return fail_waiters(peer.process, "cannot wait for a connection to " + peer.endpoint.text());
  }
  const auto connection = std::make_shared<PeerConnection>(this, std::move(stream));
  ++dialling_;
  try {
    connection->dial(peer, {protocol_version, ticket, process_, peer.process}, limits_.connect);
  } catch (const std::bad_alloc&) {
    connection->close("out of memory");
  }
}

void Mesh::fail_waiters(const ProcessId& process, const std::string& reason) {
  if (const auto node = absent_.extract(process); !node.empty()) fail(node.mapped(), reason);
}

void Mesh::fail(const Absent& absent, const std::string& reason) {
  for (const Waiter& waiter : absent.waiters) {
    if (const auto member = waiter.member.lock()) member->fail(reason + " of " + rank_name(waiter.peer));
  }
}

void Mesh::on_connected(const PeerConnection::Pointer& connection) {
  --dialling_;
  settle(connection);
  start_dials();
}

bool Mesh::on_greeting(const PeerConnection::Pointer& connection, const Greeting& greeting) {
  if (greeting.protocol != protocol_version || greeting.receiver != process_ || greeting.sender <= process_) {
    return false;
  }
  const auto known = members(greeting.ticket.nonce);
  if (known.empty() || !same_secret(known.front()->ticket(), greeting.ticket)) return false;
  // An older connection that the peer has given up, and this process has not noticed.
  if (const auto older = connections_.find(greeting.sender); older != connections_.end()) {
    const PeerConnection::Pointer replaced = older->second;
    replaced->close("it connected anew");
  }
  settle(connection);
  return true;
}

void Mesh::settle(const PeerConnection::Pointer& connection) {
  connections_[connection->process()] = connection;
  const auto node = absent_.extract(connection->process());
  if (node.empty()) return;
  for (const Waiter& waiter : node.mapped().waiters) {
    if (const auto member = waiter.member.lock()) member->bind(waiter.peer, connection);
  }
}

// A frame for a communicator that is closed here is discarded.
bool Mesh::on_frame(const PeerConnection::Pointer& connection, const PeerHeader& header, Bytes payload) {
  const auto member = find(header.nonce, header.receiver);
  return member == nullptr || member->accept(connection, header, std::move(payload));
}

void Mesh::on_lost(const PeerConnection::Pointer& connection, const std::string& reason) {
  const auto found = connections_.find(connection->process());
  if (found != connections_.end() && found->second == connection) connections_.erase(found);
  // Also of an established one: memory may have run out before its waiters were bound. Taken out first, as what cannot
  // be told now must not keep later communicators from dialling.
  const auto waiting = absent_.extract(connection->process());
  if (!connection->established()) --dialling_;
  if (!waiting.empty()) {
    fail(waiting.mapped(), "cannot connect to " + waiting.mapped().address.endpoint.text() + " (" + reason + ")");
  }
  if (!connection->established()) return start_dials();
  for (const auto& member : members()) member->lose(*connection, reason);
}

void Mesh::accept(Stream stream) {
  const auto connection = std::make_shared<PeerConnection>(this, std::move(stream));
  std::erase_if(strangers_, [](const auto& stranger) {
    const auto alive = stranger.lock();
    return alive == nullptr || alive->established();
  });
  strangers_.push_back(connection);
  if (strangers_.size() > max_strangers) {
    if (const auto oldest = strangers_.front().lock()) oldest->close("too many strangers");
  }
  connection->serve(limits_.stranger);
}

void Mesh::close(const std::shared_ptr<Membership>& member) {
  {
    const std::lock_guard lock(mutex_);
    members_.erase({member->ticket().nonce, member->rank()});
  }
  member->close();
  try {
    asio::post(thread_->context(), [this, member] { stop_waiting(member); });
  } catch (...) {
    // Its places in absent_ stay until the processes appear.
  }
}

void Mesh::stop_waiting(const std::shared_ptr<Membership>& member) {
  for (auto entry = absent_.begin(); entry != absent_.end();) {
    auto& [process, absent] = *entry;
    std::erase_if(absent.waiters, [&](const Waiter& waiter) { return waiter.member.lock() == member; });
    // Dials end by themselves.
    entry = absent.waiters.empty() && process > process_ ? absent_.erase(entry) : std::next(entry);
  }
}

std::shared_ptr<Membership> Mesh::find(std::uint64_t nonce, std::uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = members_.find({nonce, rank});
  return found == members_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Membership>> Mesh::members(std::uint64_t nonce) const {
  std::vector<std::shared_ptr<Membership>> found;
  const std::lock_guard lock(mutex_);
  for (auto entry = members_.lower_bound({nonce, 0}); entry != members_.end() && entry->first.first == nonce; ++entry) {
    found.push_back(entry->second);
  }
  return found;
}

std::vector<std::shared_ptr<Membership>> Mesh::members() const {
  std::vector<std::shared_ptr<Membership>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, member] : members_) found.push_back(member);
  return found;
}

}  // namespace zipccl::switcher
