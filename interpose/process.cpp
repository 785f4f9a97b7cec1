#include "interpose/process.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace zipccl::interpose {

namespace {

constinit std::atomic<bool> forked_child = false;
constinit std::once_flag watched;

}  // namespace

bool in_forked_child() { return forked_child.load(std::memory_order_relaxed); }

void watch_forks() {
  std::call_once(watched,
                 [] { pthread_atfork(nullptr, nullptr, [] { forked_child.store(true, std::memory_order_relaxed); }); });
}

}  // namespace zipccl::interpose
