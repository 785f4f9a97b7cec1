// Random and fixed programs that cannot block.
#pragma once

#include <cstdint>
#include <vector>

#include "test/model/program.hpp"
#include "test/model/schedule.hpp"

namespace zipccl::test {

struct GeneratorOptions {
  ScheduleOptions schedule;
  bool graphs = true;  // some programs are captured
};

World make_world(int ranks, std::uint64_t seed);

// The same on every rank. Which memory operations use is chosen, too: within a launch, nothing that is written is used
// twice.
Program make_program(const World& world, std::uint64_t seed, const GeneratorOptions& options);

// Those that people have got wrong: a circle of which one rank groups, pairs that group differently, and others. Only
// those that are legal with these options and number of ranks.
std::vector<Program> fixed_programs(const World& world, const GeneratorOptions& options);

// Chooses the offsets of all actions. False if a launch needs more memory than an arena has.
bool place(const World& world, std::uint64_t seed, Program* program);

}  // namespace zipccl::test
