#include "switcher/helper_thread.hpp"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <exception>

namespace zipccl::switcher {

HelperThread::HelperThread() : context_(1), work_(context_.get_executor()), process_(getpid()) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // The mask is inherited, so that no signal finds the thread before it could set a mask of its own.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread(&HelperThread::run, this);
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "zipccl");
}

HelperThread::~HelperThread() { stop(); }

Status HelperThread::start(std::unique_ptr<HelperThread>* thread, std::string* why) {
  try {
    thread->reset(new HelperThread);
    return Status::ok;
  } catch (const std::exception& error) {
    *why = std::string("cannot start the helper thread: ") + error.what();
    return Status::unsupported;
  }
}

void HelperThread::stop() {
  context_.stop();
  if (thread_.joinable()) thread_.join();
}

bool HelperThread::foreign() const { return getpid() != process_; }

void HelperThread::run() {
  for (;;) {
    try {
      context_.run();
      return;
    } catch (const std::exception&) {
      // The failed handler's connection closes with it; the others go on.
    }
  }
}

}  // namespace zipccl::switcher
