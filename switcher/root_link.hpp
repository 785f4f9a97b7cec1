// A rank's connection with the root after its hello, on the helper thread: hears the verdict, and if it is compressed
// connects this process with its peers, reports, and hears the result. The rank's own thread asks and waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "switcher/helper_thread.hpp"
#include "switcher/mesh.hpp"
#include "switcher/session.hpp"
#include "switcher/stream.hpp"
#include "switcher/tcp_session.hpp"
#include "switcher/wire.hpp"

namespace zipccl::switcher {

class RootLink : public std::enable_shared_from_this<RootLink> {
 public:
  RootLink(HelperThread* thread, Stream stream, const TcpSession::Identity& identity, TcpSession::HomeSource home);

  // Once, before all others; any thread.
  void start();

  // The rank's own thread. Waits end with connection_lost when the root is lost, timed_out at the deadline.
  void say(MessageType signal);
  Place place();           // zeros while it is not known
  ParentPointer parent();  // null until all agreed
  Status wait_for_verdict(Socket::Deadline deadline, Verdict* verdict);
  // The channel is null unless all agreed.
  Status wait_for_result(Socket::Deadline deadline, ConnectResult* result, std::unique_ptr<Channel>* channel);
  // Closes the connection, after `last_word` if there is one, and the channel unless it was handed out.
  void end(std::optional<MessageType> last_word);

 private:
  template <typename Step>
  void attempt(Step step);
  void read_header();
  void on_header();
  void on_body();
  bool accept_frame();
  bool accept_place();
  bool accept_verdict();
  bool accept_peers();
  bool accept_result();
  void enter();
  void report(const std::string& failure);
  void write(WireBytes frame);
  void write_next();
  void close();
  void lose();

  HelperThread* const thread_;
  const Stamp stamp_;
  const TcpSession::HomeSource home_source_;

  // On the helper thread only.
  Stream stream_;
  WireBytes buffer_;
  MessageType type_ = MessageType::refuse;  // of the frame being read
  std::deque<WireBytes> outgoing_;
  bool mute_ = false;     // a write failed
  bool closing_ = false;  // when all is written
  TcpSession::Home home_;
  std::shared_ptr<Membership> member_;

  std::mutex mutex_;  // guards what follows; only the helper thread changes place and verdict
  std::optional<Place> place_;
  std::condition_variable heard_;
  std::optional<Verdict> verdict_;
  ParentPointer parent_;  // once the peers are known
  std::optional<ConnectResult> result_;
  std::unique_ptr<Channel> channel_;
  bool lost_ = false;
  bool ended_ = false;
};

}  // namespace zipccl::switcher
