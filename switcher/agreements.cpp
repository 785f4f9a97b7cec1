#include "switcher/agreements.hpp"

#include <sys/random.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "switcher/limits.hpp"
#include "switcher/text.hpp"

namespace zipccl::switcher {
namespace {

// Requests of up to 256 bytes are never cut short.
bool random_bytes(void* buffer, std::size_t size) { return getrandom(buffer, size, 0) == static_cast<ssize_t>(size); }

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

std::string Agreements::check(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  const auto found = agreements_.find(ticket.nonce);
  if (found != agreements_.end() && same_secret(found->second.ticket, ticket)) return {};
  return unknown_id;
}

std::string Agreements::join(std::uint64_t nonce, Hello hello, std::weak_ptr<Participant> participant) {
  const std::lock_guard lock(mutex_);
  const auto found = agreements_.find(nonce);
  if (found == agreements_.end()) return unknown_id;
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
    agreement.members.emplace(rank, Member{std::move(hello), std::move(participant)});
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
  agreement.members.erase(rank);
  if (agreement.objection.empty()) agreement.objection = rank_name(rank) + " " + reason;
  if (agreement.members.empty()) agreements_.erase(found);
}

Verdict Agreements::verdict_of(const Agreement& agreement) const {
  Verdict verdict;
  if (!agreement.objection.empty()) {
    verdict.reason = agreement.objection;
    return verdict;
  }
  std::vector<const Hello*> hellos(agreement.members.begin()->second.hello.rank_count, nullptr);
  for (const auto& [rank, member] : agreement.members) hellos[rank] = &member.hello;
  return switcher::decide(hellos);
}

Participants Agreements::decide(std::uint64_t nonce, std::uint32_t asking_rank) {
  std::unique_lock lock(mutex_);
  const auto node = agreements_.extract(nonce);
  lock.unlock();
  if (node.empty()) return {};
  const Agreement& agreement = node.mapped();
  const Verdict verdict = verdict_of(agreement);
  const auto frame = std::make_shared<const WireBytes>(encode_verdict(verdict));
  const auto more = verdict.compressed ? Participant::More::expected : Participant::More::none;
  const auto answer = [&](const Member& member) {
    if (const auto participant = member.participant.lock()) participant->answer(frame, more);
  };
  Participants participants;
  for (const auto& [rank, member] : agreement.members) {
    if (rank != asking_rank) answer(member);
    if (verdict.compressed) participants.emplace(rank, member.participant);
  }
  const auto asking = agreement.members.find(asking_rank);
  if (asking != agreement.members.end()) answer(asking->second);
  return participants;
}

}  // namespace zipccl::switcher
