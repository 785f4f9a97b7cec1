// The link model, from the environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace standin {

struct Settings {
  double bytes_per_second = 0;  // of a rank's outgoing link; 0: unlimited
  std::chrono::nanoseconds latency{0};
  bool rendezvous = false;  // a send ends when its receive has

  static Settings from_environment();  // throws Error(ncclSystemError) on a value that is not a number
};

// The whole text as a number, else false.
bool parse_number(const std::string& text, std::uint64_t* value);

// What ncclGetVersion reports.
int reported_version();

}  // namespace standin
