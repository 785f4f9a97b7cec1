#include "interpose/transfer_classes.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "interpose/comm_table.hpp"
#include "interpose/config.hpp"

namespace zipccl::interpose {

namespace {

using switcher::FenceSetting;

constexpr switcher::FenceClass all_to_all_class{2, 0};

switcher::FenceClass pair_class(std::uint32_t sender, std::uint32_t receiver) {
  return {3, std::uint64_t{sender} << 32 | receiver};
}

// Staging for transfers grows with the calls, so that there is nothing to agree on: any size that is not zero.
constexpr std::uint64_t growing = 1;

FenceSetting initial_setting(const collectives::Communicator& communicator) {
  return communicator.transfers == nullptr ? FenceSetting{}
                                           : FenceSetting{true, communicator.agreement.pool_fraction, growing, 0};
}

Rooms rooms(const collectives::Communicator& communicator) {
  return {pool_bytes_of(communicator.agreement.pool_fraction), Promotion::most_transfer_room};
}

bool unchanging() { return configuration().settings.start == Start::always; }

}  // namespace

TransferClasses::TransferClasses(CommState& state, switcher::Rendezvous& rendezvous, switcher::Fences& fences)
    : state_(state),
      rendezvous_(rendezvous),
      fences_(fences),
      initial_(initial_setting(state.communicator)),
      all_to_all_(state,
                  fences.gate(all_to_all_class,
                              switcher::all_ranks(static_cast<std::uint32_t>(state.communicator.rank_count)), initial_),
                  "all-to-alls", this, initial_, rooms(state.communicator), unchanging()) {}

CallClass& TransferClasses::pair(std::uint32_t peer, bool sends) {
  const auto found = pairs_.find({peer, sends});
  if (found != pairs_.end()) {
    return *found->second;
  }
  const auto own = static_cast<std::uint32_t>(state_.communicator.rank);
  switcher::FenceGate& gate = fences_.gate(sends ? pair_class(own, peer) : pair_class(peer, own),
                                           {std::min(own, peer), std::max(own, peer)}, initial_);
  CallClass::Owner* const owner = this;
  auto made = std::make_unique<CallClass>(state_, gate, sends ? "sends to a peer" : "receives from a peer", owner,
                                          initial_, rooms(state_.communicator), unchanging(),
                                          sends ? CallClass::Part::sends : CallClass::Part::receives, peer);
  made->start();
  const std::lock_guard lock(mutex_);
  return *pairs_.emplace(std::pair{peer, sends}, std::move(made)).first->second;
}

// The calling thread is the only one that changes the map.
bool TransferClasses::keep() {
  bool settled = all_to_all_.keep();
  for (const auto& [place, pair] : pairs_) {
    settled = pair->keep() && settled;
  }
  return settled;
}

std::vector<TransferClasses::PairState> TransferClasses::pair_states() const {
  const std::lock_guard lock(mutex_);
  std::vector<PairState> states;
  for (const auto& [place, pair] : pairs_) {
    states.push_back({place.first, place.second, pair->state()});
  }
  return states;
}

bool TransferClasses::idle() const {
  const std::lock_guard lock(mutex_);
  return all_to_all_.idle() &&
         std::all_of(pairs_.begin(), pairs_.end(), [](const auto& p) { return p.second->idle(); });
}

std::uint64_t TransferClasses::reserve(std::string* why) {
  collectives::Communicator& communicator = state_.communicator;
  Status status = state_.open_exchange(rendezvous_);
  if (status == Status::ok && communicator.transfers == nullptr) {
    status = collectives::TransferStaging::create(*communicator.device, configuration().settings.transfer_bytes,
                                                  &communicator.transfers);
  }
  if (status == Status::ok) {
    return growing;
  }
  *why = std::string("no memory for compressed transfers: ") + describe(status);
  return 0;
}

Usage TransferClasses::usage() const { return state_.usage(); }

std::uint64_t TransferClasses::enqueued_chunks() const { return state_.enqueued_chunks(); }

}  // namespace zipccl::interpose
