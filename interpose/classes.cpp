#include "interpose/classes.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "interpose/comm_table.hpp"
#include "interpose/config.hpp"
#include "interpose/staging_pool.hpp"

namespace zipccl::interpose {

namespace {

using switcher::FenceSetting;

constexpr switcher::FenceClass all_gather_class{1, 0};

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
      staging_agreed_(state.communicator.staging != nullptr),
      fences_(rendezvous, *state.channel, static_cast<std::uint32_t>(state.communicator.rank)),
      all_gather_(
          state,
          fences_.gate(all_gather_class, switcher::all_ranks(static_cast<std::uint32_t>(state.communicator.rank_count)),
                       initial_setting(state.communicator)),
          "all-gathers", this, initial_setting(state.communicator),
          Rooms{pool_bytes_of(state.communicator.agreement.pool_fraction), Promotion::most_gather_room},
          configuration().settings.start == Start::always, CallClass::Part::same,
          collectives::RecordTransport::all_receivers),
      transfers_(state, rendezvous, fences_) {}

Status Classes::start() {
  const Status status = fences_.start();
  if (status == Status::ok) {
    all_gather_.start();
    transfers_.start();
  }
  return status;
}

bool Classes::keep() {
  const bool gathers = all_gather_.keep();
  return transfers_.keep() && gathers;
}

// Device memory, and for mode static the overflow port.
std::uint64_t Classes::reserve(std::string* why) {
  collectives::Communicator& communicator = state_.communicator;
  if (communicator.staging != nullptr) {
    return communicator.staging->bytes();
  }
  StagingPool& pool = StagingPool::instance();
  const bool with_overflow = communicator.agreement.exchange == collectives::Exchange::fixed;
  const std::uint64_t wanted =
      pool.share(*communicator.device, communicator.agreement.staging_bytes, communicator.rank_count, with_overflow);
  std::unique_ptr<collectives::Staging> staging;
  if (pool.reserve(*communicator.device, wanted, communicator.rank_count, with_overflow, &staging, why) != Status::ok) {
    return 0;
  }
  if (const Status status = state_.open_exchange(rendezvous_); status != Status::ok) {
    *why = std::string("no memory or no helper thread for its overflow: ") + describe(status);
    pool.release(*communicator.device, std::move(staging));
    return 0;
  }
  communicator.staging = std::move(staging);
  return communicator.staging->bytes();
}

void Classes::apply(const FenceSetting& setting) {
  collectives::Communicator& communicator = state_.communicator;
  if (!std::exchange(staging_agreed_, true)) {
    communicator.agreement.staging_bytes = setting.staging_bytes;
    communicator.staging->limit(setting.staging_bytes, communicator.rank_count);
  }
  // A user's group may hold calls from before the switch that have not been issued. They get the new room too, on all
  // ranks alike, since ranks group alike.
  communicator.agreement.pool_fraction = setting.pool_fraction;
}

Usage Classes::usage() const { return state_.usage(); }

std::uint64_t Classes::enqueued_chunks() const { return state_.enqueued_chunks(); }

}  // namespace zipccl::interpose
