// The helper thread's loop over the process's pollers.
//
// While any poller returns true the loop runs every 50 us, every 200 us once 20 ms have passed without a wake();
// otherwise it sleeps until one. A wake() that happens while the loop is awake makes it run at least once more before
// it sleeps, so that no work is overlooked that was there before the call. Where memory is short the loop goes on, and
// the helper thread's sockets wait.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "switcher/channel.hpp"

namespace zipccl::switcher {

class Pollers {
 public:
  // `context` is the same at every call; the first one starts the loop. Without effect if it throws.
  void add(Poller* poller, asio::io_context& context);
  // Waits while the poller runs, unless a poller calls.
  void remove(Poller* poller);
  void wake();

 private:
  enum class State : std::uint8_t { asleep, awake, woken };

  void schedule();
  void run();
  bool poll_all();
  void sleep_for(std::chrono::microseconds interval);

  std::atomic<State> state_ = State::awake;  // awake without a loop: nobody needs to be woken
  std::mutex mutex_;
  std::condition_variable idle_;
  std::vector<Poller*> pollers_;
  Poller* running_ = nullptr;
  std::thread::id loop_thread_;
  bool started_ = false;  // the loop
  asio::io_context* context_ = nullptr;
  std::optional<asio::steady_timer> timer_;            // the loop's
  std::chrono::steady_clock::time_point last_wake_{};  // the loop's
};

}  // namespace zipccl::switcher
