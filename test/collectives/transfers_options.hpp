// Command line of transfers-test.
#pragma once

#include <cstdint>

namespace zipccl::test {

struct TransfersOptions {
  int ranks = 2;
  bool share_gpu = false;
  bool large = false;
  int replays = 20;
  bool unlike_types = false;
  bool one_way = false;
  std::uint64_t soak = 0;
};

// False with a line on stderr if it is not understood.
bool parse(int argc, char** argv, TransfersOptions* options);

}  // namespace zipccl::test
