// Local stream sockets under abstract names: nothing is left in the file system and a killed process closes its own.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace standin {

using Clock = std::chrono::steady_clock;

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int number() const { return number_; }
  bool valid() const { return number_ >= 0; }

 private:
  int release();
  int number_ = -1;
};

// Wakes threads that poll: readable for ever once raised.
class WakeSignal {
 public:
  WakeSignal();
  void raise();
  int number() const { return event_.number(); }

 private:
  FileDescriptor event_;
};

// What names a meeting of ranks; the first bytes of a unique id.
using Token = std::array<std::uint8_t, 16>;

// The token of something derived from another, the same on all ranks.
Token derive(const Token& token, std::string_view purpose);

// The functions below throw Error(ncclRemoteError) when the peer is gone, Error(ncclSystemError) when the deadline
// passes or the system refuses, and Error(ncclInternalError) when `wake` is raised.

FileDescriptor listen_as(const Token& token, int rank);  // Error(ncclInvalidUsage) when the name is taken
FileDescriptor accept_from(const FileDescriptor& listener, const WakeSignal& wake, Clock::time_point deadline);
FileDescriptor connect_to(const Token& token, int rank, const WakeSignal& wake, Clock::time_point deadline);
void send_all(const FileDescriptor& socket, const void* data, std::size_t bytes, const WakeSignal& wake);
void receive_all(const FileDescriptor& socket, void* data, std::size_t bytes, const WakeSignal& wake);

// Waits until `number` has one of `events` or the deadline passes; true in the first case.
bool wait_for_events(int number, short events, const WakeSignal& wake, Clock::time_point deadline);

}  // namespace standin
