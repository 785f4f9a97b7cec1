#include "test/unit/transfer_ranks.hpp"

#include <algorithm>
#include <utility>

namespace zipccl::test {

using collectives::Outcome;
using collectives::Transfer;
using collectives::TransferGroup;

namespace {

constexpr std::size_t guard = 8;
constexpr std::uint16_t poison = 0xDEAD;

Status copy(GatherRank& state, const std::vector<std::uint16_t>& from, std::vector<std::uint16_t>& to,
            const TransferShape& shape) {
  return state.device.copy(to.data(), from.data(), shape.count * sizeof(std::uint16_t), stream_of(shape.stream));
}

}  // namespace

TransferRanks::TransferRanks(int count, std::uint64_t reserved_bytes) : StaticRanks(count, 16) {
  for (auto& state : states) {
    collectives::Communicator& communicator = state->communicator;
    communicator.agreement.point_to_point = communicator.agreement.all_to_all = true;
    communicator.link_min_bytes.assign(states.size(), 1);
    REQUIRE(collectives::TransferStaging::create(state->device, reserved_bytes, &communicator.transfers) == Status::ok);
  }
}

int TransferRanks::leaks() {
  stop = true;
  helper.join();
  helper = std::thread([] {});
  int left = 0;
  for (auto& state : states) {
    state->communicator.transfers.reset();
    state->communicator.staging.reset();
    state->communicator.port.reset();
    state->communicator.chain.reset();
    left += state->device.allocations;
  }
  return left;
}

void TransferRanks::require_chained() {
  const cudaStream_t fresh = stream_of(1000);
  for (auto& state : states) {
    REQUIRE(state->communicator.chain->begin(fresh) == Status::ok);
  }
  require_ordered(fresh);
}

Messages::Messages(TransferRanks& ranks, std::vector<TransferShape> shapes, std::uint64_t seed)
    : ranks_(ranks), shapes_(std::move(shapes)) {
  for (const TransferShape& shape : shapes_) {
    sent_.emplace_back(shape.count);
    received_.emplace_back(shape.count + guard);
    copied_to_.emplace_back(shape.count);
    copied_from_.emplace_back(shape.count);
  }
  refill(seed);
}

void Messages::refill(std::uint64_t seed, int kind_shift) {
  for (std::size_t index = 0; index < shapes_.size(); ++index) {
    const auto kind = static_cast<Data>((static_cast<int>(shapes_[index].kind) + kind_shift) % data_kinds);
    std::ranges::copy(make_data(kind, shapes_[index].count, seed * 10000 + index), sent_[index].data());
    std::ranges::fill(received_[index], poison);
  }
}

void Messages::run() {
  ranks_.run([this](GatherRank& state) { enqueue(state); });
}

void Messages::enqueue(GatherRank& state) {
  TransferGroup group(state.communicator);
  std::size_t operations = 0;
  for (std::size_t index = 0; index < shapes_.size(); ++index) {
    const TransferShape& shape = shapes_[index];
    Transfer transfer;
    transfer.communicator = &state.communicator;
    transfer.count = shape.count;
    transfer.stream = stream_of(shape.stream);
    transfer.pool_fraction = shape.room;
    transfer.call_bytes = shape.count * collectives::value_bytes;
    if (shape.from == state.rank.rank) {
      if (copies) {
        copied_to_[index] = sent_[index];
        static_cast<void>(copy(state, copied_to_[index], sent_[index], shape));
      }
      transfer.send = sent_[index].data();
      transfer.peer = shape.to;
      operations = group.add(transfer) + 1;
    }
    if (shape.to == state.rank.rank) {
      transfer.send = nullptr;
      transfer.receive = received_[index].data();
      transfer.peer = shape.from;
      transfer.kind = collectives::Collective::receive;
      operations = group.add(transfer) + 1;
    }
  }
  Outcome outcome;
  bool refused = false;
  if (operations > 0) {
    outcome = group.encode();
    if (outcome.ok()) {
      static_cast<void>(loopback_table().ncclGroupStart());
      for (std::size_t index = 0; index < operations && outcome.ok(); ++index) {
        outcome = group.issue(index);
      }
      refused = !outcome.ok();
      const ncclResult_t closed = loopback_table().ncclGroupEnd();
      outcome = outcome.ok() ? Outcome::of(closed) : outcome;
    }
    if (outcome.ok()) {
      outcome = group.decode();
    }
    if (drops && refused) {
      group.drop();
    } else if (!outcome.ok()) {
      group.abandon(outcome);
    }
  }
  for (std::size_t index = 0; copies && index < shapes_.size(); ++index) {
    if (shapes_[index].to == state.rank.rank) {
      static_cast<void>(copy(state, received_[index], copied_from_[index], shapes_[index]));
    }
  }
  state.result = outcome.result;
  state.status = outcome.status;
}

void Messages::require_right() const {
  for (const auto& state : ranks_.states) {
    CAPTURE(state->rank.rank);
    REQUIRE(state->result == ncclSuccess);
    REQUIRE(state->status == Status::ok);
    REQUIRE(state->communicator.port->status() == Status::ok);
  }
  require_received();
  REQUIRE(ranks_.world.in_flight() == 0);
}

void Messages::require_received() const {
  for (std::size_t index = 0; index < shapes_.size(); ++index) {
    CAPTURE(index, shapes_[index].from, shapes_[index].to, shapes_[index].count);
    std::vector<std::uint16_t> expected = sent_[index];
    expected.resize(received_[index].size(), poison);
    REQUIRE((received_[index] == expected));
  }
}

std::uint64_t Messages::buffer_bytes(int rank) const {
  std::uint64_t bytes = 0;
  for (const TransferShape& shape : shapes_) {
    const std::uint64_t ends = (shape.from == rank ? 1 : 0) + (shape.to == rank ? 1 : 0);
    bytes += ends * shape.count * collectives::value_bytes;
  }
  return bytes;
}

std::uint64_t Messages::static_bytes(int rank) const {
  std::uint64_t bytes = 0;
  for (const TransferShape& shape : shapes_) {
    const std::uint64_t ends = (shape.from == rank ? 1 : 0) + (shape.to == rank ? 1 : 0);
    bytes += ends * codec::Layout::of(shape.count, shape.room).static_bytes;
  }
  return bytes;
}

std::vector<TransferShape> ring(int ranks, const std::vector<TransferShape>& each) {
  std::vector<TransferShape> shapes;
  for (TransferShape shape : each) {
    for (int rank = 0; rank < ranks; ++rank) {
      shape.from = rank;
      shape.to = (rank + 1) % ranks;
      shapes.push_back(shape);
    }
  }
  return shapes;
}

}  // namespace zipccl::test
