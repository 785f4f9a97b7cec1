#include "interpose/copy_engines.hpp"

#include <cstdlib>
#include <utility>

#include "interpose/config.hpp"
#include "interpose/environment.hpp"
#include "interpose/group.hpp"
#include "interpose/log.hpp"
#include "interpose/real_nccl.hpp"

namespace zipccl::interpose {

namespace {

constexpr int first_version = 22800;  // 2.27 has windows, for kernels alone

bool has_copy_policy = false;

}  // namespace

void choose_copy_policy() {
  constexpr const char* policy = "NCCL_CTA_POLICY";
  constexpr const char* no_kernels = "2";
  if (!configuration().settings.copy_engines) {
    return;
  }
  setenv(policy, no_kernels, 0);
  has_copy_policy = variable(policy) == no_kernels;
}

std::string why_no_copy_engines() {
  const Settings& own = configuration().settings;
  const RealNccl& nccl = RealNccl::get();
  if (own.exchange != collectives::Exchange::fixed || !own.collectives.all_gather) {
    return "ZIPCCL_EXCHANGE or ZIPCCL_COLLECTIVES leaves them nothing to do";
  }
  int version = 0;
  if (call_real<&NcclTable::ncclGetVersion>(&version) != ncclSuccess || version < first_version ||
      !nccl.has(&NcclTable::ncclMemAlloc) || !nccl.has(&NcclTable::ncclMemFree) ||
      !nccl.has(&NcclTable::ncclCommWindowRegister)) {
    return "NCCL " + nccl.version_text() + " does not move windows with copy engines; 2.28 does";
  }
  if (Group::open()) {
    return "its communicator is made in a group";  // perhaps with others, whose order ranks need not share
  }
  return has_copy_policy ? "" : "NCCL_CTA_POLICY is set to another value than 2";
}

ncclResult_t register_staging(CommState& state) {
  constexpr int symmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC: calls use the same place in every rank's window
  collectives::Communicator& communicator = state.communicator;
  const collectives::Staging::Span whole = communicator.staging->memory();
  const ncclResult_t result = call_real<&NcclTable::ncclCommWindowRegister>(communicator.handle, whole.data,
                                                                            whole.bytes, &state.window, symmetric);
  if (result != ncclSuccess) {
    log::write(LogLevel::error,
               "communicator %s, rank %d: its staging cannot be registered as a window (NCCL result %d); the other "
               "ranks may count on it, so its creation fails; run with ZIPCCL_COPY_ENGINES=0",
               state.name.c_str(), communicator.rank, static_cast<int>(result));
    return result;
  }
  // Null where NCCL has no symmetric memory, on all ranks alike. The other ranks count on compressed calls all the
  // same.
  communicator.agreement.copy_engines = state.window != nullptr;
  if (state.window == nullptr) {
    log::write(
        LogLevel::warn,
        "communicator %s, rank %d: NCCL has no symmetric memory here (NCCL_CUMEM_ENABLE=0?), so its kernels move "
        "all-gathers, not copy engines; run with ZIPCCL_COPY_ENGINES=0",
        state.name.c_str(), communicator.rank);
  }
  return ncclSuccess;
}

void unregister_staging(CommState& state) {
  if (state.window != nullptr && !state.communicator.aborted.load()) {
    call_real<&NcclTable::ncclCommWindowDeregister>(state.communicator.handle, std::exchange(state.window, nullptr));
  }
}

}  // namespace zipccl::interpose
