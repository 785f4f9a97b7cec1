#include "test/standin/transport.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "test/standin/collectives.hpp"
#include "test/standin/communicator.hpp"

namespace standin {
namespace {

constexpr std::size_t largest_transfer = 1 << 20;  // bytes moved by one system call, so that lanes take turns
// A link that was late by this much catches up; what it leaves unused beyond is lost.
constexpr std::chrono::milliseconds link_slack(4);

std::chrono::nanoseconds time_for(std::size_t bytes, double bytes_per_second) {
  return std::chrono::nanoseconds(std::llround(1e9 * static_cast<double>(bytes) / bytes_per_second));
}

std::string peer_text(const Communicator& communicator, int peer) {
  return "rank " + std::to_string(communicator.rank()) + " and rank " + std::to_string(peer);
}

// One program on its way: the current step and what it waits for.
class Run {
 public:
  explicit Run(Program* program) : program_(program), communicator_(*program->communicator) {}
  ~Run() {
    if (!done_) finish();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  bool done() const { return done_; }

  // Moves what can move without waiting and goes from step to step.
  void advance() {
    try {
      while (!done_ && advance_step()) {
      }
    } catch (const Error& error) {
      communicator_.fail(error.code(), error.what());
      finish();
    }
  }

  // What to poll for until the next advance, and when to advance anyway.
  void wait_list(std::vector<pollfd>* polled, std::optional<Clock::time_point>* wake_at) const {
    polled->push_back({communicator_.wake().number(), POLLIN, 0});
    if (retry_at_ && (!*wake_at || *retry_at_ < **wake_at)) *wake_at = *retry_at_;
    for (const Wait& wait : waits_) polled->push_back({wait.connection, wait.events, 0});
  }

 private:
  struct Wait {
    int connection;
    short events;
  };

  // True if the step is complete and the next one may start at once.
  bool advance_step() {
    waits_.clear();
    retry_at_.reset();
    if (communicator_.stopped()) {
      finish();
      return false;
    }
    if (at_ == program_->steps.size()) {
      finish();
      return false;
    }
    Step& step = program_->steps[at_];
    const Clock::time_point now = Clock::now();
    if (!started_) started_ = now;
    if (now < *started_ + step.latency) {
      retry_at_ = *started_ + step.latency;
      return false;
    }
    // Receiving first: what arrives may be sent on in the same round.
    for (Lane& lane : step.lanes) receive(&lane);
    for (Lane& lane : step.lanes) send(&lane);
    for (Lane& lane : step.lanes) acknowledge(&lane);
    const bool complete = std::all_of(step.lanes.begin(), step.lanes.end(), [](const Lane& l) { return l.complete(); });
    if (!complete) {
      for (const Lane& lane : step.lanes) add_wait(lane);
      return false;
    }
    if (step.finish) step.finish();
    ++at_;
    started_.reset();
    return true;
  }

  void finish() {
    done_ = true;
    waits_.clear();
    retry_at_.reset();
    program_->done();
  }

  void receive(Lane* lane) {
    std::size_t room = largest_transfer;
    while (lane->received < lane->incoming.size()) {
      Message& message = lane->incoming[lane->received];
      if (message.complete()) {
        ++lane->received;
        continue;
      }
      if (room == 0) return;
      iovec pieces[2] = {};
      std::size_t piece_count = 0;
      if (message.done < sizeof(Header)) {
        pieces[piece_count++] = {reinterpret_cast<std::byte*>(&message.arrived) + message.done,
                                 sizeof(Header) - message.done};
      } else {
        const std::size_t begin = message.payload_done();
        pieces[piece_count++] = {message.data + begin, std::min(room, message.bytes - begin)};
      }
      msghdr header{};
      header.msg_iov = pieces;
      header.msg_iovlen = piece_count;
      const ssize_t moved = recvmsg(communicator_.connection(lane->peer), &header, 0);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == EAGAIN) return;
      if (moved <= 0) throw lost(lane->peer);
      const auto bytes = static_cast<std::size_t>(moved);
      message.done += bytes;
      room -= std::min(room, bytes);
      if (message.done == sizeof(Header) && message.arrived != message.header) throw mismatch(lane->peer, message);
    }
  }

  void send(Lane* lane) {
    std::size_t room = largest_transfer;
    while (lane->sent < lane->outgoing.size()) {
      Message& message = lane->outgoing[lane->sent];
      if (message.complete()) {
        ++lane->sent;
        continue;
      }
      if (room == 0) return;
      const Clock::time_point now = Clock::now();
      const std::size_t begin = message.payload_done();
      std::size_t payload = std::min(room, sendable(message) - begin);
      Clock::time_point retry{};  // add_wait asks again
      payload = std::min(payload, link().admit(now, rate(), &retry));
      iovec pieces[2] = {};
      std::size_t piece_count = 0;
      if (message.done < sizeof(Header)) {
        pieces[piece_count++] = {reinterpret_cast<std::byte*>(&message.header) + message.done,
                                 sizeof(Header) - message.done};
      }
      if (payload > 0) pieces[piece_count++] = {message.data + begin, payload};
      if (piece_count == 0) return;
      msghdr header{};
      header.msg_iov = pieces;
      header.msg_iovlen = piece_count;
      const ssize_t moved = sendmsg(communicator_.connection(lane->peer), &header, MSG_NOSIGNAL);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == EAGAIN) return;
      if (moved < 0) throw lost(lane->peer);
      message.done += static_cast<std::size_t>(moved);
      const std::size_t sent = message.payload_done() - begin;
      link().consume(now, rate(), sent);
      room -= std::min(room, sent);
    }
  }

