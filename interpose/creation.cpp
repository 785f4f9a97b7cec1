#include "interpose/creation.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

#include "interpose/copy_engines.hpp"
#include "interpose/devices.hpp"
#include "interpose/environment.hpp"
#include "interpose/host.hpp"
#include "interpose/log.hpp"
#include "interpose/nvlink.hpp"
#include "interpose/rdma.hpp"
#include "interpose/real_nccl.hpp"
#include "interpose/report.hpp"
#include "interpose/staging_pool.hpp"

namespace zipccl::interpose {

namespace {

using collectives::NcclTable;

constexpr std::uint32_t free_connections = 8;  // CUDA_DEVICE_MAX_CONNECTIONS from which nothing is held back (R5)

std::uint32_t max_connections() {
  const int value = std::atoi(variable("CUDA_DEVICE_MAX_CONNECTIONS").c_str());
  return value > 0 ? static_cast<std::uint32_t>(value) : free_connections;  // CUDA's default
}

bool is_nonblocking(const ncclConfig_t* config) {
  if (const std::string forced = variable("NCCL_COMM_BLOCKING"); !forced.empty()) {
    return std::atoi(forced.c_str()) == 0;
  }
  constexpr std::size_t end = offsetof(ncclConfig_t, blocking) + sizeof(config->blocking);
  return config != nullptr && config->size >= end && config->blocking == 0;
}

std::span<const std::uint8_t, switcher::unique_id_bytes> bytes_of(const ncclUniqueId& id) {
  return std::span<const std::uint8_t, switcher::unique_id_bytes>(reinterpret_cast<const std::uint8_t*>(id.internal),
                                                                  switcher::unique_id_bytes);
}

// FNV-1a, enough to tell a job's communicators apart in logs and reports.
std::string name_of(const ncclUniqueId& id) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint8_t byte : bytes_of(id)) {
    hash = (hash ^ byte) * 0x100000001b3u;
  }
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

constinit std::atomic<switcher::Rendezvous*> forkable = nullptr;

switcher::Rendezvous& rendezvous() {
  static switcher::Rendezvous* const own = [] {
    const std::string& given = configuration().settings.socket_interfaces;
    auto made = switcher::Rendezvous::create(given.empty() ? variable("NCCL_SOCKET_IFNAME") : given);
    forkable.store(made.get());
    in_child([] { forkable.load()->close_in_child(); });
    return made.release();
  }();
  return *own;
}

bool with_overflow() { return configuration().settings.exchange == collectives::Exchange::fixed; }

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> number = 0;
  return number++;
}

// A reason is worth a warning once; a job may make hundreds of communicators that share it.
LogLevel level_of(const std::string& reason) {
  static std::mutex mutex;
  static auto* const seen = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return seen->insert(reason).second ? LogLevel::warn : LogLevel::info;
}

void add_to_table(ncclComm_t comm, CommPointer state) {
  watch_forks();
  state->number = next_number();
  report::start();
  if (CommPointer previous = CommTable::instance().insert(comm, std::move(state))) {
    StagingPool::instance().retire(std::move(previous));
  }
}

}  // namespace

Creation::Creation(const ncclUniqueId& id, int rank_count, int rank, const ncclConfig_t* config)
    : Creation(name_of(id), {switcher::invitation_of(bytes_of(id)), {}, rank_count, rank, rank_count}, config) {}

Creation::Creation(std::string name, Way way, const ncclConfig_t* config)
    : way_(std::move(way)), nonblocking_(is_nonblocking(config)) {
  state_->name = std::move(name);
  settle(way_.rank, way_.rank_count);
}

void Creation::refuse(std::string why, Refusal refusal) {
  refusal_ = std::move(why);
  wanted_ = refusal == Refusal::wanted;
}

void Creation::settle(int rank, int rank_count) {
  state_->communicator.rank = rank;
  state_->communicator.rank_count = rank_count;
}

