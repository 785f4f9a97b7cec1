// What decides, before anything else, whether an intercepted call is zipccl's to look at.
#pragma once

namespace zipccl::interpose {

// Lives around every call of the real NCCL. NCCL calls some of its own public functions through symbols that lead
// back to zipccl; while such an object lives in a thread, intercepted calls go straight on.
class RealCall {
 public:
  RealCall() { ++depth_; }
  ~RealCall() { --depth_; }
  RealCall(const RealCall&) = delete;
  RealCall& operator=(const RealCall&) = delete;
  static bool active() { return depth_ > 0; }

 private:
  static inline constinit thread_local int depth_ = 0;
};

// True in a child of a process that had used NCCL when it forked: threads and sockets are the parent's, so every
// call goes straight on. Children that were forked earlier are like any other process.
bool in_forked_child();

// Registers the fork handler, once; called before the first thread, socket or device.
void watch_forks();

// What such a child runs first; async-signal-safe. One handler.
void in_child(void (*handler)());

}  // namespace zipccl::interpose
