// Command line of collective-perf: nccl-tests' short flags where it has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "test/support/nccl.hpp"

namespace zipccl::test {

enum class Split : std::uint8_t {
  even,       // every peer the same
  zipf,       // rank k gets a share of 1 / (k + 1): a few popular experts
  single_hot  // rank 0 gets four fifths
};

struct Options {
  std::string collective;                           // all-gather, all-to-all, send-recv
  std::uint64_t smallest = std::uint64_t{1} << 20;  // bytes, as nccl-tests counts them (exchange.hpp)
  std::uint64_t largest = std::uint64_t{1} << 30;
  std::uint64_t factor = 2;
  std::uint64_t increment = 0;  // bytes; above zero it replaces the factor
  int iterations = 20;
  int warm_up = 5;
  bool check = true;
  bool in_place = true;  // all-gather
  Split split = Split::even;
  bool grouped = false;            // all-to-all as grouped send and receive although ncclAlltoAll could do it
  std::vector<double> late = {0};  // how late the last rank is, in native calls; one row each
  bool graph = false;              // replay the call as a CUDA graph, one for each buffer
  bool hold_back = false;          // count the kernels of other streams that run while a call waits for the last rank
  double in_two = 0;               // above zero: instead of zipccl, NCCL in two parts, the first being this share
  bool hook = false;               // price the interception of calls that stay native instead
  std::string type = "bfloat16";
  std::string input = "recorded";  // recorded[:PREFIX], normal, random, zeros
  std::string data = "test/recorded";
  std::string directory;  // of the job (test/jobs/job.hpp)
  std::string json;       // rank 0 appends a line of JSON a size
};

// `collective` comes first. Ends the process with a message if the arguments are wrong.
Options parse_options(int count, char** arguments);

struct ElementType {
  ncclDataType_t nccl;
  std::size_t bytes;
};
ElementType element_type(const std::string& name);  // nccl-tests' names; ends the process if unknown

// Ends the process with a message on standard error and exit status 2.
[[noreturn]] void fail(const std::string& message);

}  // namespace zipccl::test
