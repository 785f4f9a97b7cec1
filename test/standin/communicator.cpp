#include "test/standin/communicator.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace standin {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, std::shared_ptr<Communicator>> communicators;
};

// Never destroyed: operations may still be running when the process exits.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

Communicator::Communicator(const Token& token, int rank, int rank_count, int device)
    : token_(token), rank_(rank), rank_count_(rank_count), device_(device), settings_(Settings::from_environment()) {}

Communicator::~Communicator() {
  if (background_.joinable()) background_.join();
  for (void* registration : registrations_) ::operator delete(registration);
}

void Communicator::connect() {
  try {
    Meeting meeting = meet(token_, rank_, rank_count_, {getpid(), 0}, true, wake_);
    Meeting second;
    if (settings_.rendezvous) {
      second = meet(derive(token_, "acknowledgements"), rank_, rank_count_, {}, true, wake_);
    }
    const std::lock_guard lock(mutex_);
    connections_ = std::move(meeting.connections);
    acknowledgements_ = std::move(second.connections);
    if (device_ < 0) {
      const auto own = meeting.cards.begin() + rank_;
      device_ = static_cast<int>(std::count(meeting.cards.begin(), own, *own));
    }
    async_error_ = ncclSuccess;
  } catch (const Error& error) {
    fail(error.code(), error.what());
    throw;
  }
}

void Communicator::connect_in_background() {
  background_ = std::thread([this] {
    try {
      connect();
    } catch (const Error& error) {
      set_last_error(error.what());  // the caller learns of it through the asynchronous error
    }
  });
}

Token Communicator::child_token(const std::string& purpose) {
  const std::lock_guard lock(mutex_);
  return derive(token_, purpose + "#" + std::to_string(children_[purpose]++));
}

ncclResult_t Communicator::async_error() {
  const std::lock_guard lock(mutex_);
  return async_error_;
}

std::string Communicator::error_text() {
  const std::lock_guard lock(mutex_);
  return error_text_;
}

void Communicator::require_ready() {
  const std::lock_guard lock(mutex_);
  if (async_error_ == ncclInProgress) {
    throw Error(ncclInvalidArgument, "the communicator is used before its creation has completed");
  }
  if (async_error_ != ncclSuccess) throw Error(async_error_, "the communicator has failed: " + error_text_);
}

void Communicator::require_operational() {
  {
    const std::lock_guard lock(mutex_);
    if (finalized_) throw Error(ncclInvalidUsage, "the communicator is finalized");
    if (revoked_) throw Error(ncclInvalidUsage, "the communicator is revoked");
  }
  require_ready();
}

void Communicator::require_open() {
  const std::lock_guard lock(mutex_);
  if (finalized_) throw Error(ncclInvalidUsage, "the communicator is finalized");
}

std::uint64_t Communicator::take_ticket() {
  const std::lock_guard lock(mutex_);
  ++outstanding_;
  return tickets_++;
}

bool Communicator::begin(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || turn_ == ticket; });
  if (stopped_) return false;
  ++running_;
  return true;
}

void Communicator::end(std::uint64_t ticket, bool began) {
  const std::lock_guard lock(mutex_);
  turn_ = std::max(turn_, ticket + 1);
  --outstanding_;
  if (began) --running_;
  changed_.notify_all();
}

void Communicator::fail(ncclResult_t code, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (async_error_ == ncclSuccess || async_error_ == ncclInProgress) {
    async_error_ = code;
    error_text_ = text;
  }
  stop_locked();
}

void Communicator::set_async_error(ncclResult_t code) {
  const std::lock_guard lock(mutex_);
  async_error_ = code;
  error_text_ = "injected";
}

bool Communicator::stopped() {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

void Communicator::stop_locked() {
  if (stopped_) return;
  stopped_ = true;
  wake_.raise();
  for (const auto* connections : {&connections_, &acknowledgements_}) {
    for (const FileDescriptor& connection : *connections) {
      if (connection.valid()) shutdown(connection.number(), SHUT_RDWR);
    }
  }
  changed_.notify_all();
}

void Communicator::finalize() {
  std::unique_lock lock(mutex_);
  finalized_ = true;
  changed_.wait(lock, [this] { return outstanding_ == 0; });
}

void Communicator::abort() {
  std::unique_lock lock(mutex_);
  stop_locked();
  changed_.wait(lock, [this] { return running_ == 0; });
}

void Communicator::revoke() {
  std::unique_lock lock(mutex_);
  revoked_ = true;
  stop_locked();
  changed_.wait(lock, [this] { return running_ == 0; });
}

void Communicator::close() {
  if (background_.joinable()) background_.join();
  const std::lock_guard lock(mutex_);
  connections_.clear();
  acknowledgements_.clear();
}

void* Communicator::add_registration() {
  void* handle = ::operator new(1);
  const std::lock_guard lock(mutex_);
  registrations_.insert(handle);
  return handle;
}

void Communicator::remove_registration(void* handle) {
  const std::lock_guard lock(mutex_);
  if (registrations_.erase(handle) == 0) throw Error(ncclInvalidArgument, "not a registration of this communicator");
  ::operator delete(handle);
}

ncclComm_t add_handle(std::shared_ptr<Communicator> communicator) {
  const auto handle = reinterpret_cast<ncclComm_t>(communicator.get());
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.communicators[handle] = std::move(communicator);
  return handle;
}

std::shared_ptr<Communicator> find_handle(ncclComm_t handle) {
  if (handle == nullptr) throw Error(ncclInvalidArgument, "the communicator is null");
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.communicators.find(handle);
  if (found == all.communicators.end()) throw Error(ncclInvalidArgument, "not a communicator, or no longer one");
  return found->second;
}

void remove_handle(ncclComm_t handle) {
  std::shared_ptr<Communicator> last;  // destroyed after the lock is released
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.communicators.find(handle);
  if (found == all.communicators.end()) return;
  last = std::move(found->second);
  all.communicators.erase(found);
}

}  // namespace standin
