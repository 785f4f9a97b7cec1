// All-gathers in chunks between ranks of one process, on whatever runs the jobs: each chunk's encode beside the receive
// of the chunk before (Device::encode_and_receive), whose own message it overwrites; every byte and counter compared.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "test/unit/codec_batch.hpp"

namespace zipccl::test {

struct GatherShape {
  std::uint32_t ranks = 2;
  std::uint32_t pool_fraction = 16;
  std::vector<std::uint64_t> counts;  // values of each chunk, a rank's
  std::uint32_t input_offset = 0;     // of values from an aligned address, in values
  std::uint32_t output_offset = 0;
  std::uint64_t outbox_capacity = 4096;
  std::uint64_t mailbox_capacity = 4096;
};

// What the two jobs are that go together; `apart` has them go one by one.
enum class Beside {
  message_and_row,
  apart,
  list_and_row,
  message_and_list,
  lists,
  nothing_and_row,
  message_and_nothing
};
inline constexpr Beside all_forms[] = {Beside::message_and_row,    Beside::apart, Beside::list_and_row,
                                       Beside::message_and_list,   Beside::lists, Beside::nothing_and_row,
                                       Beside::message_and_nothing};

// `fills[chunk * ranks + rank]` is what a rank sends. Empty, or what went wrong first.
std::string gather(Machine& machine, const GatherShape& shape, std::span<const Fill> fills, Beside form);
// Jobs that break their contracts, beside ones that do not: nothing of both is to run.
std::string refuse_beside(Machine& machine);

}  // namespace zipccl::test
