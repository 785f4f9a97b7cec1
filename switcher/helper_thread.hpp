// The one thread that zipccl adds to a process. It sleeps in the kernel while no socket or timer has work for it,
// blocks every signal, and is called "zipccl" in the list of threads.
#pragma once

#include <sys/types.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <memory>
#include <string>
#include <thread>

#include "codec/status.hpp"

namespace zipccl::switcher {

class HelperThread {
 public:
  static Status start(std::unique_ptr<HelperThread>* thread, std::string* why);
  // Stops and joins. Whatever runs on the thread may then be destroyed, before the thread object is.
  void stop();
  ~HelperThread();

  // True in a child forked after the start: thread and epoll instance belong to the parent, and nothing that uses them
  // may be destroyed here, because that would deregister the parent's sockets.
  bool foreign() const;

  // Handlers run one at a time. One that throws for want of memory takes with it what it owned.
  asio::io_context& context() { return context_; }

 private:
  HelperThread();
  void run();

  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
  pid_t process_;
};

}  // namespace zipccl::switcher
