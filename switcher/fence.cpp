#include "switcher/fence.hpp"

#include <algorithm>
#include <numeric>

namespace zipccl::switcher {

FenceSetting combine(std::span<const FenceSetting> wishes) {
  FenceSetting combined = wishes.front();
  for (const FenceSetting& wish : wishes) {
    if (!wish.compressed || wish.history != combined.history) return {};
    combined.pool_fraction = std::max(combined.pool_fraction, wish.pool_fraction);
    combined.staging_bytes = std::min(combined.staging_bytes, wish.staging_bytes);
  }
  return combined;
}

std::vector<std::uint32_t> all_ranks(std::uint32_t rank_count) {
  std::vector<std::uint32_t> ranks(rank_count);
  std::iota(ranks.begin(), ranks.end(), 0u);
  return ranks;
}

Fence::Fence(std::vector<std::uint32_t> participants, std::uint32_t own, const FenceSetting& initial)
    : own_(own),
      coordinator_(*std::min_element(participants.begin(), participants.end())),
      current_(initial),
      latest_(initial) {
  std::sort(participants.begin(), participants.end());
  for (const std::uint32_t rank : participants) participants_.push_back({rank, false, initial, 0});
}

Fence::Entry Fence::enter(FenceSetting* setting) {
  if (proposal_ && calls_ >= proposal_->call) return coordinator_lost_ ? Entry::lost : Entry::undecided;
  while (!decided_.empty() && decided_.front().call <= calls_) {
    current_ = decided_.front().setting;
    decided_.pop_front();
  }
  ++calls_;
  *setting = current_;
  return Entry::begun;
}

void Fence::wish(const FenceSetting& setting) {
  if (own_wish_ == setting) return;
  own_wish_ = setting;
  if (coordinator()) {
    note_wish(*find(own_), calls_, setting);
  } else if (!frozen_) {
    send(coordinator_, {FenceMessageType::wish, 0, calls_, setting});
  }
}

void Fence::keep() {
  if (frozen_) return;
  frozen_ = true;
  if (!coordinator()) send(coordinator_, {FenceMessageType::keep, 0, 0, {}});
}

bool Fence::receive(std::uint32_t sender, const FenceMessage& message) {
  Participant* const from = find(sender);
  if (from == nullptr || sender == own_) return false;
  if (coordinator()) return lead(*from, message);
  return sender == coordinator_ && follow(message);
}

void Fence::lose(std::uint32_t participant) {
  if (participant == own_ || find(participant) == nullptr) return;
  if (coordinator()) {
    frozen_ = true;
    if (proposal_) cancel();
  } else if (participant == coordinator_) {
    frozen_ = true;
    coordinator_lost_ = true;
  }
}

Fence::Participant* Fence::find(std::uint32_t rank) {
  const auto found = std::lower_bound(participants_.begin(), participants_.end(), rank,
                                      [](const Participant& one, std::uint32_t other) { return one.rank < other; });
  return found != participants_.end() && found->rank == rank ? &*found : nullptr;
}

void Fence::send_to_others(const FenceMessage& message) {
  for (const Participant& participant : participants_) {
    if (participant.rank != own_) send(participant.rank, message);
  }
}

bool Fence::lead(Participant& sender, const FenceMessage& message) {
  switch (message.type) {
    case FenceMessageType::wish:
      note_wish(sender, message.call, message.setting);
      return true;
    case FenceMessageType::keep:
      frozen_ = true;
      return true;
    case FenceMessageType::accept:
    case FenceMessageType::reject:
      sender.calls = std::max(sender.calls, message.call);
      if (!proposal_ || message.round != proposal_->round) return true;  // of a cancelled one
      if (message.type == FenceMessageType::accept) {
        if (--proposal_->missing == 0) commit();
      } else {
        cancel();
        propose_if_needed();
      }
      return true;
    default:
      return false;
  }
}

bool Fence::follow(const FenceMessage& message) {
  switch (message.type) {
    case FenceMessageType::propose:
      if (proposal_) return false;
      answer(message);
      return true;
    case FenceMessageType::commit:
      if (!proposal_ || message.round != proposal_->round) return false;
      commit();
      return true;
    case FenceMessageType::cancel:
      if (proposal_ && message.round == proposal_->round) proposal_.reset();  // else it was rejected here
      return true;
    default:
      return false;
  }
}

void Fence::note_wish(Participant& participant, std::uint64_t calls, const FenceSetting& setting) {
  participant.wished = true;
  participant.wish = setting;
  participant.calls = std::max(participant.calls, calls);
  attempts_ = 0;
  propose_if_needed();
}

void Fence::propose_if_needed() {
  if (frozen_ || proposal_ || attempts_ == max_attempts) return;
  std::vector<FenceSetting> wishes;
  wishes.reserve(participants_.size());
  std::uint64_t furthest = std::max(calls_, latest_call_);
  for (const Participant& participant : participants_) {
    if (!participant.wished) return;
    wishes.push_back(participant.wish);
    furthest = std::max(furthest, participant.calls);
  }
  const FenceSetting target = combine(wishes);
  if (target == latest_) return;
  std::uint64_t margin = first_margin;
  for (unsigned attempt = 0; attempt < attempts_; ++attempt) margin *= margin_growth;
  ++attempts_;
  proposal_ = Proposal{++round_, furthest + margin, target, participants_.size() - 1};
  send_to_others({FenceMessageType::propose, proposal_->round, proposal_->call, target});
}

void Fence::answer(const FenceMessage& proposal) {
  const bool accepted = !frozen_ && calls_ <= proposal.call && latest_call_ < proposal.call;
  if (accepted) proposal_ = Proposal{proposal.round, proposal.call, proposal.setting, 0};
  send(coordinator_, {accepted ? FenceMessageType::accept : FenceMessageType::reject, proposal.round, calls_, {}});
}

void Fence::commit() {
  if (coordinator()) send_to_others({FenceMessageType::commit, proposal_->round, 0, {}});
  decided_.push_back({proposal_->call, proposal_->setting});
  latest_ = proposal_->setting;
  latest_call_ = proposal_->call;
  proposal_.reset();
  attempts_ = 0;
  if (coordinator()) propose_if_needed();  // wishes may have changed meanwhile
}

void Fence::cancel() {
  send_to_others({FenceMessageType::cancel, proposal_->round, 0, {}});
  proposal_.reset();
}

}  // namespace zipccl::switcher
