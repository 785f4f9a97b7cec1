// What a program must leave in the memory of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "test/model/program.hpp"

namespace zipccl::test {

// Every stream's memory, arena rank * streams + stream.
using WorldMemory = std::vector<std::vector<std::byte>>;

// What a program's ranks start with: pieces that look like weights and gradients, zeros, and some random bits.
void fill(const World& world, std::uint64_t seed, WorldMemory* memory);

// Runs a legal program.
void execute(const World& world, const Program& program, WorldMemory* memory);

}  // namespace zipccl::test
