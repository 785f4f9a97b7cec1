#include "interpose/process.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace zipccl::interpose {

namespace {

constinit std::atomic<bool> forked_child = false;
constinit std::once_flag watched;
constinit std::atomic<void (*)()> child_handler = nullptr;

}  // namespace

bool in_forked_child() { return forked_child.load(std::memory_order_relaxed); }

void watch_forks() {
  std::call_once(watched, [] {
    pthread_atfork(nullptr, nullptr, [] {
      forked_child.store(true, std::memory_order_relaxed);
      if (void (*handler)() = child_handler.load()) {
        handler();
      }
    });
  });
}

void in_child(void (*handler)()) { child_handler.store(handler); }

}  // namespace zipccl::interpose
