// A rank's end of a communicator: its connections, the order of its operations and its state.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "test/standin/error.hpp"
#include "test/standin/reduction.hpp"
#include "test/standin/rendezvous.hpp"
#include "test/standin/settings.hpp"
#include "test/standin/socket.hpp"
#include "test/standin/transport.hpp"

namespace standin {

class Communicator {
 public:
  // A communicator that is not connected yet: its asynchronous error is ncclInProgress. A negative device stands
  // for the number of lower ranks in the same process.
  Communicator(const Token& token, int rank, int rank_count, int device);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  void connect();                // returns when all ranks have entered
  void connect_in_background();  // for nonblocking communicators

  const Token& token() const { return token_; }  // the same on all ranks
  int rank() const { return rank_; }
  int rank_count() const { return rank_count_; }
  int device() const { return device_; }
  const Settings& settings() const { return settings_; }
  const WakeSignal& wake() const { return wake_; }
  int connection(int peer) const { return connections_[static_cast<std::size_t>(peer)].number(); }
  int acknowledgements(int peer) const { return acknowledgements_[static_cast<std::size_t>(peer)].number(); }
  std::uint32_t next_sequence() { return ++sequence_; }  // by the thread that launches

  // The token of a child, the same on all its ranks as long as they make the same children in the same order.
  Token child_token(const std::string& purpose);

  ncclResult_t async_error();
  std::string error_text();
  void require_ready();        // throws unless created, without error and not aborted
  void require_operational();  // also not finalized or revoked
  void require_open();         // throws if finalized: a graph may be launched after that

  // Order of operations: tickets are taken at launch, and a ticket's turn comes when all earlier ones have ended.
  std::uint64_t take_ticket();
  bool begin(std::uint64_t ticket);  // waits for the turn; false if the communicator has stopped
  void end(std::uint64_t ticket, bool began);

  void fail(ncclResult_t code, const std::string& text);  // stops; peers that wait for this rank learn of it
  void set_async_error(ncclResult_t code);
  bool stopped();

  void finalize();  // waits for all operations
  void abort();     // stops, and returns when no thread touches buffers or connections any more
  void revoke();
  void close();  // after the last operation: gives the connections back

  ReductionTable& reductions() { return reductions_; }
  void* add_registration();
  void remove_registration(void* handle);

 private:
  void stop_locked();

  const Token token_;
  const int rank_;
  const int rank_count_;
  int device_;
  const Settings settings_;
  WakeSignal wake_;
  std::vector<FileDescriptor> connections_;
  std::vector<FileDescriptor> acknowledgements_;  // a byte for every message; only with settings_.rendezvous
  std::uint32_t sequence_ = 0;
  ReductionTable reductions_;
  std::thread background_;

  std::mutex mutex_;
  std::condition_variable changed_;
  ncclResult_t async_error_ = ncclInProgress;
  std::string error_text_;
  bool stopped_ = false;
  bool finalized_ = false;
  bool revoked_ = false;
  std::uint64_t tickets_ = 0;      // taken
  std::uint64_t turn_ = 0;         // the ticket that may run
  std::uint64_t outstanding_ = 0;  // tickets not ended
  std::uint64_t running_ = 0;      // begun and not ended
  std::map<std::string, int> children_;
  std::set<void*> registrations_;
};

using CommunicatorPointer = std::shared_ptr<Communicator>;

// Handles. A handle is valid from add to remove; anything else is an ncclInvalidArgument.
ncclComm_t add_handle(CommunicatorPointer communicator);
CommunicatorPointer find_handle(ncclComm_t handle);
void remove_handle(ncclComm_t handle);

}  // namespace standin
