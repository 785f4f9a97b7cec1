#include "test/standin/collectives.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "test/standin/error.hpp"

namespace standin {
namespace {

std::byte* at(void* base, std::size_t offset) { return static_cast<std::byte*>(base) + offset; }

// Sent data is only read; messages of both directions share one type.
std::byte* readable(const void* base, std::size_t offset) { return at(const_cast<void*>(base), offset); }

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

// A rank's part of `count` values cut into rank_count parts that differ by at most one value.
struct Slice {
  std::size_t begin;
  std::size_t count;

  static Slice of(std::size_t count, int rank, int rank_count) {
    const auto n = static_cast<std::size_t>(rank_count);
    const auto r = static_cast<std::size_t>(rank);
    const std::size_t begin = r * (count / n) + std::min(r, count % n);
    return {begin, count / n + (r < count % n ? 1 : 0)};
  }
};

// Builds the steps of one collective.
class Planner {
 public:
  explicit Planner(const Operation& operation)
      : operation_(operation),
        communicator_(*operation.communicator),
        rank_(communicator_.rank()),
        rank_count_(communicator_.rank_count()),
        value_bytes_(type_bytes(operation.type)) {
    header_.kind = static_cast<std::uint32_t>(operation.kind);
    header_.type = static_cast<std::uint32_t>(operation.type);
    header_.count = operation.count;
    const bool rooted = operation.kind == Kind::broadcast || operation.kind == Kind::reduce;
    header_.parameter =
        static_cast<std::uint32_t>(rooted ? operation.peer : static_cast<int>(operation.reduction.combine));
    header_.sequence = communicator_.next_sequence();
  }

  std::vector<Step> plan() {
    switch (operation_.kind) {
      case Kind::all_gather:
        all_gather(operation_.send, operation_.count);
        break;
      case Kind::broadcast:
        broadcast();
        break;
      case Kind::all_reduce:
        reduce_slices(operation_.receive, true);
        gather_slices(std::nullopt);
        break;
      case Kind::reduce:
        reduce_slices(operation_.receive, rank_ == operation_.peer);
        gather_slices(operation_.peer);
        break;
      default:
        reduce_scatter();
        break;
    }
    steps_.front().latency = communicator_.settings().latency;
    return std::move(steps_);
  }

 private:
  // The other ranks, the next one first, so that not all ranks send to the same one at first.
  std::vector<int> others() const {
    std::vector<int> ranks;
    for (int step = 1; step < rank_count_; ++step) ranks.push_back((rank_ + step) % rank_count_);
    return ranks;
  }

  Message message(std::byte* data, std::size_t bytes) const { return Message{header_, data, bytes, nullptr, 0, {}}; }

  void all_gather(const void* send, std::size_t count) {
    const std::size_t bytes = count * value_bytes_;
    Step& step = steps_.emplace_back();
    for (const int peer : others()) {
      Lane& lane = step.lane(peer);
      lane.outgoing.push_back(message(readable(send, 0), bytes));
      lane.incoming.push_back(message(at(operation_.receive, static_cast<std::size_t>(peer) * bytes), bytes));
    }
    void* own = at(operation_.receive, static_cast<std::size_t>(rank_) * bytes);
    step.finish = [=] { copy(own, send, bytes); };
  }

  // A chain from the root on, each rank passing on what has arrived, so that the root's link carries the data once.
  void broadcast() {
    const std::size_t bytes = operation_.count * value_bytes_;
    const int position = (rank_ - operation_.peer + rank_count_) % rank_count_;
    Step& step = steps_.emplace_back();
    step.lanes.resize(2);
    Lane& from = step.lanes[0];
    Lane& to = step.lanes[1];
    from.peer = (rank_ + rank_count_ - 1) % rank_count_;
    to.peer = (rank_ + 1) % rank_count_;
    if (position > 0) from.incoming.push_back(message(at(operation_.receive, 0), bytes));
    if (position < rank_count_ - 1) {
      Message& onward = to.outgoing.emplace_back(
          message(position == 0 ? readable(operation_.send, 0) : at(operation_.receive, 0), bytes));
      if (position > 0) onward.source = &from.incoming.front();
    }
    if (position == 0) step.finish = [=, op = operation_] { copy(op.receive, op.send, bytes); };
  }

  // Every rank gets all ranks' values of its part and adds them to `result`: at the part's place in it or, without
  // `in_place_of_part`, at a place of its own (reduced_).
  void reduce_slices(void* result, bool in_place_of_part) {
    std::vector<Slice> slices;
    for (int rank = 0; rank < rank_count_; ++rank) slices.push_back(Slice::of(operation_.count, rank, rank_count_));
    const Slice own = slices[static_cast<std::size_t>(rank_)];
    if (in_place_of_part) {
      reduced_ = at(result, own.begin * value_bytes_);
    } else {
      reduced_owner_ = std::make_shared<std::vector<std::byte>>(own.count * value_bytes_);
      reduced_ = reduced_owner_->data();
    }
    exchange_and_reduce(slices);
  }

  void reduce_scatter() {
    std::vector<Slice> slices;
    for (int rank = 0; rank < rank_count_; ++rank) {
      slices.push_back({static_cast<std::size_t>(rank) * operation_.count, operation_.count});
    }
    reduced_ = at(operation_.receive, 0);
    exchange_and_reduce(slices);
  }

