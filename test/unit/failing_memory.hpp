// operator new that fails when it is told to. For programs of one thread.
#pragma once

namespace zipccl::test {

class FailingMemory {
 public:
  // After `step` more allocations one fails, or all from then on.
  static void fail_at(int step, bool for_good);
  static void heal();
  static bool fails();  // called by operator new

 private:
  static inline int left_ = -1;  // allocations until one fails; negative: none does
  static inline bool for_good_ = false;
};

}  // namespace zipccl::test
