#include "test/unit/failing_memory.hpp"

#include <pthread.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

namespace zipccl::test {

namespace {

bool runs_on(const char* thread) {
  std::array<char, 16> name{};
  return pthread_getname_np(pthread_self(), name.data(), name.size()) == 0 && std::strcmp(name.data(), thread) == 0;
}

}  // namespace

void FailingMemory::fail_at(int step, bool for_good, const char* thread) {
  left_ = step;
  for_good_ = for_good;
  thread_ = thread;
  armed_ = true;
}

bool FailingMemory::heal() {
  armed_ = false;
  return left_ < 0;
}

bool FailingMemory::fails() {
  if (!armed_ || (thread_ != nullptr && !runs_on(thread_))) {
    return false;
  }
  const int left = left_--;
  return left == 0 || (left < 0 && for_good_);
}

}  // namespace zipccl::test

void* operator new(std::size_t bytes) {
  void* const memory = zipccl::test::FailingMemory::fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
