#include "test/standin/settings.hpp"

#include <charconv>
#include <cstdlib>

#include "test/standin/error.hpp"

namespace standin {
namespace {

std::uint64_t number_from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  std::uint64_t value = 0;
  if (!parse_number(text, &value)) {
    throw Error(ncclSystemError, std::string(name) + "=" + text + " is not a whole number of zero or more");
  }
  return value;
}

}  // namespace

bool parse_number(const std::string& text, std::uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

Settings Settings::from_environment() {
  Settings settings;
  settings.bytes_per_second = 1e6 * static_cast<double>(number_from_environment("STANDIN_RATE_MBPS", 0));
  settings.latency = std::chrono::microseconds(number_from_environment("STANDIN_LATENCY_US", 0));
  settings.rendezvous = number_from_environment("STANDIN_RENDEZVOUS", 0) != 0;
  return settings;
}

int reported_version() { return static_cast<int>(number_from_environment("STANDIN_VERSION", STANDIN_DEFAULT_VERSION)); }

}  // namespace standin
