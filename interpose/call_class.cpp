#include "interpose/call_class.hpp"

#include <utility>

#include "interpose/comm_table.hpp"
#include "interpose/config.hpp"
#include "interpose/log.hpp"

namespace zipccl::interpose {

namespace {

using switcher::FenceSetting;

constexpr std::size_t kept_switches = 32;
constexpr const char* others_decide = "another rank's values do not compress well enough";
constexpr const char* sender_decides = "the sender's values have not shown that it pays";

}  // namespace

CallClass::CallClass(const CommState& state, switcher::FenceGate& gate, const char* name, Owner* owner,
                     const FenceSetting& initial, Rooms rooms, bool unchanging, Part part,
                     std::optional<std::uint32_t> receiver)
    : comm_(state),
      gate_(gate),
      name_(name),
      owner_(owner),
      unchanging_(unchanging),
      part_(part),
      receiver_(receiver),
      initially_compressed_(initial.compressed),
      least_room_(rooms.least),
      current_(initial),
      promotion_(rooms, initial.compressed, state.communicator.rank_count),
      staging_bytes_(initial.staging_bytes) {
  shown_.ever_compressed = initial.compressed;
  shown_.staging_bytes = initial.staging_bytes;
  shown_.reason = part == Part::receives ? sender_decides : promotion_.reason();
}

// Nothing can change before all have wished.
void CallClass::start() {
  if (current_.compressed && !unchanging_) {
    gate_.wish(current_);
  }
}

Status CallClass::begin(const Call& call, bool* compressed) {
  FenceSetting setting;
  std::uint64_t number = 0;
  if (const Status status = gate_.enter(&setting, &number); status != Status::ok) {
    return status;
  }
  if (setting != current_) {
    switch_to(setting, number);
  }
  *compressed = setting.compressed;
  if (call.capturing && setting.compressed && call.eligible && !kept_) {
    keep();  // a graph goes on as it was captured; eager calls beside it do likewise
  }
  if (compares() && !history_complete_) {
    remember(call.form, number);
  }
  if (!kept_ && !call.capturing && call.eligible && !unchanging_) {
    setting.compressed ? review(call, number) : consider(call, number);
  }
  return Status::ok;
}

bool CallClass::keep() {
  kept_ = true;
  return gate_.keep();
}

// FNV-1a over the calls' forms.
void CallClass::remember(std::uint64_t form, std::uint64_t number) {
  history_ = (history_ ^ form) * 0x100000001b3u + number;
  history_complete_ = number + 1 >= compared_calls;
  if (history_complete_ && wish_waits_) {
    wish();
  }
}

void CallClass::switch_to(const FenceSetting& setting, std::uint64_t call) {
  if (setting.compressed) {
    owner_->apply(setting);
  }
  const std::uint32_t pool_bytes = pool_bytes_of(setting.pool_fraction);
  current_ = setting;
  promotion_.switched(setting.compressed ? Wish{pool_bytes} : Wish{}, owner_->enqueued_chunks());
  const collectives::Communicator& communicator = comm_.communicator;
  const log::DeviceScope device(communicator.device->ordinal());
  const auto number = static_cast<unsigned long long>(call);
  if (setting.compressed) {
    log::write(LogLevel::info,
               "communicator %s, rank %d of %d: %s are compressed from call %llu on, room for outliers %u bytes in "
               "1,024 values",
               comm_.name.c_str(), communicator.rank, communicator.rank_count, name_, number, pool_bytes);
  } else {
    log::write(LogLevel::info, "communicator %s, rank %d of %d: %s are native from call %llu on: %s",
               comm_.name.c_str(), communicator.rank, communicator.rank_count, name_, number,
               part_ == Part::receives || promotion_.ready() ? others_decide : promotion_.reason());
  }
  const std::lock_guard lock(mutex_);
  if (setting.compressed) {
    shown_.ever_compressed = true;
    shown_.staging_bytes = setting.staging_bytes;
  }
  if (shown_.switches.size() == kept_switches) {
    shown_.switches.erase(shown_.switches.begin());
  }
  shown_.switches.push_back({call, setting.compressed, pool_bytes});
}

// Of a native call.
void CallClass::consider(const Call& call, std::uint64_t number) {
  if (part_ == Part::receives) {
    agree(number);
    return;
  }
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
  codec::Device& device = *comm_.communicator.device;
  if (observer_ == nullptr && Observer::create(device, &observer_) != Status::ok) {
    unobservable_ = true;
    const std::lock_guard lock(mutex_);
    shown_.reason = "no device memory to look at its calls";
    return;
  }
  // A device that fails here fails in NCCL, too, which says why.
  static_cast<void>(observer_->look(call.send, call.count, call.stream));
}

// A receiver knows nothing of the values before they have come: it is ready for what the sender wants.
void CallClass::agree(std::uint64_t number) {
  if (agreed_ || !history_complete_) {
    return;
  }
  agreed_ = true;
  if (reserve(number)) {
    gate_.wish({true, pool_fraction_of(least_room_), staging_bytes_, history_});
  }
}

// Of a compressed call.
void CallClass::review(const Call& call, std::uint64_t number) {
  if (part_ == Part::receives) {
    return;
  }
  Usage usage = owner_->usage();
  if (receiver_) {  // neither what came from others nor other classes' calls say anything of what goes there
    usage.messages = part_ == Part::sends ? ++sent_messages_ : comm_.communicator.next_half;
    usage.values = sent_values_ += call.count;
    const auto sent = comm_.sent_to(*receiver_);
    usage.overflow_messages = sent.records;
    usage.overflow_bytes = sent.bytes;
  }
  if (promotion_.used(usage, number)) {
    wish();
  }
}

bool CallClass::reserve(std::uint64_t number) {
  std::string why;
  staging_bytes_ = owner_->reserve(&why);
  if (staging_bytes_ == 0) {
    const collectives::Communicator& communicator = comm_.communicator;
    log::write(memory_reason_.empty() ? LogLevel::warn : LogLevel::info,
               "communicator %s, rank %d of %d: %s stay native at call %llu: %s", comm_.name.c_str(), communicator.rank,
               communicator.rank_count, name_, static_cast<unsigned long long>(number), why.c_str());
  }
  memory_reason_ = why;
  return staging_bytes_ != 0;
}

void CallClass::wish() {
  const Wish& own = promotion_.wish();
  wish_waits_ = compares() && !history_complete_;
  if (!wish_waits_) {
    gate_.wish(own.pool_bytes ? FenceSetting{true, pool_fraction_of(*own.pool_bytes), staging_bytes_, history_}
                              : FenceSetting{});
  }
  const std::lock_guard lock(mutex_);
  shown_.reason = memory_reason_.empty() ? promotion_.reason() : memory_reason_;
  if (!shown_.ever_compressed) {
    shown_.staging_bytes = staging_bytes_;
  }
}

bool CallClass::idle() const { return observer_ == nullptr || observer_->idle(); }

CallClass::State CallClass::state() const {
  const switcher::FenceGate::State gate = gate_.state();
  const std::lock_guard lock(mutex_);
  State state = shown_;
  state.gate = gate;
  return state;
}

}  // namespace zipccl::interpose
