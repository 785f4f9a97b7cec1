#include "test/standin/error.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace standin {
namespace {

thread_local std::string last_error_text;

bool warnings_wanted() {
  const char* level = std::getenv("NCCL_DEBUG");
  if (level == nullptr) return false;
  const std::string_view name = level;
  return name == "WARN" || name == "INFO" || name == "ABORT" || name == "TRACE";
}

}  // namespace

Error system_error(const std::string& what) {
  return Error(ncclSystemError, what + ": " + std::strerror(errno));  // NOLINT(concurrency-mt-unsafe)
}

void set_last_error(const std::string& text) {
  last_error_text = text;
  if (!warnings_wanted()) return;
  const std::string line = "stand-in NCCL [" + std::to_string(getpid()) + "] WARN " + text + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nowhere left to complain
}

const char* last_error() { return last_error_text.c_str(); }

}  // namespace standin
