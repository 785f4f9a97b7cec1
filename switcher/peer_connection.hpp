// One connection between two processes, on the helper thread.
#pragma once

#include <asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "switcher/limits.hpp"
#include "switcher/membership.hpp"
#include "switcher/peer_wire.hpp"
#include "switcher/stream.hpp"

namespace zipccl::switcher {

class PeerConnection final : public PeerLink, public std::enable_shared_from_this<PeerConnection> {
 public:
  using Pointer = std::shared_ptr<PeerConnection>;

  // Called on the helper thread.
  class Owner {
   public:
    // A dialled connection stands; its greeting is on its way.
    virtual void on_connected(const Pointer& connection) = 0;
    // An accepted one was greeted. False: the greeting entitles to nothing.
    virtual bool on_greeting(const Pointer& connection, const Greeting& greeting) = 0;
    // False: the peer broke the protocol.
    virtual bool on_frame(const Pointer& connection, const PeerHeader& header, Bytes payload) = 0;
    // It is closed, for good. Not called for one that was never greeted.
    virtual void on_lost(const Pointer& connection, const std::string& reason) = 0;

   protected:
    ~Owner() = default;  // outlives the helper thread
  };

  PeerConnection(Owner* owner, Stream stream);

  // Exactly one of these, once, on the helper thread. Each has so much time for the connection or the greeting.
  void dial(const PeerAddress& peer, const Greeting& greeting, std::chrono::milliseconds limit);
  void serve(std::chrono::milliseconds limit);

  // The peer's process: known once dialled or greeted.
  const ProcessId& process() const { return process_; }
  bool established() const { return established_; }
  void close(const std::string& reason);

  // Any thread.
  Status send(Parcel parcel) override;
  std::uint64_t acknowledged() const override;

 private:
  void on_dialled();
  void on_served();
  void read_header();
  void on_header();
  void read_payload();
  void on_payload();
  void on_frame(Bytes payload);
  void write_next();
  void on_written(bool taken);
  void stop_writing();
  void close_after(std::chrono::milliseconds limit);

  // A completion handler that closes the connection on errors and when memory runs out.
  template <typename Step>
  auto handler(Step step);

  Owner* const owner_;
  mutable std::mutex mutex_;  // guards the stream's closing, lost_, mute_, queue_, writing_ and written_
  Stream stream_;
  const int descriptor_;
  asio::steady_timer deadline_;
  ProcessId process_{};
  bool dialled_ = false;
  bool established_ = false;

  WireBytes input_;  // greeting or header
  PeerHeader header_;
  std::vector<std::byte> payload_;
  std::size_t filled_ = 0;  // of payload_

  bool lost_ = false;
  bool mute_ = false;    // a write failed
  bool writing_ = true;  // until the connection is established
  std::deque<Parcel> queue_;
  std::uint64_t written_ = 0;
  WireBytes greeting_;
  Parcel current_;  // being written
  PeerHeaderBytes current_header_{};
};

}  // namespace zipccl::switcher
