#include "switcher/pollers.hpp"

#include <algorithm>
#include <asio/post.hpp>
#include <new>

namespace zipccl::switcher {
namespace {

using namespace std::chrono_literals;

constexpr auto brisk_interval = 50us;
constexpr auto calm_interval = 200us;
constexpr auto calm_after = 20ms;

}  // namespace

void Pollers::add(Poller* poller, asio::io_context& context) {
  {
    const std::lock_guard lock(mutex_);
    pollers_.reserve(pollers_.size() + 1);
    if (!started_) {
      timer_.emplace(context);
      context_ = &context;
      schedule();
      started_ = true;
    }
    pollers_.push_back(poller);
  }
  wake();
}

void Pollers::remove(Poller* poller) {
  std::unique_lock lock(mutex_);
  std::erase(pollers_, poller);
  if (std::this_thread::get_id() != loop_thread_) idle_.wait(lock, [&] { return running_ != poller; });
}

void Pollers::wake() {
  // The exchange, even if the loop was woken already, orders the caller's work before the loop's next round.
  if (state_.exchange(State::woken) != State::asleep) return;
  try {
    schedule();
  } catch (...) {
    state_ = State::asleep;  // no memory: the next call may find some
  }
}

void Pollers::schedule() {
  asio::post(*context_, [this] { run(); });
}

void Pollers::run() {
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    if (state_.exchange(State::awake) == State::woken) last_wake_ = now;
    const auto interval = now - last_wake_ < calm_after ? brisk_interval : calm_interval;
    const bool again = poll_all();
    State expected = State::awake;
    if (!again && state_.compare_exchange_strong(expected, State::asleep)) return;
    try {
      return again ? sleep_for(interval) : schedule();  // sockets get their turn in between
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(interval);  // without their turn, until there is memory
    }
  }
}

bool Pollers::poll_all() {
  bool again = false;
  std::unique_lock lock(mutex_);
  loop_thread_ = std::this_thread::get_id();
  // By index, since pollers may come and go while one runs. One that is skipped for that is not forgotten: its place
  // was taken by add(), which wakes, or by remove(), after which another round follows.
  const std::size_t count = pollers_.size();
  for (std::size_t i = 0; i < pollers_.size(); ++i) {
    running_ = pollers_[i];
    lock.unlock();
    const bool busy = running_->poll();
    lock.lock();
    running_ = nullptr;
    idle_.notify_all();
    again = again || busy;
  }
  return again || pollers_.size() < count;
}

void Pollers::sleep_for(std::chrono::microseconds interval) {
  timer_->expires_after(interval);
  timer_->async_wait([this](const asio::error_code& error) {
    if (!error) run();
  });
}

}  // namespace zipccl::switcher
