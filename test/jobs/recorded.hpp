// Reads the committed slices of training tensors (test/recorded/).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zipccl::test {

// The BF16 values of all `.bf16` files in `directory` whose names start with `prefix`, one behind the other in order of
// their names. Empty if there are none.
std::vector<std::uint16_t> read_recorded(const std::string& directory, const std::string& prefix);

}  // namespace zipccl::test
