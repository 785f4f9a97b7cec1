// A rank is killed in the middle of compressed all-gathers: the others find out, end, and leave a GPU that works.
#pragma once

#include <cstddef>

namespace zipccl::test {

// `kills` times, with fresh ranks each, whose first calls show that the device still works; and calls of ranks that all
// live at the end. Prints how each survivor found out. Returns the number of faults, printed one by one. Needs zipccl,
// with exchange mode static; with ZIPCCL_REPORT set, the reports must show the survivors' errors.
int run_kills(int ranks, bool share_gpu, std::size_t kills);

}  // namespace zipccl::test
