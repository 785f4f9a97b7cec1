// The environment variables of NCCL and CUDA. zipccl's own are config.hpp's.
#pragma once

#include <cstdlib>
#include <string>

namespace zipccl::interpose {

// An unset variable is an empty one.
inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace zipccl::interpose
