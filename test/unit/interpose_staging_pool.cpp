#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "interpose/staging_pool.hpp"
#include "test/unit/catch.hpp"

using namespace zipccl;
using namespace zipccl::interpose;
using collectives::Staging;

namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

// Host memory and one switch for all events.
class FakeDevice final : public codec::Device {
 public:
  explicit FakeDevice(std::uint64_t memory) : memory_(memory) {}

  bool done = true;      // what every event answers
  bool refuses = false;  // no memory
  int allocations = 0;

  int ordinal() const override { return 0; }
  const char* name() const override { return "fake"; }
  const char* last_error() const override { return ""; }
  std::uint64_t total_memory() const override { return memory_; }
  Status allocate(void** pointer, std::size_t bytes) override {
    if (refuses) {
      return Status::out_of_memory;
    }
    *pointer = std::malloc(bytes);
    ++allocations;
    return Status::ok;
  }
  void release(void* pointer) override {
    std::free(pointer);
    --allocations;
  }
  Status allocate_mapped(void** pointer, std::size_t bytes) override { return allocate(pointer, bytes); }
  void release_mapped(void* pointer) override { release(pointer); }
  Status clear(void* pointer, std::size_t bytes) override {
    std::memset(pointer, 0, bytes);
    return Status::ok;
  }
  Status allocate_async(void** pointer, std::size_t bytes, codec::Stream) override { return allocate(pointer, bytes); }
  void release_async(void* pointer, codec::Stream) override { release(pointer); }
  Status clear_async(void* pointer, std::size_t bytes, codec::Stream) override { return clear(pointer, bytes); }
  codec::Stream own_stream() override { return nullptr; }
  Status create_event(codec::Event* event) override {
    *event = this;
    return Status::ok;
  }
  void destroy_event(codec::Event) override {}
  Status record(codec::Event, codec::Stream) override { return Status::ok; }
  Status query(codec::Event, bool* answer) override {
    *answer = done;
    return Status::ok;
  }
  Status wait(codec::Event, codec::Stream) override { return Status::ok; }
  Status record_external(codec::Event, codec::Stream) override { return Status::ok; }
  Status wait_external(codec::Event, codec::Stream) override { return Status::ok; }
  Status priority(codec::Stream, int* priority) override {
    *priority = 0;
    return Status::ok;
  }
  Status create_stream(codec::Stream* stream, int) override {
    *stream = nullptr;
    return Status::ok;
  }
  void destroy_stream(codec::Stream) override {}
  Status copy(void*, const void*, std::size_t, codec::Stream) override { return Status::ok; }
  Status capture(codec::Stream, std::uint64_t* id) override {
    *id = 0;
    return Status::ok;
  }
  Status synchronize() override { return Status::ok; }
  Status encode(const codec::EncodeJob&, codec::Stream) override { return Status::ok; }
  Status decode(const codec::DecodeJob&, codec::Stream) override { return Status::ok; }
  Status receive(const codec::ReceiveJob&, codec::Stream) override { return Status::ok; }
  Status encode_and_receive(const codec::EncodeJob&, const codec::ReceiveJob&, codec::Stream) override {
    return Status::ok;
  }
  Status observe(const codec::ObserveJob&, codec::Stream) override { return Status::ok; }
  Status pause(std::uint32_t, codec::Stream) override { return Status::ok; }

 private:
  std::uint64_t memory_;
};

CommPointer used_state(StagingPool& pool, FakeDevice& device) {
  auto state = std::make_shared<CommState>();
  std::string why;
  REQUIRE(pool.reserve(device, 4 * mebibyte, 2, false, &state->communicator.staging, &why) == Status::ok);
  state->communicator.device = &device;
  REQUIRE(state->reserve_exchange() == Status::ok);
  REQUIRE(state->communicator.chain->end(nullptr) == Status::ok);
  return state;
}

}  // namespace

TEST_CASE("the cap is 2 % of the device, at most 1 GiB") {
  CHECK(StagingPool::cap(FakeDevice(1000 * mebibyte)) == 20 * mebibyte);
  CHECK(StagingPool::cap(FakeDevice(140 * std::uint64_t{1024} * mebibyte)) == std::uint64_t{1024} * mebibyte);
}

TEST_CASE("reservations share the cap: the last one gets the rest, then none") {
  FakeDevice device(500 * mebibyte);  // cap 10 MiB
  StagingPool pool;
  std::unique_ptr<Staging> first, second, third;
  std::string why;
  CHECK(pool.reserve(device, 8 * mebibyte, 2, false, &first, &why) == Status::ok);
  CHECK(first->bytes() == 8 * mebibyte);
  CHECK(pool.reserve(device, 8 * mebibyte, 2, false, &second, &why) == Status::ok);
  CHECK(second->bytes() == 2 * mebibyte);
  CHECK(pool.reserve(device, 8 * mebibyte, 2, false, &third, &why) == Status::out_of_memory);
  CHECK(why.find("8 MiB wanted, 10 of at most 10 MiB used") != std::string::npos);
  pool.release(device, std::move(first));
  CHECK(pool.reserve(device, 8 * mebibyte, 2, false, &third, &why) == Status::ok);
  pool.release(device, std::move(second));
  pool.release(device, std::move(third));
  CHECK(device.allocations == 0);
}

