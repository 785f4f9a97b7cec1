#include <thread>

#include "interpose/comm_table.hpp"
#include "test/unit/catch.hpp"

using namespace zipccl::interpose;

namespace {

ncclComm_t handle(std::uintptr_t number) { return reinterpret_cast<ncclComm_t>(number * 4096); }

CommPointer state(bool compressed, std::uint64_t number = 0) {
  auto made = std::make_shared<CommState>();
  made->compressed = compressed;
  made->number = number;
  return made;
}

}  // namespace

TEST_CASE("communicators are found until they are removed") {
  CommTable table;
  const CommPointer one = state(false);
  CHECK(table.find(handle(1)) == nullptr);
  CHECK(table.insert(handle(1), one) == nullptr);
  CHECK(table.find(handle(1)) == one);
  CHECK(table.find(handle(2)) == nullptr);
  CHECK(table.remove(handle(1)) == one);
  CHECK(table.find(handle(1)) == nullptr);
  CHECK(table.remove(handle(1)) == nullptr);
}

TEST_CASE("a handle that NCCL uses again replaces what was there") {
  CommTable table;
  const CommPointer old = state(true);
  const CommPointer fresh = state(false);
  table.insert(handle(1), old);
  CHECK(table.any_compressed());
  CHECK(table.insert(handle(1), fresh) == old);
  CHECK(table.find(handle(1)) == fresh);
  CHECK(!table.any_compressed());
}

TEST_CASE("whether any communicator compresses follows the table") {
  CommTable table;
  table.insert(handle(1), state(false));
  CHECK(!table.any_compressed());
  table.insert(handle(2), state(true));
  table.insert(handle(3), state(true));
  CHECK(table.any_compressed());
  table.remove(handle(2));
  CHECK(table.any_compressed());
  table.remove(handle(3));
  CHECK(!table.any_compressed());
}

TEST_CASE("all communicators are listed in order of creation") {
  CommTable table;
  for (const std::uint64_t number : {3u, 1u, 2u}) {
    table.insert(handle(number), state(false, number));
  }
  const auto all = table.all();
  REQUIRE(all.size() == 3);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i]->number == i + 1);
  }
}

TEST_CASE("an aborted communicator is not active") {
  const CommPointer one = state(true);
  CHECK(one->active());
  one->communicator.aborted = true;
  CHECK(!one->active());
  CHECK(!state(false)->active());
}

TEST_CASE("registered ranges") {
  RegisteredRanges ranges;
  std::byte memory[100] = {};
  const int one = 0;
  const int other = 0;
  CHECK(!ranges.overlaps(memory, 100));
  ranges.add(&one, memory + 20, 10);
  ranges.add(&other, memory + 60, 10);
  CHECK(ranges.overlaps(memory, 100));
  CHECK(ranges.overlaps(memory + 29, 1));
  CHECK(!ranges.overlaps(memory + 30, 30));
  CHECK(!ranges.overlaps(memory, 20));
  ranges.remove(&one);
  CHECK(!ranges.overlaps(memory, 60));
  CHECK(ranges.overlaps(memory, 61));
  ranges.remove(&one);
  ranges.remove(&other);
  CHECK(!ranges.overlaps(memory, 100));
}

TEST_CASE("lookups race with inserts and removals") {
  CommTable table;
  const CommPointer fixed = state(true);
  table.insert(handle(1), fixed);
  std::thread writer([&] {
    for (std::uintptr_t i = 0; i < 20000; ++i) {
      table.insert(handle(2 + i % 50), state(i % 2 == 0));
      table.remove(handle(2 + (i + 25) % 50));
    }
  });
  bool found = true;
  for (int i = 0; i < 20000; ++i) {
    found = found && table.find(handle(1)) == fixed && table.any_compressed();
  }
  writer.join();
  CHECK(found);
}
