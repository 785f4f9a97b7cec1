#include "collectives/all_gather.hpp"

#include "collectives/exact_exchange.hpp"
#include "collectives/sizes_first_exchange.hpp"
#include "collectives/static_exchange.hpp"

namespace zipccl::collectives {

Route route_all_gather(const Communicator& communicator, std::uint64_t count, ncclDataType_t dtype) {
  const Agreement& agreement = communicator.agreement;
  const Route route = route_collective(communicator, agreement.all_gather, dtype);
  const auto ranks = static_cast<std::uint64_t>(communicator.rank_count);
  const bool small = count == 0 || count * value_bytes * ranks < agreement.min_bytes;
  return route == Route::compressed && small ? Route::small : route;
}

ncclResult_t all_gather(std::span<const AllGatherCall> calls, Status* status) {
  *status = Status::ok;
  if (calls.empty()) {
    return ncclSuccess;
  }
  for (const AllGatherCall& call : calls) {
    if (call.communicator->failure != ncclSuccess) {
      return call.communicator->failure;
    }
  }
  // All communicators of a process have the same exchange mode.
  const Exchange exchange = calls.front().communicator->agreement.exchange;
  const Outcome outcome = attempt([&] {
    return exchange == Exchange::fixed         ? static_all_gather(calls)
           : exchange == Exchange::sizes_first ? sizes_first_all_gather(calls)
                                               : exact_all_gather(calls);
  });
  if (!outcome.ok()) {
    *status = outcome.status;
    for (const AllGatherCall& call : calls) {
      call.communicator->failure = outcome.result;
      call.communicator->statistics->note_error(outcome.status);
    }
  }
  return outcome.result;
}

}  // namespace zipccl::collectives
