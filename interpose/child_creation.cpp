#include "interpose/child_creation.hpp"

#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "interpose/devices.hpp"
#include "interpose/log.hpp"
#include "interpose/real_nccl.hpp"

namespace zipccl::interpose {

namespace {

using collectives::NcclTable;

// "/split1" for a parent's first, "/split1.2" for its third.
std::string suffix_of(const std::string& kind, std::uint64_t number) {
  return "/" + kind + (number > 0 ? "." + std::to_string(number) : "");
}

// Nothing if NCCL will refuse the list, or if one rank is left.
std::optional<switcher::Place> place_after(const collectives::Communicator& parent, const std::vector<int>& excluded) {
  const std::set<int> gone(excluded.begin(), excluded.end());
  const bool exist = gone.empty() || (*gone.begin() >= 0 && *gone.rbegin() < parent.rank_count);
  if (!exist || gone.size() != excluded.size() || gone.contains(parent.rank)) {
    return std::nullopt;
  }
  const auto lower = std::distance(gone.begin(), gone.lower_bound(parent.rank));
  return switcher::Place{static_cast<std::uint32_t>(parent.rank - lower),
                         static_cast<std::uint32_t>(parent.rank_count) - static_cast<std::uint32_t>(gone.size())};
}

}  // namespace

ChildCreation::ChildCreation(const CommPointer& parent, const std::string& suffix, const Way& way,
                             const ncclConfig_t* config)
    : Creation((parent != nullptr ? parent->name : "unknown") + suffix, way, config),
      parents_device_(parent != nullptr ? parent->communicator.device : nullptr),
      memory_(way.choice && way.choice->color < 0 ? Memory::none : Memory::staging) {
  if (parent == nullptr) {
    refuse("zipccl does not know its parent", Refusal::unwanted);
  } else if (!parent->offspring.parent()) {
    refuse("its parent is native: " + parent->reason, Refusal::wanted);  // the user has heard of that
  }
}

std::shared_ptr<ChildCreation> ChildCreation::of_split(const CommPointer& parent, int color, int key,
                                                       const ncclConfig_t* config) {
  const std::uint64_t number = parent != nullptr ? parent->offspring.next_split() : 0;
  Way way;
  if (parent != nullptr && parent->offspring.parent()) {
    const collectives::Communicator& communicator = parent->communicator;
    way.invitation = switcher::split_of(*parent->offspring.parent(), number);
    way.choice = {color, key};
    way.ranks = {2, communicator.rank_count};
    way.rank = communicator.rank;
    way.rank_count = communicator.rank_count;
  }
  const std::string suffix = suffix_of("split" + std::to_string(color), number);
  return std::shared_ptr<ChildCreation>(new ChildCreation(parent, suffix, way, config));
}

std::shared_ptr<ChildCreation> ChildCreation::of_shrink(const CommPointer& parent, const std::vector<int>& excluded,
                                                        const ncclConfig_t* config) {
  const std::uint64_t number = parent != nullptr ? parent->offspring.next_shrink(excluded) : 0;
  Way way;
  std::optional<switcher::Place> place;
  if (parent != nullptr && parent->offspring.parent()) {
    place = place_after(parent->communicator, excluded);
    if (place) {
      way.invitation = switcher::shrink_of(*parent->offspring.parent(), excluded, number);
      way.rank = static_cast<int>(place->rank);
      way.rank_count = static_cast<int>(place->rank_count);
      way.ranks = way.rank_count;
    }
  }
  std::shared_ptr<ChildCreation> creation(new ChildCreation(parent, suffix_of("shrink", number), way, config));
  if (!creation->refused() && (!place || place->rank_count < 2)) {
    creation->refuse("it has one rank", Refusal::wanted);  // or arguments that NCCL refuses
  }
  return creation;
}

ncclResult_t ChildCreation::begin() {
  if (refused()) {
    return ncclSuccess;
  }
  const OrdinalScope device(parents_device_ != nullptr ? parents_device_->ordinal() : -1);  // as NCCL does
  return say_hello(memory_);
}

ncclResult_t ChildCreation::finish(ncclComm_t* comm, ncclResult_t result) {
  if (comm == nullptr || *comm == nullptr) {
    if (result == ncclSuccess || result == ncclInProgress) {
      leave();
      return result;
    }
    return Creation::finish(comm, result);
  }
  if (result == ncclSuccess && !nonblocking()) {
    int rank = 0;
    int rank_count = 0;
    ncclResult_t asked = call_real<&NcclTable::ncclCommUserRank>(*comm, &rank);
    if (asked == ncclSuccess) {
      asked = call_real<&NcclTable::ncclCommCount>(*comm, &rank_count);
    }
    if (asked != ncclSuccess) {
      return fail(comm, asked);
    }
    settle(rank, rank_count);
    if (rank_count < 2) {
      leave();
      refuse("it has one rank", Refusal::wanted);
    }
  }
  return Creation::finish(comm, result);
}

}  // namespace zipccl::interpose