void Creation::prepare(Memory memory) {
  const Configuration& own = configuration();
  if (!own.errors.empty()) {
    refusal_ = own.errors.front();
  } else if (!own.settings.collectives.any()) {
    refusal_ = "ZIPCCL_COLLECTIVES leaves nothing to compress";
    wanted_ = true;
  } else if (std::string why; (device_ = current_device(&why)) == nullptr) {
    refusal_ = why;
  } else if (nonblocking_ || memory == Memory::none) {
    // It stays native whatever this rank can do, or has no calls.
  } else if (own.settings.start != Start::fenced) {
    if ((own.settings.copy_engines && reserve_window()) || reserve_staging(&refusal_)) {
      reserve_transfers();
    }
  } else if (!own.settings.copy_engines || !reserve_window()) {
    staging_bytes_ = std::min(own.settings.staging_bytes, StagingPool::cap(*device_));
    if (own.settings.collectives.all_gather &&
        collectives::Staging::slot_bytes(staging_bytes_, way_.ranks.least, with_overflow()) == 0) {
      refusal_ = std::to_string(staging_bytes_ >> 20) + " MiB of staging are too little for " +
                 std::to_string(way_.ranks.least) + " ranks; raise ZIPCCL_STAGING_MB";
    }
  }
}

// For copy engines, which need it now: a window is registered by all ranks together, when they make a communicator.
bool Creation::reserve_window() {
  std::string why_not = why_no_copy_engines();
  copy_engines_ = why_not.empty();
  if (copy_engines_ && !reserve_staging(&why_not)) {
    copy_engines_ = false;
  }
  if (!copy_engines_) {
    log::write(level_of(why_not), "communicator %s, rank %d: no copy engines: %s", state_->name.c_str(),
               state_->communicator.rank, why_not.c_str());
  }
  return copy_engines_;
}

bool Creation::reserve_staging(std::string* why) {
  const Settings& own = configuration().settings;
  collectives::Communicator& communicator = state_->communicator;
  communicator.device = device_;
  staging_bytes_ = own.staging_bytes;
  if (own.collectives.all_gather) {
    const NcclTable* const windows = copy_engines_ ? &RealNccl::get().table() : nullptr;
    const RealCall scope;
    if (StagingPool::instance().reserve(*device_, own.staging_bytes, way_.ranks, with_overflow(), &communicator.staging,
                                        why, windows) != Status::ok) {
      return false;
    }
    staging_bytes_ = communicator.staging->bytes();
  }
  if (const Status status = state_->reserve_exchange(); status != Status::ok) {
    *why = std::string("no memory for compressed calls: ") + describe(status);
    state_->close_exchange();
    free_staging();
    return false;
  }
  return true;
}

void Creation::reserve_transfers() {
  const Settings& own = configuration().settings;
  std::unique_ptr<collectives::TransferStaging>* const place = &state_->communicator.transfers;
  if (own.collectives.all_to_all || own.collectives.point_to_point) {
    if (const Status status = collectives::TransferStaging::create(*device_, own.transfer_bytes, place);
        status != Status::ok) {
      refusal_ = std::string("no memory for compressed calls: ") + describe(status);
    }
  }
}

switcher::Hello Creation::hello() const {
  const collectives::Communicator& communicator = state_->communicator;
  switcher::Hello hello;
  hello.rank = static_cast<std::uint32_t>(communicator.rank);
  hello.rank_count = static_cast<std::uint32_t>(communicator.rank_count);
  hello.library_version = ZIPCCL_VERSION;
  for (const std::string& setting : configuration().route_settings()) {
    hello.configuration += setting + "\n";
  }
  hello.host = host_identity();
  hello.shared_memory = shared_memory_identity();
  hello.device = device_ != nullptr ? device_identity(*device_) : "";
  hello.nvlink_peers = nvlink_peers(hello.device);
  hello.process = static_cast<std::uint64_t>(getpid());
  hello.staging_bytes = staging_bytes_;
  hello.max_connections = max_connections();
  hello.p2p_disabled = variable("NCCL_P2P_DISABLE") == "1";
  hello.shm_disabled = variable("NCCL_SHM_DISABLE") == "1";
  hello.rdma = has_rdma();
  hello.nonblocking = nonblocking_;
  hello.copy_engines = copy_engines_;
  hello.refusal = refusal_;
  hello.choice = way_.choice;
  return hello;
}