TEST_CASE("a device without memory leaves the cap as it was") {
  FakeDevice device(500 * mebibyte);
  StagingPool pool;
  std::unique_ptr<Staging> staging;
  std::string why;
  device.refuses = true;
  CHECK(pool.reserve(device, 10 * mebibyte, 2, false, &staging, &why) == Status::out_of_memory);
  CHECK(why.find("cannot reserve 10 MiB") != std::string::npos);
  device.refuses = false;
  CHECK(pool.reserve(device, 10 * mebibyte, 2, false, &staging, &why) == Status::ok);
  pool.release(device, std::move(staging));
}

TEST_CASE("too many ranks for the room") {
  FakeDevice device(500 * mebibyte);
  StagingPool pool;
  std::unique_ptr<Staging> staging;
  std::string why;
  CHECK(pool.reserve(device, 1 * mebibyte, 100, false, &staging, &why) == Status::out_of_memory);
  CHECK(why.find("too little for 100 ranks") != std::string::npos);
  CHECK(staging == nullptr);
}

TEST_CASE("retired staging is freed when its work is done") {
  FakeDevice device(500 * mebibyte);
  StagingPool pool;
  CommPointer state = used_state(pool, device);
  const int before = device.allocations;
  REQUIRE(before > 0);
  device.done = false;
  pool.retire(std::move(state));
  pool.reclaim();
  CHECK(device.allocations == before);
  device.done = true;
  pool.reclaim();
  CHECK(device.allocations == 0);
}

TEST_CASE("retired staging stays while a thread is inside a call") {
  FakeDevice device(500 * mebibyte);
  StagingPool pool;
  CommPointer caller = used_state(pool, device);
  const int before = device.allocations;
  pool.retire(caller);
  pool.reclaim();
  CHECK(device.allocations == before);
  caller.reset();
  pool.reclaim();
  CHECK(device.allocations == 0);
}

TEST_CASE("retired staging of a failed call waits for what the call left behind, like any other") {
  FakeDevice device(500 * mebibyte);
  StagingPool pool;
  CommPointer state = used_state(pool, device);
  const int before = device.allocations;
  state->communicator.failure = ncclInternalError;
  device.done = false;
  pool.retire(std::move(state));
  pool.reclaim();
  CHECK(device.allocations == before);
  device.done = true;
  pool.reclaim();
  CHECK(device.allocations == 0);
}

TEST_CASE("a reservation frees retired staging only for want of room") {
  FakeDevice device(500 * mebibyte);  // cap 10 MiB
  StagingPool pool;
  pool.retire(used_state(pool, device));
  const int before = device.allocations;
  std::unique_ptr<Staging> first, second;
  std::string why;
  CHECK(pool.reserve(device, 6 * mebibyte, 2, false, &first, &why) == Status::ok);
  const int of_staging = device.allocations - before;  // nothing was freed
  CHECK(of_staging > 0);
  CHECK(pool.reserve(device, 4 * mebibyte, 2, false, &second, &why) == Status::ok);
  CHECK(second->bytes() == 4 * mebibyte);
  CHECK(device.allocations == 2 * of_staging);
  pool.release(device, std::move(first));
  pool.release(device, std::move(second));
  CHECK(device.allocations == 0);
}

TEST_CASE("communicators that come late share what is left of the cap") {
  FakeDevice device(std::uint64_t{50} << 30);  // the cap is 1 GiB
  StagingPool pool;
  std::vector<std::unique_ptr<Staging>> stagings;
  std::uint64_t used = 0;
  for (int i = 0; i < 24; ++i) {
    const std::uint64_t share = pool.share(device, 128 * mebibyte, 8, true);
    CHECK(share == std::min(128 * mebibyte, (1024 * mebibyte - used) / 8));
    std::string why;
    REQUIRE(pool.reserve(device, share, 8, true, &stagings.emplace_back(), &why) == Status::ok);
    used += share;
  }
  CHECK(used < 1024 * mebibyte);
  for (auto& staging : stagings) {
    pool.release(device, std::move(staging));
  }
  CHECK(pool.share(device, 5 * mebibyte, 8, true) == 5 * mebibyte);
  CHECK(pool.share(device, 129 * mebibyte, 8, true) > 5 * mebibyte);  // more than the default: as the user says
  CHECK(device.allocations == 0);
}

TEST_CASE("where an eighth is too little, all that is left is taken") {
  FakeDevice device(std::uint64_t{50} * 4 * mebibyte);  // the cap is 4 MiB
  StagingPool pool;
  CHECK(pool.share(device, 128 * mebibyte, 16, true) == 4 * mebibyte);
}
