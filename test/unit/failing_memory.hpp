// operator new that fails when it is told to.
#pragma once

#include <atomic>

namespace zipccl::test {

class FailingMemory {
 public:
  // After `step` more allocations one fails, or all from then on. With `thread`, only those of threads of that name
  // count and fail.
  static void fail_at(int step, bool for_good, const char* thread = nullptr);
  static bool heal();   // returns whether any has failed
  static bool fails();  // called by operator new

 private:
  static inline std::atomic<bool> armed_ = false;
  static inline std::atomic<int> left_ = 0;  // allocations until one fails; negative afterwards
  static inline bool for_good_ = false;
  static inline const char* thread_ = nullptr;
};

}  // namespace zipccl::test