ncclResult_t Creation::begin() {
  announce_configuration();
  const collectives::Communicator& communicator = state_->communicator;
  if (communicator.rank_count < 2 || communicator.rank < 0 || communicator.rank >= communicator.rank_count) {
    refusal_ = "it has one rank";  // or arguments that NCCL refuses
    wanted_ = true;
    return ncclSuccess;
  }
  if (!way_.invitation) {
    refusal_ = variable("NCCL_COMM_ID").empty()
                   ? "the process that made its ncclUniqueId runs without zipccl or could not put an "
                     "address into it, which its log then explains"
                   : "NCCL_COMM_ID is set, so its ncclUniqueId cannot carry an address";
    return ncclSuccess;
  }
  return say_hello(Memory::staging);
}

ncclResult_t Creation::say_hello(Memory memory) {
  prepare(memory);
  std::string why;
  const Status status = rendezvous().hello(*way_.invitation, hello(), &session_, &why);
  if (status == Status::ok) {
    return ncclSuccess;
  }
  // With any other outcome the hello may have been counted (session.hpp).
  if (status != Status::refused && status != Status::connection_lost && status != Status::invalid_argument) {
    free_staging();
    log::write(LogLevel::error,
               "communicator %s, rank %d: %s; the other ranks may count on this one, so its creation "
               "fails",
               state_->name.c_str(), state_->communicator.rank, why.empty() ? describe(status) : why.c_str());
    return ncclRemoteError;
  }
  refusal_ = why;
  return ncclSuccess;
}

void Creation::leave() {
  free_staging();
  session_.reset();
}

ncclResult_t Creation::finish(ncclComm_t* comm, ncclResult_t result) {
  const log::DeviceScope device(device_ != nullptr ? device_->ordinal() : -1);
  if (nonblocking_ && (result == ncclSuccess || result == ncclInProgress)) {
    refusal_ = "it is nonblocking";
    state_->session = std::move(session_);
  } else if (result != ncclSuccess) {
    free_staging();
    if (session_ != nullptr) {
      session_->withdraw();
    }
    return result;
  } else if (session_ != nullptr) {
    if (const ncclResult_t failed = take_verdict(*comm); failed != ncclSuccess) {
      return fail(comm, failed);
    }
    session_.reset();
  }
  const collectives::Communicator& communicator = state_->communicator;
  if (state_->compressed && communicator.chain == nullptr) {
    log::write(LogLevel::info,
               "communicator %s, rank %d of %d: native until calls of at least %llu bytes have shown that compression "
               "pays",
               state_->name.c_str(), communicator.rank, communicator.rank_count,
               static_cast<unsigned long long>(communicator.agreement.min_bytes));
  } else if (state_->compressed) {
    log::write(LogLevel::info, "communicator %s, rank %d of %d: compressed, staging %llu MiB, from %llu bytes%s",
               state_->name.c_str(), communicator.rank, communicator.rank_count,
               static_cast<unsigned long long>(communicator.agreement.staging_bytes >> 20),
               static_cast<unsigned long long>(communicator.agreement.min_bytes),
               communicator.agreement.copy_engines ? ", all-gathers through copy engines" : "");
  } else {
    state_->close_exchange();
    free_staging();
    state_->reason = refusal_;
    log::write(wanted_ ? LogLevel::info : level_of(refusal_), "communicator %s, rank %d of %d stays native: %s",
               state_->name.c_str(), communicator.rank, communicator.rank_count, refusal_.c_str());
  }
  if (*comm != nullptr) {
    add_to_table(*comm, state_);
  }
  StagingPool::instance().reclaim();
  return result;
}