  void exchange_and_reduce(const std::vector<Slice>& slices) {
    const Slice own = slices[static_cast<std::size_t>(rank_)];
    const std::size_t own_bytes = own.count * value_bytes_;
    auto arrived = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(rank_count_) * own_bytes);
    std::vector<const std::byte*> parts(static_cast<std::size_t>(rank_count_));
    Step& step = steps_.emplace_back();
    for (const int peer : others()) {
      const Slice theirs = slices[static_cast<std::size_t>(peer)];
      std::byte* place = arrived->data() + static_cast<std::size_t>(peer) * own_bytes;
      parts[static_cast<std::size_t>(peer)] = place;
      Lane& lane = step.lane(peer);
      lane.outgoing.push_back(
          message(readable(operation_.send, theirs.begin * value_bytes_), theirs.count * value_bytes_));
      lane.incoming.push_back(message(place, own_bytes));
    }
    parts[static_cast<std::size_t>(rank_)] = readable(operation_.send, own.begin * value_bytes_);
    step.finish = [arrived, parts, own, reduction = operation_.reduction, result = reduced_, owner = reduced_owner_,
                   rank = rank_,
                   rank_count = rank_count_] { reduction.reduce(result, parts.data(), rank_count, rank, own.count); };
  }

  // Brings the reduced parts together, on all ranks or on the root.
  void gather_slices(std::optional<int> root) {
    const std::size_t own_bytes = Slice::of(operation_.count, rank_, rank_count_).count * value_bytes_;
    Step& step = steps_.emplace_back();
    for (const int peer : others()) {
      Lane& lane = step.lane(peer);
      if (!root || *root == peer) lane.outgoing.push_back(message(reduced_, own_bytes));
      if (!root || *root == rank_) {
        const Slice theirs = Slice::of(operation_.count, peer, rank_count_);
        lane.incoming.push_back(
            message(at(operation_.receive, theirs.begin * value_bytes_), theirs.count * value_bytes_));
      }
    }
    step.finish = [owner = reduced_owner_] {};  // keeps the part until it is sent
  }

  const Operation& operation_;
  Communicator& communicator_;
  const int rank_;
  const int rank_count_;
  const std::size_t value_bytes_;
  Header header_;
  std::vector<Step> steps_;
  std::byte* reduced_ = nullptr;
  std::shared_ptr<std::vector<std::byte>> reduced_owner_;
};

std::size_t payload_bytes(const Operation& operation) { return operation.count * type_bytes(operation.type); }

Step plan_point_to_point(const std::vector<const Operation*>& operations) {
  Step step;
  const Communicator& communicator = *operations.front()->communicator;
  step.latency = communicator.settings().latency;
  std::vector<const Operation*> own_sends;
  std::vector<const Operation*> own_receives;
  for (const Operation* operation : operations) {
    const bool sends = operation->kind == Kind::send;
    if (operation->peer == communicator.rank()) {
      (sends ? own_sends : own_receives).push_back(operation);
      continue;
    }
    const std::size_t bytes = payload_bytes(*operation);
    Header header;
    header.kind = static_cast<std::uint32_t>(Kind::send);
    header.count = bytes;
    Lane& lane = step.lane(operation->peer);
    lane.acknowledged = communicator.settings().rendezvous;
    std::byte* data = sends ? readable(operation->send, 0) : at(operation->receive, 0);
    (sends ? lane.outgoing : lane.incoming).push_back(Message{header, data, bytes, nullptr, 0, {}});
  }
  std::vector<std::function<void()>> copies;
  for (std::size_t index = 0; index < own_sends.size(); ++index) {
    copies.emplace_back([to = own_receives[index]->receive, from = own_sends[index]->send,
                         bytes = payload_bytes(*own_sends[index])] { copy(to, from, bytes); });
  }
  step.finish = [copies = std::move(copies)] {
    for (const auto& copy_one : copies) copy_one();
  };
  return step;
}

}  // namespace

void require_matched_self(std::span<const Operation> operations) {
  std::map<const Communicator*, std::vector<std::size_t>> sends;
  std::map<const Communicator*, std::vector<std::size_t>> receives;
  for (const Operation& operation : operations) {
    if (!operation.point_to_point() || operation.peer != operation.communicator->rank()) continue;
    auto& list = operation.kind == Kind::send ? sends : receives;
    list[operation.communicator.get()].push_back(payload_bytes(operation));
  }
  if (sends != receives) {
    throw Error(ncclInvalidUsage, "a send to the rank itself needs a receive of the same size in its group");
  }
}

std::vector<Step> plan(std::span<const Operation> operations) {
  std::vector<Step> steps;
  std::vector<const Operation*> point_to_point;
  for (const Operation& operation : operations) {
    if (operation.point_to_point()) {
      point_to_point.push_back(&operation);
      continue;
    }
    for (Step& step : Planner(operation).plan()) steps.push_back(std::move(step));
  }
  if (!point_to_point.empty()) steps.push_back(plan_point_to_point(point_to_point));
  return steps;
}

std::string describe(const Header& header) {
  static constexpr const char* names[] = {"all-gather",     "broadcast", "reduce", "all-reduce",
                                          "reduce-scatter", "message",   "message"};
  const std::string name = header.kind < std::size(names) ? names[header.kind] : "something unknown";
  std::string text = name + " of " + std::to_string(header.count) + " x type " + std::to_string(header.type);
  text += ", parameter " + std::to_string(header.parameter) + ", number " + std::to_string(header.sequence);
  return text;
}

}  // namespace standin
