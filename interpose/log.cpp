#include "interpose/log.hpp"

#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "interpose/process.hpp"

// spdlog and fmt as headers, and in this file alone: the library must not need theirs.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#define SPDLOG_FMT_EXTERNAL
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#pragma GCC diagnostic pop

namespace zipccl::interpose::log {

namespace {

constinit thread_local int device_ordinal = -1;

constexpr std::array<const char*, 5> level_names = {"NONE", "ERROR", "WARN", "INFO", "TRACE"};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  constexpr std::array levels = {spdlog::level::off, spdlog::level::err, spdlog::level::warn, spdlog::level::info,
                                 spdlog::level::trace};
  return levels[static_cast<std::size_t>(level)];
}

// For a line that spdlog cannot take: its log file or memory failed, or this is a forked child, where a lock of the
// parent's may stay taken for ever.
void write_plainly(const char* text) {
  std::array<char, 1200> line{};
  const int length = std::snprintf(line.data(), line.size(), "%s:%d zipccl %s\n", host_name().c_str(),
                                   static_cast<int>(getpid()), text);
  if (length > 0) {
    const std::size_t bytes = std::min(static_cast<std::size_t>(length), line.size() - 1);
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), bytes);
  }
}

std::shared_ptr<spdlog::sinks::sink> make_sink(const std::string& file) {
  if (!file.empty()) {
    try {
      return std::make_shared<spdlog::sinks::basic_file_sink_mt>(expand_pattern(file));
    } catch (const std::exception& error) {
      write_plainly(
          (std::string("ERROR ZIPCCL_DEBUG_FILE cannot be opened, logging to stderr: ") + error.what()).c_str());
    }
  }
  return std::make_shared<spdlog::sinks::stderr_sink_mt>();
}

spdlog::logger& logger() {
  // Leaked on purpose: messages may come while the process's static objects are being destroyed.
  static spdlog::logger* const own = [] {
    const Settings& settings = configuration().settings;
    auto made = std::make_unique<spdlog::logger>("zipccl", make_sink(settings.debug_file));
    made->set_pattern(host_name() + ":%P:%t %v");
    made->set_level(to_spdlog(settings.debug));
    made->flush_on(spdlog::level::trace);
    return made.release();
  }();
  return *own;
}

}  // namespace

bool enabled(LogLevel level) { return level <= configuration().settings.debug; }

void write(LogLevel level, const char* format, ...) {
  if (!enabled(level)) {
    return;
  }
  std::array<char, 1024> text{};
  const char* name = level_names[static_cast<std::size_t>(level)];
  const int start = device_ordinal < 0
                        ? std::snprintf(text.data(), text.size(), "zipccl %s ", name)
                        : std::snprintf(text.data(), text.size(), "[%d] zipccl %s ", device_ordinal, name);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data() + start, text.size() - static_cast<std::size_t>(start), format, arguments);
  va_end(arguments);
  if (in_forked_child()) {
    write_plainly(text.data());
    return;
  }
  try {
    logger().log(to_spdlog(level), spdlog::string_view_t(text.data(), std::strlen(text.data())));
  } catch (...) {
    write_plainly(text.data());
  }
}

DeviceScope::DeviceScope(int ordinal) : previous_(std::exchange(device_ordinal, ordinal)) {}
DeviceScope::~DeviceScope() { device_ordinal = previous_; }

std::string expand_pattern(const std::string& pattern) {
  std::string result;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (pattern[i] == '%' && next == 'h') {
      result += host_name();
      ++i;
    } else if (pattern[i] == '%' && next == 'p') {
      result += std::to_string(getpid());
      ++i;
    } else {
      result += pattern[i];
    }
  }
  return result;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) {
    return "unknown";
  }
  const std::string full = name.data();
  return full.substr(0, full.find('.'));
}

}  // namespace zipccl::interpose::log
