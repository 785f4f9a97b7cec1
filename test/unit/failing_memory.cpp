#include "test/unit/failing_memory.hpp"

#include <cstdlib>
#include <new>

namespace zipccl::test {

void FailingMemory::fail_at(int step, bool for_good) {
  left_ = step;
  for_good_ = for_good;
}

void FailingMemory::heal() { left_ = -1; }

bool FailingMemory::fails() {
  if (left_ == 0) {
    left_ = for_good_ ? 0 : -1;
    return true;
  }
  left_ -= left_ > 0 ? 1 : 0;
  return false;
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
