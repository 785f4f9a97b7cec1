#include "test/model/reference.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "test/model/random.hpp"
#include "test/model/schedule.hpp"
#include "test/support/data.hpp"

namespace zipccl::test {
namespace {

constexpr std::size_t pool_values = 1 << 17;

const std::vector<std::uint16_t>& pool(Data kind) {
  static const std::vector<std::uint16_t> pools[] = {
      make_data(Data::normal, pool_values, 1), make_data(Data::mixture, pool_values, 2),
      make_data(Data::zeros, pool_values, 3), make_data(Data::patterns, pool_values, 4),
      make_data(Data::random, pool_values, 5)};
  return pools[static_cast<std::size_t>(kind)];
}

Data any_kind(Random* random) {
  const std::size_t lot = random->below(100);
  if (lot < 55) return Data::normal;
  if (lot < 80) return Data::mixture;
  if (lot < 90) return Data::zeros;
  return lot < 97 ? Data::random : Data::patterns;
}

}  // namespace

void fill(const World& world, std::uint64_t seed, WorldMemory* memory) {
  Random random(seed ^ 0xF111F111u);
  memory->resize(static_cast<std::size_t>(world.ranks * world.streams));
  for (auto& arena : *memory) {
    arena.resize(world.arena_bytes);
    for (std::size_t at = 0; at < arena.size();) {
      const std::vector<std::uint16_t>& values = pool(any_kind(&random));
      const std::size_t count = std::min((arena.size() - at) / 2, random.between(1000, pool_values / 2));
      if (count == 0) break;
      std::memcpy(arena.data() + at, values.data() + random.below(values.size() - count + 1), 2 * count);
      at += 2 * count;
    }
  }
}

void execute(const World& world, const Program& program, WorldMemory* memory) {
  std::vector<int> communicators(world.communicators.size());
  std::iota(communicators.begin(), communicators.end(), 0);
  const Schedule schedule(world, program, {}, communicators);
  const std::vector<Node>& nodes = schedule.nodes();
  std::vector<std::vector<std::byte>> data(schedule.transfers());
  std::vector<bool> ended(nodes.size(), false);
  const auto end = [&](std::size_t node) {
    if (ended[node]) return;
    ended[node] = true;
    for (const Transfer& transfer : nodes[node].in) {
      std::copy(data[transfer.id].begin(), data[transfer.id].end(),
                (*memory)[transfer.arena].begin() + static_cast<std::ptrdiff_t>(transfer.offset));
    }
  };
  const std::vector<std::size_t> order = schedule.order();
  for (const std::size_t node : order) {
    for (const std::size_t before : nodes[node].before) end(before);
    for (const Transfer& transfer : nodes[node].out) {
      const auto from = (*memory)[transfer.arena].begin() + static_cast<std::ptrdiff_t>(transfer.offset);
      data[transfer.id].assign(from, from + static_cast<std::ptrdiff_t>(transfer.bytes));
    }
  }
  for (const std::size_t node : order) end(node);
}

}  // namespace zipccl::test
