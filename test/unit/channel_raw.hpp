// A rank that speaks in bytes, to break every rule of the session and of the peers' connections.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "switcher/peer_wire.hpp"
#include "switcher/stamp.hpp"
#include "test/unit/channel_fixture.hpp"

namespace zipccl::test {

// Session and listening socket of the rank, and one connection with a peer. Its identity is larger than those of real
// processes if it `dials`, else smaller.
class RawRank {
 public:
  enum class Role { dials, accepts };

  RawRank(const UniqueId& id, std::uint32_t rank, std::uint32_t rank_count, Role role)
      : stamp_(*switcher::read_stamp(id)), rank_(rank), role_(role) {
    process_.fill(role == Role::dials ? 0xff : 0);
    process_[14] = static_cast<std::uint8_t>(rank >> 8);
    process_[15] = static_cast<std::uint8_t>(rank);
    address_.address = {127, 0, 0, 1};
    std::string why;
    require(switcher::Socket::listen(&address_, &listening_, &why));
    require(switcher::Socket::connect(stamp_.listener, deadline(), &session_, &why));
    say(*switcher::encode_hello(stamp_.ticket, make_hello(rank, rank_count)));
    hear();
  }

  switcher::Ticket ticket() const { return stamp_.ticket; }
  Role role() const { return role_; }
  const switcher::ProcessId& process() const { return process_; }
  const std::vector<switcher::PeerAddress>& peers() const { return peers_; }

  // The session.
  void say(switcher::ByteView bytes) { static_cast<void>(session_.send(bytes, deadline())); }
  switcher::WireBytes hear() {
    switcher::WireBytes header(switcher::frame_header_bytes);
    require(session_.receive(header, deadline()));
    switcher::WireBytes body(switcher::decode_frame_header(header)->body_bytes);
    require(session_.receive(body, deadline()));
    return body;
  }
  void take_verdict() {
    say(switcher::encode_signal(switcher::MessageType::ask));
    if (hear().at(0) != 1) throw std::runtime_error("a native verdict");
  }
  void enter() { say(switcher::encode_enter({process_, address_, address_})); }
  void enter_elsewhere() {
    listening_ = switcher::Socket();
    enter();
  }
  void hear_peers() { peers_ = switcher::decode_peers(hear()).value(); }
  void report(const std::string& failure) { say(switcher::encode_text(switcher::MessageType::report, failure)); }
  switcher::ConnectResult hear_result() { return switcher::decode_result(hear()).value(); }

  // The peer.
  void dial(std::uint32_t peer) {
    std::string why;
    require(switcher::Socket::connect(peers_[peer].endpoint, deadline(), &link_, &why));
  }
  // Waits for the peer to dial, and returns its greeting.
  switcher::Greeting accept_peer() {
    int descriptor = -1;
    eventually([&] { return (descriptor = switcher::Socket::accept(listening_.descriptor())) >= 0; });
    link_ = switcher::Socket(descriptor);
    switcher::WireBytes bytes(switcher::greeting_bytes);
    require(link_.receive(bytes, deadline()));
    return switcher::decode_greeting(bytes).value();
  }
  switcher::Greeting greeting(std::uint32_t peer) const {
    return {switcher::protocol_version, stamp_.ticket, process_, peers_[peer].process};
  }
  void send(switcher::ByteView bytes) { static_cast<void>(link_.send(bytes, deadline())); }
  void send_frame(const switcher::PeerHeader& header, switcher::ByteView payload = {}) {
    send(switcher::encode_peer_header(header));
    send(payload);
  }
  switcher::PeerHeader header(switcher::PeerFrame type, std::uint32_t receiver, std::uint64_t payload_bytes) const {
    return {type, rank_, stamp_.ticket.nonce, receiver, 0, 0, payload_bytes};
  }
  void prove(std::uint32_t peer) {
    send_frame(header(switcher::PeerFrame::proof, peer, switcher::secret_bytes), stamp_.ticket.secret);
  }
  void send_record(std::uint32_t peer, const switcher::RecordKey& key, switcher::ByteView record) {
    auto own = header(switcher::PeerFrame::record, peer, record.size());
    own.sequence = key.sequence;
    own.chunk = key.chunk;
    send_frame(own, record);
  }
  // From verdict to result as a good rank, with the peer as the only one.
  void join(std::uint32_t peer) {
    take_verdict();
    enter();
    hear_peers();
    dial(peer);
    send(switcher::encode_greeting(greeting(peer)));
    prove(peer);
    switcher::WireBytes proof(switcher::peer_header_bytes + switcher::secret_bytes);
    require(link_.receive(proof, deadline()));
    report("");
    if (!hear_result().agreed) throw std::runtime_error("not agreed");
  }
  bool closed_within(std::chrono::milliseconds limit) {
    switcher::WireBytes bytes(1);
    const auto until = std::chrono::steady_clock::now() + limit;
    Status status = Status::ok;
    while (status == Status::ok) status = link_.receive(bytes, until);
    return status == Status::connection_lost;
  }
  switcher::Socket& link() { return link_; }
  switcher::Socket& session() { return session_; }

 private:
  static switcher::Socket::Deadline deadline() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }
  static void require(Status status) {
    if (status != Status::ok) throw std::runtime_error(describe(status));
  }

  switcher::Stamp stamp_;
  std::uint32_t rank_;
  Role role_;
  switcher::ProcessId process_{};
  switcher::Endpoint address_;
  switcher::Socket listening_;
  switcher::Socket session_;
  switcher::Socket link_;
  std::vector<switcher::PeerAddress> peers_;
};

}  // namespace zipccl::test
