#include "collectives/host_wait.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace zipccl::collectives {

namespace {

using Clock = std::chrono::steady_clock;

// A short wait is polled closely; a long one (a slow link, a late rank) must not cost a core.
constexpr auto spin_time = std::chrono::microseconds(200);
constexpr auto pause_time = std::chrono::microseconds(20);
constexpr auto error_check_time = std::chrono::milliseconds(10);

}  // namespace

Status WaitingLane::begin_chunk() {
  const codec::Stream stream = current().call->stream;
  Status status = communicator().chain->begin(stream);
  if (status == Status::ok && current().first == 0) {
    status = copy_own(*current().call, stream);
  }
  std::fill_n(half_of(current()).summaries, communicator().rank_count, codec::MessageSummary{});
  return status;
}

Outcome WaitingLane::nccl_state() const {
  if (const Outcome outcome = alive(); !outcome.ok()) {
    return outcome;
  }
  return collectives::nccl_state(communicator());
}

Outcome WaitingLane::wait_for(codec::Event event, Bucket& bucket) const {
  const auto start = Clock::now();
  auto next_check = start + error_check_time;
  Outcome outcome;
  for (;;) {
    bool done = false;
    if (const Status status = communicator().device->query(event, &done); status != Status::ok) {
      outcome = Outcome::of(status);
      break;
    }
    if (done) {
      break;
    }
    outcome = alive();
    if (!outcome.ok()) {
      break;
    }
    const auto now = Clock::now();
    if (now >= next_check) {
      next_check = now + error_check_time;
      outcome = nccl_state();
      if (!outcome.ok()) {
        break;
      }
    }
    if (now - start > spin_time) {
      std::this_thread::sleep_for(pause_time);
    }
  }
  const auto waited = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  bucket.host_wait_ns.fetch_add(static_cast<std::uint64_t>(waited), std::memory_order_relaxed);
  return outcome;
}

Outcome WaitingLane::check_summaries(const Chunk& chunk) const {
  const codec::MessageSummary* summaries = half_of(chunk).summaries;
  for (int rank = 0; rank < communicator().rank_count; ++rank) {
    if (const auto status = static_cast<Status>(summaries[rank].status); status != Status::ok) {
      // What arrives after a peer's death is stale memory: NCCL's word on that comes first.
      const Outcome nccl = nccl_state();
      return nccl.ok() ? Outcome::of(status) : nccl;
    }
  }
  return {};
}

}  // namespace zipccl::collectives
