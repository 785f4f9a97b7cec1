#include "interpose/classes.hpp"

#include <numeric>
#include <utility>

#include "codec/host_exchange.hpp"
#include "interpose/comm_table.hpp"
#include "interpose/config.hpp"
#include "interpose/log.hpp"
#include "interpose/staging_pool.hpp"

namespace zipccl::interpose {

namespace {

using switcher::FenceSetting;

constexpr switcher::FenceClass all_gather_class{1, 0};
constexpr std::size_t kept_switches = 32;

std::vector<std::uint32_t> all_ranks(int rank_count) {
  std::vector<std::uint32_t> ranks(static_cast<std::size_t>(rank_count));
  std::iota(ranks.begin(), ranks.end(), 0u);
  return ranks;
}

FenceSetting initial_setting(const collectives::Communicator& communicator) {
  if (communicator.staging == nullptr) {
    return {};
  }
  return {true, communicator.agreement.pool_fraction, communicator.agreement.staging_bytes};
}

}  // namespace

Classes::Classes(CommState& state, switcher::Rendezvous& rendezvous)
    : state_(state),
      rendezvous_(rendezvous),
      fences_(rendezvous, *state.channel, static_cast<std::uint32_t>(state.communicator.rank)),
      gate_(fences_.gate(all_gather_class, all_ranks(state.communicator.rank_count),
                         initial_setting(state.communicator))),
      current_(initial_setting(state.communicator)),
      promotion_(pool_bytes_of(state.communicator.agreement.pool_fraction), current_.compressed,
                 state.communicator.rank_count) {
  shown_.ever_compressed = current_.compressed;
  shown_.staging_bytes = current_.staging_bytes;
  shown_.reason = promotion_.reason();
  // Nothing can change before all have wished.
  if (current_.compressed && configuration().settings.start != Start::always) {
    gate_.wish(current_);
  }
}

Classes::~Classes() = default;

Status Classes::begin_all_gather(const Call& call, bool* compressed) {
  FenceSetting setting;
  std::uint64_t number = 0;
  if (const Status status = gate_.enter(&setting, &number); status != Status::ok) {
    return status;
  }
  if (setting != current_) {
    switch_to(setting, number);
  }
  *compressed = setting.compressed;
  if (call.capturing && !captured_) {
    captured_ = true;
    gate_.keep();  // a graph goes on as it was captured; eager calls beside it do likewise
  }
  if (!captured_ && call.eligible && configuration().settings.start != Start::always) {
    setting.compressed ? review(number) : consider(call, number);
  }
  return Status::ok;
}

void Classes::switch_to(const FenceSetting& setting, std::uint64_t call) {
  collectives::Communicator& communicator = state_.communicator;
  const bool first = setting.compressed && !shown_.ever_compressed;
  if (first) {
    communicator.agreement.staging_bytes = setting.staging_bytes;
    communicator.staging->limit(setting.staging_bytes);
  }
  if (setting.compressed) {
    // A user's group may hold calls from before the switch that have not been issued. They get the new room too, on all
    // ranks alike, since ranks group alike.
    communicator.agreement.pool_fraction = setting.pool_fraction;
  }
  const std::uint32_t pool_bytes = pool_bytes_of(setting.pool_fraction);
  current_ = setting;
  promotion_.switched(setting.compressed ? Wish{pool_bytes} : Wish{}, enqueued_chunks());
  const log::DeviceScope device(communicator.device->ordinal());
  if (setting.compressed) {
    log::write(LogLevel::info,
               "communicator %s, rank %d of %d: all-gathers are compressed from call %llu on, room for outliers %u "
               "bytes in 1,024 values, staging %llu KiB",
               state_.name.c_str(), communicator.rank, communicator.rank_count, static_cast<unsigned long long>(call),
               pool_bytes, static_cast<unsigned long long>(communicator.agreement.staging_bytes >> 10));
  } else {
    log::write(LogLevel::info, "communicator %s, rank %d of %d: all-gathers are native from call %llu on: %s",
               state_.name.c_str(), communicator.rank, communicator.rank_count, static_cast<unsigned long long>(call),
               promotion_.ready() ? "another rank's values do not compress well enough" : promotion_.reason());
  }
  const std::lock_guard lock(mutex_);
  if (setting.compressed) {
    shown_.ever_compressed = true;
    shown_.staging_bytes = communicator.agreement.staging_bytes;
  }
  if (shown_.switches.size() == kept_switches) {
    shown_.switches.erase(shown_.switches.begin());
  }
  shown_.switches.push_back({call, setting.compressed, pool_bytes});
}

// Of a native call.
void Classes::consider(const Call& call, std::uint64_t number) {
  if (call.send == nullptr || unobservable_) {
    return;
  }
  if (Sight sight; observer_ != nullptr && observer_->take(&sight)) {
    promotion_.saw(sight, number);
    if (promotion_.ready() && !reserve(number)) {
      promotion_.lacks_memory(number);
    }
    wish();
  }
  if (!promotion_.wants_look(number) || (observer_ != nullptr && !observer_->idle())) {
    return;
  }
  codec::Device& device = *state_.communicator.device;
  if (observer_ == nullptr && Observer::create(device, &observer_) != Status::ok) {
    unobservable_ = true;
    const std::lock_guard lock(mutex_);
    shown_.reason = "no device memory to look at its calls";
    return;
  }
  // A device that fails here fails in NCCL, too, which says why.
  static_cast<void>(observer_->look(call.send, call.count, call.stream));
}

// Of a compressed call.
void Classes::review(std::uint64_t number) {
  const OverflowLink* overflow = state_.overflow();
  if (overflow == nullptr) {
    return;  // exchange mode exact: the user is comparing
  }
  const codec::ExchangeCounters& counters = overflow->port().counters();
  Usage usage;
  usage.chunks = codec::load_acquire(counters.finished);
  usage.values = counters.values;
  usage.overflow_messages = counters.overflow_messages;
  usage.overflow_bytes = counters.overflow_bytes + overflow->port().sent_bytes();
  if (promotion_.used(usage, number)) {
    wish();
  }
}

// The class's one reservation: device memory, and for mode static the overflow port.
bool Classes::reserve(std::uint64_t number) {
  collectives::Communicator& communicator = state_.communicator;
  if (communicator.staging != nullptr) {
    return true;
  }
  StagingPool& pool = StagingPool::instance();
  const bool with_overflow = communicator.agreement.exchange == collectives::Exchange::fixed;
  const std::uint64_t wanted =
      pool.share(*communicator.device, communicator.agreement.staging_bytes, communicator.rank_count);
  std::string why;
  std::unique_ptr<collectives::Staging> staging;
  const Status status =
      pool.reserve(*communicator.device, wanted, communicator.rank_count, with_overflow, &staging, &why);
  if (status != Status::ok) {
    log::write(memory_reason_.empty() ? LogLevel::warn : LogLevel::info,
               "communicator %s, rank %d of %d: all-gathers stay native at call %llu: %s", state_.name.c_str(),
               communicator.rank, communicator.rank_count, static_cast<unsigned long long>(number), why.c_str());
    memory_reason_ = why;
    return false;
  }
  memory_reason_.clear();
  const std::uint64_t bytes = staging->bytes();
  communicator.staging = std::move(staging);
  if (with_overflow) {
    state_.open_overflow(rendezvous_);
  }
  const std::lock_guard lock(mutex_);
  shown_.staging_bytes = bytes;
  return true;
}

void Classes::wish() {
  const Wish& own = promotion_.wish();
  gate_.wish(own.pool_bytes
                 ? FenceSetting{true, pool_fraction_of(*own.pool_bytes), state_.communicator.staging->bytes()}
                 : FenceSetting{});
  const std::lock_guard lock(mutex_);
  shown_.reason = memory_reason_.empty() ? promotion_.reason() : memory_reason_;
}

std::uint64_t Classes::enqueued_chunks() const {
  const OverflowLink* overflow = state_.overflow();
  return overflow != nullptr ? overflow->port().enqueued() : 0;
}

void Classes::abort() { fences_.abort(); }

bool Classes::idle() const { return observer_ == nullptr || observer_->idle(); }

Classes::State Classes::all_gather_state() const {
  const switcher::FenceGate::State gate = gate_.state();
  const std::lock_guard lock(mutex_);
  State state = shown_;
  state.gate = gate;
  return state;
}

}  // namespace zipccl::interpose
