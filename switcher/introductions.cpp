#include "switcher/introductions.hpp"

#include <memory>
#include <utility>

#include "switcher/text.hpp"

namespace zipccl::switcher {

void Introductions::begin(std::uint64_t nonce, Participants participants) {
  introductions_[nonce].participants = std::move(participants);
  pending_ = introductions_.size();
}

bool Introductions::enter(std::uint64_t nonce, std::uint32_t rank, const PeerAddress& address) {
  const auto found = introductions_.find(nonce);
  if (found == introductions_.end()) return true;  // its message crossed the result
  Introduction& introduction = found->second;
  if (!introduction.entered.emplace(rank, address).second) return false;
  if (introduction.entered.size() < introduction.participants.size()) return true;
  std::vector<PeerAddress> peers;
  for (const auto& [entered_rank, entered_address] : introduction.entered) peers.push_back(entered_address);
  const auto frame = std::make_shared<const WireBytes>(encode_peers(peers));
  for (const auto& [other_rank, other] : introduction.participants) {
    if (const auto participant = other.lock()) participant->answer(frame, Participant::More::expected);
  }
  return true;
}

bool Introductions::report(std::uint64_t nonce, std::uint32_t rank, const std::string& failure) {
  const auto found = introductions_.find(nonce);
  if (found == introductions_.end()) return true;
  Introduction& introduction = found->second;
  if (!failure.empty()) {
    finish(found, {false, rank_name(rank) + ": " + failure});
    return true;
  }
  if (introduction.entered.size() < introduction.participants.size()) return false;
  introduction.connected.insert(rank);
  if (introduction.connected.size() == introduction.participants.size()) finish(found, {true, {}});
  return true;
}

void Introductions::leave(std::uint64_t nonce, std::uint32_t rank, const std::string& reason) {
  const auto found = introductions_.find(nonce);
  if (found == introductions_.end()) return;
  found->second.participants.erase(rank);
  finish(found, {false, rank_name(rank) + " " + reason});
}

void Introductions::expire(std::uint64_t nonce) {
  const auto found = introductions_.find(nonce);
  if (found == introductions_.end()) return;
  const Introduction& introduction = found->second;
  const bool all_entered = introduction.entered.size() == introduction.participants.size();
  for (const auto& [rank, participant] : introduction.participants) {
    if (all_entered ? introduction.connected.contains(rank) : introduction.entered.contains(rank)) continue;
    const char* reason = all_entered ? " was not connected with all others in time" : " did not connect in time";
    return finish(found, {false, rank_name(rank) + reason});
  }
}

// The root's own rank, which is rank 0 as a rule, comes last: its process may end as soon as it knows.
void Introductions::finish(Entry entry, const ConnectResult& result) {
  const Participants participants = std::move(entry->second.participants);
  introductions_.erase(entry);
  try {
    const auto frame = std::make_shared<const WireBytes>(encode_result(result));
    for (auto other = participants.rbegin(); other != participants.rend(); ++other) {
      if (const auto participant = other->second.lock()) participant->answer(frame, Participant::More::none);
    }
  } catch (...) {
    pending_ = introductions_.size();  // nobody can be told any more, so nobody waits for this process
    throw;
  }
  pending_ = introductions_.size();
}

}  // namespace zipccl::switcher
