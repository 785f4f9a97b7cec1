// The log: one line a message, in NCCL's manner ("host:pid:tid [device] zipccl INFO text"), to stderr or the file
// that ZIPCCL_DEBUG_FILE names. Nothing is opened before the first message. Thread-safe; never throws.
#pragma once

#include <string>

#include "interpose/config.hpp"

namespace zipccl::interpose::log {

bool enabled(LogLevel level);

// printf-like.
void write(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Messages of this thread name this CUDA device while the object lives.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_;
};

// Replaces %h by the host's name and %p by the process's number.
std::string expand_pattern(const std::string& pattern);

std::string host_name();  // up to the first dot

}  // namespace zipccl::interpose::log
