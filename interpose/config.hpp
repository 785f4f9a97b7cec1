// Settings: the environment, read once, checked, and turned into values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/format.hpp"
#include "collectives/communicator.hpp"
#include "interpose/parameters.hpp"
#include "switcher/session.hpp"

namespace zipccl::interpose {

enum class LogLevel : std::uint8_t { none, error, warn, info, trace };

// Kinds of values in parameters.hpp. parse() returns nothing for a text that it does not accept.
struct Switch {  // on, off
  using Value = bool;
  static std::optional<Value> parse(std::string_view text);
};
struct Flag {  // 0, 1
  using Value = bool;
  static std::optional<Value> parse(std::string_view text);
};
struct CollectiveList {
  struct Value {
    bool all_gather = false;
    bool all_to_all = false;
    bool point_to_point = false;
    bool any() const { return all_gather || all_to_all || point_to_point; }
    std::string text() const;  // canonical
  };
  static std::optional<Value> parse(std::string_view text);
};
struct BytesOrAuto {
  using Value = std::optional<std::uint64_t>;  // empty: auto
  static std::optional<Value> parse(std::string_view text);
};
struct ExchangeMode {
  using Value = collectives::Exchange;
  static std::optional<Value> parse(std::string_view text);
};
// When calls begin to be compressed.
enum class Start : std::uint8_t {
  fenced,  // when their values have shown that it pays and all ranks are ready
  now,     // from the first one on; they may need more room or become native later
  always   // from the first one on, whatever their values
};
const char* to_string(Start start);
struct StartMode {
  using Value = Start;
  static std::optional<Value> parse(std::string_view text);
};
struct PoolBytes {
  using Value = std::uint32_t;  // bytes for every tile
  static std::optional<Value> parse(std::string_view text);
};
struct Mebibytes {
  using Value = std::uint64_t;  // bytes
  static std::optional<Value> parse(std::string_view text);
};
struct MebibytesOrNone {
  using Value = std::uint64_t;  // bytes
  static std::optional<Value> parse(std::string_view text);
};
struct Text {
  using Value = std::string;
  static std::optional<Value> parse(std::string_view text);
};
struct Level {
  using Value = LogLevel;
  static std::optional<Value> parse(std::string_view text);
};

// Room for outliers in bytes for every tile of 1,024 values, and as codec::Layout has it.
constexpr std::uint32_t pool_fraction_of(std::uint32_t bytes) { return bytes * codec::pool_tiles / codec::unit_bytes; }
constexpr std::uint32_t pool_bytes_of(std::uint32_t pool_fraction) {
  return pool_fraction * codec::unit_bytes / codec::pool_tiles;
}

struct Settings {
#define ZIPCCL_SETTING(member, name, kind, standard, accepted, description) kind::Value member{};
  ZIPCCL_PARAMETERS(ZIPCCL_SETTING)
#undef ZIPCCL_SETTING
};

using Environment = std::map<std::string, std::string, std::less<>>;

struct Configuration {
  Settings settings;                  // the default where the value is wrong
  std::vector<std::string> errors;    // wrong values, one line each; the process must then stay native
  std::vector<std::string> warnings;  // unknown ZIPCCL_* variables, one line each
  Environment given;                  // the known variables that are set, as they are

  // All settings that decide routes, as NAME=value in canonical form: equal ones mean equal decisions (rule R2).
  std::vector<std::string> route_settings() const;
  // What the settings mean where all ranks have `staging_bytes` and the slowest link among them is `slowest_link`.
  // Without any collective if nothing pays there.
  // `copy_engines`: as the verdict has it.
  collectives::Agreement agreement(std::uint64_t staging_bytes, switcher::LinkClass slowest_link,
                                   bool copy_engines = false) const;
  // The smallest message over a link that is compressed, in bytes of values; collectives::never if none pays there.
  std::uint64_t link_min_bytes(switcher::LinkClass link) const;
};

// Pure. An empty value counts as unset.
Configuration parse_configuration(const Environment& environment);

// The process's own, read from its environment at the first call; never destroyed.
const Configuration& configuration();

}  // namespace zipccl::interpose