  void acknowledge(Lane* lane) {
    std::array<std::byte, 64> bytes{};
    while (lane->owes_acknowledgement()) {
      const std::size_t owed = std::min(bytes.size(), lane->received - lane->acknowledgements_sent);
      const ssize_t moved = ::send(communicator_.acknowledgements(lane->peer), bytes.data(), owed, MSG_NOSIGNAL);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == EAGAIN) break;
      if (moved < 0) throw lost(lane->peer);
      lane->acknowledgements_sent += static_cast<std::size_t>(moved);
    }
    // No more than this step's: a later step's may be there already.
    while (lane->awaits_acknowledgement()) {
      const std::size_t awaited = std::min(bytes.size(), lane->sent - lane->acknowledgements_received);
      const ssize_t moved = recv(communicator_.acknowledgements(lane->peer), bytes.data(), awaited, 0);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == EAGAIN) break;
      if (moved <= 0) throw lost(lane->peer);
      lane->acknowledgements_received += static_cast<std::size_t>(moved);
    }
  }

  void add_wait(const Lane& lane) {
    short events = 0;
    if (lane.awaits_acknowledgement()) events |= POLLIN;
    if (lane.owes_acknowledgement()) events |= POLLOUT;
    if (events != 0) waits_.push_back({communicator_.acknowledgements(lane.peer), events});
    add_data_wait(lane);
  }

  void add_data_wait(const Lane& lane) {
    short events = 0;
    if (lane.received < lane.incoming.size()) events |= POLLIN;
    if (lane.sent < lane.outgoing.size()) {
      const Message& message = lane.outgoing[lane.sent];
      const bool has_data = message.done < sizeof(Header) || sendable(message) > message.payload_done();
      Clock::time_point retry{};
      if (has_data && link().admit(Clock::now(), rate(), &retry) > 0) {
        events |= POLLOUT;
      } else if (has_data) {
        if (!retry_at_ || retry < *retry_at_) retry_at_ = retry;
      }
    }
    // Hang-ups are always reported: a lane that waits only for its link or for data to forward is left out.
    if (events != 0) waits_.push_back({communicator_.connection(lane.peer), events});
  }

  static std::size_t sendable(const Message& message) {
    return message.source == nullptr ? message.bytes : message.source->payload_done();
  }

  Link& link() const { return link_of(communicator_.device()); }
  double rate() const { return communicator_.settings().bytes_per_second; }

  Error lost(int peer) const {
    return Error(ncclRemoteError, "the connection between " + peer_text(communicator_, peer) + " was lost");
  }

  Error mismatch(int peer, const Message& message) const {
    return Error(ncclInternalError, "rank " + std::to_string(communicator_.rank()) + " expects " +
                                        describe(message.header) + " from rank " + std::to_string(peer) +
                                        ", which sent " + describe(message.arrived));
  }

  Program* program_;
  Communicator& communicator_;
  std::size_t at_ = 0;
  std::optional<Clock::time_point> started_;
  std::optional<Clock::time_point> retry_at_;
  std::vector<Wait> waits_;
  bool done_ = false;
};

void wait_for_any(const std::vector<std::unique_ptr<Run>>& runs) {
  std::vector<pollfd> polled;
  std::optional<Clock::time_point> wake_at;
  for (const auto& run : runs) {
    if (!run->done()) run->wait_list(&polled, &wake_at);
  }
  timespec timeout{};
  if (wake_at) {
    const auto left = std::max(*wake_at - Clock::now(), Clock::duration::zero());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    timeout.tv_sec = seconds.count();
    timeout.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds).count();
  }
  ppoll(polled.data(), polled.size(), wake_at ? &timeout : nullptr, nullptr);  // whatever it says, all runs look again
}

}  // namespace

Lane& Step::lane(int peer) {
  for (Lane& lane : lanes) {
    if (lane.peer == peer) return lane;
  }
  lanes.emplace_back().peer = peer;
  return lanes.back();
}

void run_programs(std::vector<Program>* programs) {
  std::vector<std::unique_ptr<Run>> runs;
  for (Program& program : *programs) runs.push_back(std::make_unique<Run>(&program));
  while (true) {
    for (const auto& run : runs) {
      if (!run->done()) run->advance();
    }
    if (std::all_of(runs.begin(), runs.end(), [](const auto& run) { return run->done(); })) return;
    wait_for_any(runs);
  }
}

std::size_t Link::admit(Clock::time_point now, double bytes_per_second, Clock::time_point* retry) {
  if (bytes_per_second == 0) return largest_transfer;
  const std::lock_guard lock(mutex_);
  if (free_at_ > now) {
    *retry = free_at_;
    return 0;
  }
  const double per_millisecond = bytes_per_second / 1e3;
  return static_cast<std::size_t>(std::clamp(per_millisecond, 4096.0, static_cast<double>(largest_transfer)));
}

void Link::consume(Clock::time_point now, double bytes_per_second, std::size_t bytes) {
  if (bytes_per_second == 0) return;
  const std::lock_guard lock(mutex_);
  free_at_ = std::max(free_at_, now - link_slack) + time_for(bytes, bytes_per_second);
}

Link& link_of(int device) {
  static std::mutex mutex;
  static auto* const links = new std::map<int, Link>;  // never destroyed: threads may outlive static objects
  const std::lock_guard lock(mutex);
  return (*links)[device];
}

}  // namespace standin
