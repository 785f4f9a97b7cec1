#include "switcher/agreements.hpp"

#include <sys/random.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "switcher/limits.hpp"
#include "switcher/lineage.hpp"
#include "switcher/text.hpp"

namespace zipccl::switcher {
namespace {

// Requests of up to 256 bytes are never cut short.
bool random_bytes(void* buffer, std::size_t size) { return getrandom(buffer, size, 0) == static_cast<ssize_t>(size); }

constexpr const char* unknown_parent = "unknown parent communicator or secret";
constexpr const char* unknown_id = "unknown id or secret, or a verdict was given without this rank";

}  // namespace

Status Agreements::issue(Ticket* ticket) {
  const std::lock_guard lock(mutex_);
  if (next_nonce_ == 0) {
    if (!random_bytes(&next_nonce_, sizeof(next_nonce_))) return Status::unsupported;
    next_nonce_ = (next_nonce_ >> 1) + 1;  // leaves room to ascend
  }
  Agreement agreement;
  agreement.ticket.nonce = next_nonce_;
  if (!random_bytes(agreement.ticket.secret.data(), secret_bytes)) return Status::unsupported;
  *ticket = agreement.ticket;
  agreements_.emplace(next_nonce_++, std::move(agreement));
  if (agreements_.size() > max_unused_ids) forget_unused();
  return Status::ok;
}

void Agreements::forget_unused() {
  const auto unused = std::find_if(agreements_.begin(), agreements_.end(),
                                   [](const auto& entry) { return entry.second.members.empty(); });
  if (unused != agreements_.end()) agreements_.erase(unused);
}

bool Agreements::child_is_open() const {
  const std::lock_guard lock(mutex_);
  const auto may_ask = [](const auto& entry) { return entry.second.left.empty() && !entry.second.hello.nonblocking; };
  return std::ranges::any_of(agreements_, [&](const auto& entry) {
    const Agreement& agreement = entry.second;
    return agreement.descent.kind != Descent::Kind::none && std::ranges::any_of(agreement.members, may_ask);
  });
}

std::string Agreements::check(const Ticket& ticket, const Descent& descent) const {
  const std::lock_guard lock(mutex_);
  if (descent.kind == Descent::Kind::none) {
    const auto found = agreements_.find(ticket.nonce);
    if (found != agreements_.end() && found->second.descent == descent && same_secret(found->second.ticket, ticket)) {
      return {};
    }
    return unknown_id;
  }
  const auto parent = parents_.find(descent.parent);
  if (parent == parents_.end()) return unknown_parent;
  const Ticket derived = descend(parent->second, descent);
  return derived.nonce == ticket.nonce && same_secret(derived, ticket) ? "" : unknown_parent;
}

std::string Agreements::join(const Ticket& ticket, const Descent& descent, Hello hello,
                             std::weak_ptr<Participant> participant) {
  const std::lock_guard lock(mutex_);
  auto found = agreements_.find(ticket.nonce);
  if (found == agreements_.end()) {
    if (descent.kind == Descent::Kind::none) return unknown_id;
    found = agreements_.try_emplace(ticket.nonce).first;
    found->second.ticket = ticket;
    found->second.descent = descent;
  }
  Agreement& agreement = found->second;
  std::string refusal;
  const std::uint32_t rank = hello.rank;
  if (hello.rank_count > max_rank_count) {
    refusal =
        std::to_string(hello.rank_count) + " ranks are more than a session holds, " + std::to_string(max_rank_count);
  } else if (rank >= hello.rank_count) {
    refusal = rank_name(rank) + " is not below its rank count, " + std::to_string(hello.rank_count);
  } else if (agreement.members.contains(rank)) {
    refusal = rank_name(rank) + " said hello twice";
  } else if (!agreement.members.empty()) {
    const auto& [first_rank, first] = *agreement.members.begin();
    if (first.hello.rank_count != hello.rank_count) {
      refusal = rank_name(rank) + " counts " + std::to_string(hello.rank_count) + " ranks, " + rank_name(first_rank) +
                " " + std::to_string(first.hello.rank_count);
    }
  }
  if (refusal.empty()) {
    agreement.members.emplace(rank, Member{std::move(hello), std::move(participant), {}});
  } else if (agreement.objection.empty()) {
    agreement.objection = refusal;
  }
  return refusal;
}

void Agreements::object(std::uint64_t nonce, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  const auto found = agreements_.find(nonce);
  if (found != agreements_.end() && found->second.objection.empty()) found->second.objection = reason;
}

void Agreements::leave(std::uint64_t nonce, std::uint32_t rank, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  const auto found = agreements_.find(nonce);
  if (found == agreements_.end()) return;
  Agreement& agreement = found->second;
  if (agreement.descent.kind == Descent::Kind::split) {
    // Its color is known, so that the others' verdicts do not depend on it.
    const auto member = agreement.members.find(rank);
    if (member == agreement.members.end()) return;
    member->second.left = rank_name(rank) + " of its parent " + reason;
    const auto stays = [](const auto& entry) { return entry.second.left.empty(); };
    if (std::none_of(agreement.members.begin(), agreement.members.end(), stays)) agreements_.erase(found);
    return;
  }
  agreement.members.erase(rank);
  if (agreement.objection.empty()) agreement.objection = rank_name(rank) + " " + reason;
  if (agreement.members.empty()) agreements_.erase(found);
}

std::vector<Agreements::Candidate> Agreements::candidates_of(const Agreement& agreement) {
  const std::uint32_t rank_count = agreement.members.begin()->second.hello.rank_count;
  if (agreement.descent.kind != Descent::Kind::split) {
    Candidate candidate{agreement.ticket, std::vector<const Member*>(rank_count, nullptr), agreement.objection};
    for (const auto& [rank, member] : agreement.members) candidate.members[rank] = &member;
    return {candidate};
  }
  std::string objection = agreement.objection;
  for (std::uint32_t rank = 0; rank < rank_count && objection.empty(); ++rank) {
    if (!agreement.members.contains(rank)) objection = rank_name(rank) + " of its parent said no hello to the split";
  }
  // As NCCL ranks them: by key, and by rank in the parent where keys are equal.
  std::vector<std::tuple<std::int32_t, std::int32_t, std::uint32_t>> order;
  for (const auto& [rank, member] : agreement.members) {
    if (member.hello.choice->color >= 0) order.emplace_back(member.hello.choice->color, member.hello.choice->key, rank);
  }
  std::ranges::sort(order);
  std::vector<Candidate> candidates;
  for (const auto& [rank, member] : agreement.members) {
    if (member.hello.choice->color < 0) candidates.push_back({{}, {&member}, "it takes no part in the split"});
  }
  for (auto next = order.begin(); next != order.end();) {
    const std::int32_t color = std::get<0>(*next);
    Candidate& candidate = candidates.emplace_back();
    candidate.ticket = ticket_of_color(agreement.ticket, color);
    candidate.objection = objection;
    for (; next != order.end() && std::get<0>(*next) == color; ++next) {
      const Member& member = agreement.members.at(std::get<2>(*next));
      candidate.members.push_back(&member);
      if (candidate.objection.empty()) candidate.objection = member.left;
    }
  }
  return candidates;
}

Verdict Agreements::verdict_of(const Candidate& candidate) {
  Verdict verdict;
  if (!candidate.objection.empty()) {
    verdict.reason = candidate.objection;
    return verdict;
  }
  std::vector<const Hello*> hellos;
  for (const Member* member : candidate.members) hellos.push_back(member != nullptr ? &member->hello : nullptr);
  return switcher::decide(hellos);
}

void Agreements::admit_children(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  if (!parents_.insert_or_assign(ticket.nonce, ticket).second) return;
  parents_by_age_.push_back(ticket.nonce);
  if (parents_by_age_.size() <= max_parents) return;
  parents_.erase(parents_by_age_.front());
  parents_by_age_.pop_front();
}

std::vector<Agreed> Agreements::decide(std::uint64_t nonce, std::uint32_t asking_rank) {
  std::unique_lock lock(mutex_);
  const auto node = agreements_.extract(nonce);
  lock.unlock();
  if (node.empty()) return {};
  const Agreement& agreement = node.mapped();
  const auto asking = agreement.members.find(asking_rank);
  const Member* const last = asking != agreement.members.end() ? &asking->second : nullptr;
  std::vector<Agreed> agreed;
  std::function<void()> answer_last = [] {};
  for (const Candidate& candidate : candidates_of(agreement)) {
    const Verdict verdict = verdict_of(candidate);
    const auto frame = std::make_shared<const WireBytes>(encode_verdict(verdict));
    if (verdict.compressed) {
      admit_children(candidate.ticket);
      agreed.push_back({candidate.ticket.nonce, {}});
    }
    for (std::uint32_t rank = 0; rank < candidate.members.size(); ++rank) {
      const Member* const member = candidate.members[rank];
      if (member == nullptr) continue;
      if (verdict.compressed) agreed.back().participants.emplace(rank, member->participant);
      const Place place{rank, static_cast<std::uint32_t>(candidate.members.size())};
      const bool moves = verdict.compressed && agreement.descent.kind == Descent::Kind::split;
      const auto answer = [participant = member->participant, frame, place, moves, compressed = verdict.compressed,
                           child = candidate.ticket.nonce] {
        const auto alive = participant.lock();
        if (alive == nullptr) return;
        if (moves) alive->move(child, place);
        alive->answer(frame, compressed ? Participant::More::expected : Participant::More::none);
      };
      if (member == last) {
        answer_last = answer;
      } else {
        answer();
      }
    }
  }
  answer_last();
  return agreed;
}

}  // namespace zipccl::switcher
