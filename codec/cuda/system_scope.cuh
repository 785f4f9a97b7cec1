// What kernels need to share overflow.hpp's structures, in mapped memory, with a CPU thread.
#pragma once

#include <cstdint>
#include <cuda/atomic>

namespace zipccl::codec::cuda {

template <typename T>
__device__ inline T load_acquire(const T& word) {
  return ::cuda::atomic_ref<T, ::cuda::thread_scope_system>(const_cast<T&>(word)).load(::cuda::memory_order_acquire);
}

template <typename T>
__device__ inline void store_release(T& word, T value) {
  ::cuda::atomic_ref<T, ::cuda::thread_scope_system>(word).store(value, ::cuda::memory_order_release);
}

__device__ inline std::uint64_t global_timer() {
  std::uint64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

// Returns true as soon as `done()` is, false if `release` is set before. For one thread of a block.
template <typename Done>
__device__ inline bool wait_unless_released(const std::uint32_t& release, Done done) {
  constexpr unsigned pause_ns = 500;  // a look takes about as long, across the bus
  while (!done()) {
    if (load_acquire(release) != 0) return false;
    __nanosleep(pause_ns);
  }
  return true;
}

}  // namespace zipccl::codec::cuda