ncclResult_t Creation::take_verdict(ncclComm_t comm) {
  switcher::Verdict verdict;
  if (const Status status = session_->verdict(&verdict); status != Status::ok) {
    log::write(LogLevel::error, "communicator %s, rank %d: no agreement with the other ranks: %s; its creation fails",
               state_->name.c_str(), state_->communicator.rank, describe(status));
    return ncclRemoteError;
  }
  if (!verdict.compressed) {
    refusal_ = verdict.reason;
    return ncclSuccess;
  }
  const Configuration& own = configuration();
  const collectives::Communicator& communicator = state_->communicator;
  const switcher::Place place = session_->place();
  if (place.rank != static_cast<std::uint32_t>(communicator.rank) ||
      place.rank_count != static_cast<std::uint32_t>(communicator.rank_count)) {
    log::write(
        LogLevel::error,
        "communicator %s: NCCL made this process rank %d of %d, zipccl expected %u of %u; its creation fails; run "
        "with ZIPCCL=off and report this",
        state_->name.c_str(), communicator.rank, communicator.rank_count, place.rank, place.rank_count);
    return ncclInternalError;
  }
  collectives::Agreement agreement = own.agreement(verdict.staging_bytes, verdict.slowest_link, verdict.copy_engines);
  agreement.overlap = with_overflow() && verdict.max_connections >= free_connections;
  if (!agreement.any()) {
    refusal_ = std::string("its slowest link is ") + switcher::to_string(verdict.slowest_link) +
               ", where compression does not pay yet (a size in ZIPCCL_MIN_BYTES compresses all the same)";
    wanted_ = true;
    return ncclSuccess;
  }
  // Rule R5: dispatchers wait for all-to-alls and point to point anyway; all-gathers overlap with computation.
  std::string no_all_gather;
  if (verdict.max_connections < free_connections && !own.settings.ignore_max_connections) {
    no_all_gather = "CUDA_DEVICE_MAX_CONNECTIONS is " + std::to_string(verdict.max_connections) +
                    " on some rank, so compressed all-gathers would hold back other work "
                    "(ZIPCCL_IGNORE_MAX_CONNECTIONS=1 compresses them all the same)";
  } else if (collectives::Staging::slot_bytes(agreement.staging_bytes, communicator.rank_count, with_overflow()) == 0) {
    no_all_gather = std::to_string(agreement.staging_bytes >> 20) + " MiB of staging on some rank are too little for " +
                    std::to_string(communicator.rank_count) + " ranks; raise ZIPCCL_STAGING_MB";
  }
  if (agreement.all_gather && !no_all_gather.empty()) {
    agreement.all_gather = false;
    if (!agreement.any()) {
      refusal_ = no_all_gather;
      return ncclSuccess;
    }
    log::write(level_of(no_all_gather), "communicator %s, rank %d: all-gathers stay native: %s", state_->name.c_str(),
               communicator.rank, no_all_gather.c_str());
  }
  state_->communicator.link_min_bytes = link_sizes(verdict);
  return activate(comm, agreement);
}

// The smallest message to and from every rank that is compressed.
std::vector<std::uint64_t> Creation::link_sizes(const switcher::Verdict& verdict) const {
  const auto ranks = static_cast<std::size_t>(state_->communicator.rank_count);
  const std::size_t row = static_cast<std::size_t>(state_->communicator.rank) * ranks;
  std::vector<std::uint64_t> sizes(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    sizes[rank] = configuration().link_min_bytes(verdict.links[row + rank]);
  }
  return sizes;
}

ncclResult_t Creation::activate(ncclComm_t comm, const collectives::Agreement& agreement) {
  collectives::Communicator& communicator = state_->communicator;
  const bool fenced = configuration().settings.start == Start::fenced;
  if (communicator.staging != nullptr && (!agreement.all_gather || (fenced && !agreement.copy_engines))) {
    free_staging();
    if (fenced) {
      state_->close_exchange();  // until a class of calls is promoted
    }
  } else if (communicator.staging != nullptr) {
    communicator.staging->limit(agreement.staging_bytes, communicator.rank_count);
  }
  communicator.nccl = &RealNccl::get().table();
  communicator.handle = comm;
  communicator.device = device_;
  communicator.agreement = agreement;
  communicator.statistics = &state_->statistics;
  state_->compressed = true;
  const ncclResult_t registered =
      agreement.copy_engines && agreement.all_gather ? register_staging(*state_) : ncclSuccess;
  return registered == ncclSuccess ? connect() : registered;
}

