#include "test/collectives/all_gather_cases.hpp"

#include <cstdio>
#include <cstring>

#include "test/support/ranks.hpp"

namespace zipccl::test {

namespace {

constexpr std::size_t value_bytes = sizeof(std::uint16_t);
constexpr std::uint8_t poison = 0xA5;

std::uint64_t seed_of(const GatherCase& shape, int rank) {
  return shape.seed * 1000 + static_cast<std::uint64_t>(rank) + 1;
}

}  // namespace

GatherRun::GatherRun(Backend& backend, int ranks, int rank_in_communicator, const GatherCase& shape)
    : backend_(backend), ranks_(ranks), own_(rank_in_communicator), shape_(shape) {
  const std::size_t shard = shape.count * value_bytes;
  const std::size_t shift = guard + shape.offset * value_bytes;
  receive_bytes_ = shard * static_cast<std::size_t>(ranks);
  receive_memory_ = static_cast<std::byte*>(backend.allocate(receive_bytes_ + shift + guard));
  backend.fill(receive_memory_, poison, receive_bytes_ + shift + guard);
  receive_ = receive_memory_ + shift;
  if (shape.in_place) {
    send_ = receive_ + static_cast<std::size_t>(own_) * shard;
  } else {
    send_memory_ = static_cast<std::byte*>(backend.allocate(shard + shift));
    send_ = send_memory_ + shift;
  }
  upload();
}

GatherRun::~GatherRun() {
  backend_.release(receive_memory_);
  if (send_memory_ != nullptr) {
    backend_.release(send_memory_);
  }
}

void GatherRun::upload() {
  const std::vector<std::uint16_t> values = make_data(shape_.data, shape_.count, seed_of(shape_, own_));
  backend_.upload(send_, values.data(), shape_.count * value_bytes);
}

void GatherRun::refill(Data data, std::uint64_t seed) {
  shape_.data = data;
  shape_.seed = seed;
  backend_.fill(receive_, poison, receive_bytes_);
  upload();
}

ncclResult_t GatherRun::call(ncclComm_t communicator, cudaStream_t stream) {
  return ncclAllGather(send_, receive_, shape_.count, ncclBfloat16, communicator, stream);
}

void GatherRun::enqueue(ncclComm_t communicator, cudaStream_t stream) {
  check_nccl(call(communicator, stream), "ncclAllGather");
}

int GatherRun::finish(cudaStream_t stream) {
  backend_.synchronize(stream);
  const std::size_t shift = guard + shape_.offset * value_bytes;
  std::vector<std::byte> expected(receive_bytes_ + shift + guard, std::byte{poison});
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::vector<std::uint16_t> values = make_data(shape_.data, shape_.count, seed_of(shape_, rank));
    std::memcpy(expected.data() + shift + static_cast<std::size_t>(rank) * shape_.count * value_bytes, values.data(),
                shape_.count * value_bytes);
  }
  std::vector<std::byte> received(expected.size());
  backend_.download(received.data(), receive_memory_, received.size());
  for (std::size_t index = 0; index < expected.size(); ++index) {
    if (received[index] != expected[index]) {
      std::fprintf(stderr, "rank %d of %d: %s count %zu offset %zu %s: byte %td of the output is %02x, expected %02x\n",
                   own_, ranks_, to_string(shape_.data), shape_.count, shape_.offset,
                   shape_.in_place ? "in place" : "out of place", static_cast<std::ptrdiff_t>(index - shift),
                   static_cast<unsigned>(received[index]), static_cast<unsigned>(expected[index]));
      return 1;
    }
  }
  return 0;
}

}  // namespace zipccl::test
