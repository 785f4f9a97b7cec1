// Command line of all-gather-perf: nccl-tests' short flags where it has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "test/support/nccl.hpp"

namespace zipccl::test {

struct AllGatherOptions {
  std::uint64_t smallest = std::uint64_t{1} << 20;  // bytes of the whole output, as in nccl-tests
  std::uint64_t largest = std::uint64_t{1} << 30;
  std::uint64_t factor = 2;
  std::uint64_t increment = 0;  // bytes; above zero it replaces the factor
  int iterations = 20;
  int warm_up = 5;
  bool check = true;
  bool in_place = true;
  bool hook = false;  // price the interception of calls that stay native instead
  std::string type = "bfloat16";
  std::string input = "recorded";  // recorded[:PREFIX], normal, random, zeros
  std::string data = "test/recorded";
  std::string directory;  // of the job (test/jobs/job.hpp)
  std::string json;       // rank 0 appends a line of JSON a size
};

// Ends the process with a message if the arguments are wrong.
AllGatherOptions parse_all_gather_options(int count, char** arguments);

struct ElementType {
  ncclDataType_t nccl;
  std::size_t bytes;
};
ElementType element_type(const std::string& name);  // nccl-tests' names; ends the process if unknown

}  // namespace zipccl::test
