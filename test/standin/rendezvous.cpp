#include "test/standin/rendezvous.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "test/standin/error.hpp"

namespace standin {
namespace {

// How long a rank waits for another that it knows must come: rank 0 first, later those that have said hello.
constexpr std::chrono::seconds patience(120);

struct Hello {
  std::int32_t rank;
  std::int32_t rank_count;
  Card card;
};

enum class Verdict : std::int32_t { complete, ranks_differ, rank_left };

[[noreturn]] void fail(Verdict verdict) {
  if (verdict == Verdict::ranks_differ) {
    throw Error(ncclInvalidUsage, "ranks differ in the number of ranks, or one entered twice");
  }
  throw Error(ncclRemoteError, "a rank left while the communicator was created");
}

// Rank 0: waits for everybody, meanwhile for anybody's end.
Verdict gather(const FileDescriptor& listener, int rank_count, const WakeSignal& wake, Meeting* meeting) {
  std::vector<FileDescriptor>& sockets = meeting->connections;
  for (int missing = rank_count - 1; missing > 0; --missing) {
    std::vector<pollfd> polled = {{wake.number(), POLLIN, 0}, {listener.number(), POLLIN, 0}};
    for (const FileDescriptor& socket : sockets) {
      if (socket.valid()) polled.push_back({socket.number(), POLLIN, 0});
    }
    while (poll(polled.data(), polled.size(), -1) < 0) {
      if (errno != EINTR) throw system_error("poll");
    }
    if (polled[0].revents != 0) throw Error(ncclInternalError, "the communicator was aborted");
    if (polled[1].revents == 0) return Verdict::rank_left;  // nobody speaks twice before the verdict
    FileDescriptor socket = accept_from(listener, wake, Clock::now() + patience);
    Hello hello{};
    receive_all(socket, &hello, sizeof(hello), wake);
    const auto rank = static_cast<std::size_t>(hello.rank);
    if (hello.rank_count != rank_count || hello.rank <= 0 || hello.rank >= rank_count || sockets[rank].valid()) {
      const Verdict verdict = Verdict::ranks_differ;
      send_all(socket, &verdict, sizeof(verdict), wake);
      return verdict;
    }
    meeting->cards[rank] = hello.card;
    sockets[rank] = std::move(socket);
  }
  return Verdict::complete;
}

void lead(const Token& token, int rank_count, const WakeSignal& wake, Meeting* meeting) {
  Verdict verdict{};
  {
    const FileDescriptor listener = listen_as(token, 0);
    verdict = gather(listener, rank_count, wake, meeting);
  }  // Closed before the verdict, so that nobody can enter a later meeting of this name here.
  for (const FileDescriptor& socket : meeting->connections) {
    if (!socket.valid()) continue;
    try {
      send_all(socket, &verdict, sizeof(verdict), wake);
      if (verdict == Verdict::complete) {
        send_all(socket, meeting->cards.data(), meeting->cards.size() * sizeof(Card), wake);
      }
    } catch (const Error&) {
      if (verdict == Verdict::complete) throw;  // else the others are still to be told
    }
  }
  if (verdict != Verdict::complete) fail(verdict);
}

void follow(const Token& token, const Hello& hello, bool connect_all, const WakeSignal& wake, Meeting* meeting) {
  std::vector<FileDescriptor>& sockets = meeting->connections;
  FileDescriptor listener;
  if (connect_all) listener = listen_as(token, hello.rank);
  sockets[0] = connect_to(token, 0, wake, Clock::now() + patience);
  send_all(sockets[0], &hello, sizeof(hello), wake);
  Verdict verdict{};
  receive_all(sockets[0], &verdict, sizeof(verdict), wake);
  if (verdict != Verdict::complete) fail(verdict);
  receive_all(sockets[0], meeting->cards.data(), meeting->cards.size() * sizeof(Card), wake);
  if (!connect_all) return;

  for (int peer = 1; peer < hello.rank; ++peer) {
    FileDescriptor& socket = sockets[static_cast<std::size_t>(peer)];
    socket = connect_to(token, peer, wake, Clock::now() + patience);
    send_all(socket, &hello.rank, sizeof(hello.rank), wake);
  }
  for (int missing = hello.rank_count - 1 - hello.rank; missing > 0; --missing) {
    FileDescriptor socket = accept_from(listener, wake, Clock::now() + patience);
    std::int32_t peer = 0;
    receive_all(socket, &peer, sizeof(peer), wake);
    if (peer <= hello.rank || peer >= hello.rank_count) throw Error(ncclInternalError, "a stranger connected");
    sockets[static_cast<std::size_t>(peer)] = std::move(socket);
  }
}

}  // namespace

Meeting meet(const Token& token, int rank, int rank_count, const Card& card, bool connect_all, const WakeSignal& wake) {
  Meeting meeting;
  meeting.cards.resize(static_cast<std::size_t>(rank_count));
  meeting.connections.resize(static_cast<std::size_t>(rank_count));
  meeting.cards[static_cast<std::size_t>(rank)] = card;
  if (rank_count > 1) {
    if (rank == 0) {
      lead(token, rank_count, wake, &meeting);
    } else {
      follow(token, Hello{rank, rank_count, card}, connect_all, wake, &meeting);
    }
  }
  if (!connect_all) meeting.connections.clear();
  return meeting;
}

}  // namespace standin