ncclResult_t Creation::connect() {
  const collectives::Communicator& communicator = state_->communicator;
  std::unique_ptr<switcher::Channel> channel;
  bool agreed = false;
  std::string why;
  if (const Status status = session_->connect(&channel, &agreed, &why); status != Status::ok) {
    log::write(LogLevel::error,
               "communicator %s, rank %d: not connected with the other ranks: %s; they may count on this one, "
               "so its creation fails",
               state_->name.c_str(), communicator.rank, why.empty() ? describe(status) : why.c_str());
    return ncclRemoteError;
  }
  if (!agreed) {
    refusal_ = "its ranks' processes cannot connect with each other: " + why;
    state_->compressed = false;
    return ncclSuccess;
  }
  state_->offspring.admit(session_->parent());
  state_->channel = std::move(channel);
  Status status = Status::ok;
  if (communicator.chain != nullptr) {
    status = state_->open_exchange(rendezvous());
  }
  if (status == Status::ok) {
    state_->classes = std::make_unique<Classes>(*state_, rendezvous());
    status = state_->classes->start();
  }
  if (status != Status::ok) {
    log::write(LogLevel::error, "communicator %s, rank %d: no helper thread: %s; its creation fails",
               state_->name.c_str(), communicator.rank, describe(status));
    return ncclSystemError;
  }
  return ncclSuccess;
}

ncclResult_t Creation::fail(ncclComm_t* comm, ncclResult_t result) {
  state_->classes.reset();
  state_->close_exchange();
  free_staging();
  static_cast<void>(call_real<&NcclTable::ncclCommAbort>(*comm));
  *comm = nullptr;
  return result;
}

void Creation::free_staging() {
  if (device_ != nullptr) {
    unregister_staging(*state_);  // of a communicator that lives on if its ranks cannot connect
    StagingPool::instance().release(*device_, std::move(state_->communicator.staging));
  }
}

void announce_configuration() {
  static std::once_flag once;
  std::call_once(once, [] {
    watch_forks();
    choose_copy_policy();
    for (const std::string& error : configuration().errors) {
      log::write(LogLevel::error, "%s; communicators stay native on all ranks", error.c_str());
    }
    for (const std::string& warning : configuration().warnings) {
      log::write(LogLevel::warn, "%s", warning.c_str());
    }
  });
}

void stamp(ncclUniqueId* id) {
  if (!variable("NCCL_COMM_ID").empty()) {
    return;  // every rank makes its own id, so a stamp would not be shared
  }
  const std::span<std::uint8_t, switcher::unique_id_bytes> bytes(reinterpret_cast<std::uint8_t*>(id->internal),
                                                                 switcher::unique_id_bytes);
  if (std::any_of(bytes.begin() + switcher::stamp_offset, bytes.end(), [](std::uint8_t byte) { return byte != 0; })) {
    log::write(
        LogLevel::warn,
        "communicators of this ncclUniqueId stay native, it cannot carry an address: NCCL %s uses more of it than "
        "zipccl %s knows; a newer zipccl may fit",
        RealNccl::get().version_text().c_str(), ZIPCCL_VERSION);
    return;
  }
  std::string why;
  if (const Status status = rendezvous().stamp(bytes, &why); status != Status::ok) {
    log::write(LogLevel::warn,
               "communicators of this ncclUniqueId stay native, it cannot carry an address: %s; ZIPCCL_SOCKET_IFNAME "
               "chooses another network interface",
               why.empty() ? describe(status) : why.c_str());
  }
}

bool awaited_by_others() {
  switcher::Rendezvous* const own = forkable.load();
  return own != nullptr && own->awaited();
}

void enter_native(ncclComm_t comm, std::string name, std::string reason) {
  CommPointer state = std::make_shared<CommState>();
  static_cast<void>(call_real<&NcclTable::ncclCommUserRank>(comm, &state->communicator.rank));
  static_cast<void>(call_real<&NcclTable::ncclCommCount>(comm, &state->communicator.rank_count));
  state->name = std::move(name);
  state->reason = std::move(reason);
  log::write(LogLevel::info, "communicator %s, rank %d of %d stays native: %s", state->name.c_str(),
             state->communicator.rank, state->communicator.rank_count, state->reason.c_str());
  add_to_table(comm, std::move(state));
}

}  // namespace zipccl::interpose
