// How CPU threads share overflow.hpp's structures: the host engine's, and the one that serves kernels.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace zipccl::codec {

template <typename T>
T load_acquire(const T& word) {
  // atomic_ref of a const type is C++26.
  return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_acquire);
}

template <typename T>
void store_release(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
}

// The value before.
template <typename T>
T add_release(T& word, T amount) {
  return std::atomic_ref<T>(word).fetch_add(amount, std::memory_order_acq_rel);
}
template <typename T>
T exchange_acquire(T& word, T value) {
  return std::atomic_ref<T>(word).exchange(value, std::memory_order_acquire);
}

// What a counter that may be missing adds to a sequence.
inline std::uint64_t counted(const std::uint64_t* counter) { return counter == nullptr ? 0 : load_acquire(*counter); }

inline std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// Returns true as soon as `done()` is, false if `release` is set before. Spins shortly, then sleeps between looks.
template <typename Done>
bool wait_unless_released(const std::uint32_t& release, Done done) {
  constexpr int spins = 1000;
  constexpr std::chrono::microseconds pause(20);
  for (int i = 0; !done(); ++i) {
    if (load_acquire(release) != 0) {
      return false;
    }
    if (i >= spins) {
      std::this_thread::sleep_for(pause);
    }
  }
  return true;
}

}  // namespace zipccl::codec
