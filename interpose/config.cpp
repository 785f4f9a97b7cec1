#include "interpose/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <numeric>
#include <utility>

#include "codec/format.hpp"
#include "switcher/text.hpp"

namespace zipccl::interpose {

namespace {

// Smallest call that is compressed where the user names no size; nothing where compression does not pay. Measured with
// zipccl perf all-gather and all-to-all: below these sizes a call's fixed cost (the launches of encode and decode)
// eats what fewer bytes save.
std::optional<std::uint64_t> automatic_min(switcher::LinkClass slowest_link) {
  switch (slowest_link) {
    case switcher::LinkClass::same_device:
    case switcher::LinkClass::nvlink:
      return std::nullopt;
    case switcher::LinkClass::pcie:
    case switcher::LinkClass::shared_memory:
      return std::uint64_t{8} << 20;
    case switcher::LinkClass::network:
    case switcher::LinkClass::sockets:
      return std::uint64_t{2} << 20;
  }
  return std::nullopt;
}

// The same for all-gathers over NVLink that copy engines carry.
constexpr std::uint64_t copy_engines_min = std::uint64_t{32} << 20;

constexpr std::array<std::pair<std::string_view, bool CollectiveList::Value::*>, 3> collective_names = {{
    {"allgather", &CollectiveList::Value::all_gather},
    {"alltoall", &CollectiveList::Value::all_to_all},
    {"p2p", &CollectiveList::Value::point_to_point},
}};

constexpr std::string_view prefix = "ZIPCCL";

// In any case, as NCCL takes its words.
bool same_word(std::string_view one, std::string_view other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::uint64_t> parse_number(std::string_view text, std::uint64_t least, std::uint64_t most) {
  const auto value = parse_number(text);
  return value && *value >= least && *value <= most ? value : std::nullopt;
}

// Levenshtein distance.
std::size_t distance(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= one.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= other.size(); ++j) {
      const std::size_t replaced = diagonal + (one[i - 1] == other[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

constexpr std::array names = {
#define ZIPCCL_NAME(member, name, kind, standard, accepted, description) std::string_view{name},
    ZIPCCL_PARAMETERS(ZIPCCL_NAME)
#undef ZIPCCL_NAME
};

bool known(std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// Ours to judge: ZIPCCL itself and ZIPCCL_*.
bool has_prefix(std::string_view name) {
  return name.starts_with(prefix) && name.substr(prefix.size()).starts_with('_');
}

// A value as a message may quote it: on one line, and short enough that the rest of the message fits, too.
std::string quoted(std::string_view value) {
  constexpr std::size_t most = 100;
  return switcher::one_line(value.substr(0, most)) + (value.size() > most ? "..." : "");
}

std::string unknown_warning(std::string_view name) {
  const auto nearest = std::min_element(
      names.begin(), names.end(), [&](auto one, auto other) { return distance(name, one) < distance(name, other); });
  constexpr std::size_t likely_slips = 3;
  const std::string advice = distance(name, *nearest) <= likely_slips
                                 ? "did you mean " + std::string(*nearest) + "?"
                                 : std::string("zipccl's README lists all variables");
  return "unknown variable " + quoted(name) + " is ignored; " + advice;
}

const char* to_string(collectives::Exchange exchange) {
  return exchange == collectives::Exchange::fixed         ? "static"
         : exchange == collectives::Exchange::sizes_first ? "sizes-first"
                                                          : "exact";
}

}  // namespace

const char* to_string(Start start) {
  switch (start) {
    case Start::fenced:
      return "fenced";
    case Start::now:
      return "now";
    case Start::always:
      return "always";
  }
  return "unknown";
}

std::optional<bool> Switch::parse(std::string_view text) {
  if (same_word(text, "on") || same_word(text, "off")) {
    return same_word(text, "on");
  }
  return std::nullopt;
}

std::optional<bool> Flag::parse(std::string_view text) {
  if (text == "0" || text == "1") {
    return text == "1";
  }
  return std::nullopt;
}

std::optional<CollectiveList::Value> CollectiveList::parse(std::string_view text) {
  Value value;
  if (text == "none") {
    return value;
  }
  while (true) {
    const std::size_t comma = text.find(',');
    const auto named = std::find_if(collective_names.begin(), collective_names.end(),
                                    [&](const auto& entry) { return entry.first == text.substr(0, comma); });
    if (named == collective_names.end()) {
      return std::nullopt;
    }
    value.*named->second = true;
    if (comma == std::string_view::npos) {
      return value;
    }
    text.remove_prefix(comma + 1);
  }
}

std::string CollectiveList::Value::text() const {
  std::string list;
  for (const auto& [name, member] : collective_names) {
    if (this->*member) {
      list += (list.empty() ? "" : ",") + std::string(name);
    }
  }
  return list.empty() ? "none" : list;
}

std::optional<BytesOrAuto::Value> BytesOrAuto::parse(std::string_view text) {
  if (text == "auto") {
    return Value{};
  }
  unsigned shift = 0;
  constexpr std::string_view suffixes = "KMG";
  if (const std::size_t suffix = text.empty() ? std::string_view::npos : suffixes.find(text.back());
      suffix != std::string_view::npos) {
    shift = 10 * (static_cast<unsigned>(suffix) + 1);
    text.remove_suffix(1);
  }
  const auto number = parse_number(text, 0, UINT64_MAX >> shift);
  return number ? std::optional<Value>(*number << shift) : std::nullopt;
}

std::optional<collectives::Exchange> ExchangeMode::parse(std::string_view text) {
  using collectives::Exchange;
  return text == "static"        ? std::optional(Exchange::fixed)
         : text == "exact"       ? std::optional(Exchange::exact)
         : text == "sizes-first" ? std::optional(Exchange::sizes_first)
                                 : std::nullopt;
}

std::optional<Start> StartMode::parse(std::string_view text) {
  return text == "fenced"   ? std::optional(Start::fenced)
         : text == "now"    ? std::optional(Start::now)
         : text == "always" ? std::optional(Start::always)
                            : std::nullopt;
}

std::optional<std::uint32_t> PoolBytes::parse(std::string_view text) {
  const auto number = parse_number(text, 0, codec::tile_values);
  return number ? std::optional(static_cast<std::uint32_t>(*number)) : std::nullopt;
}

std::optional<std::uint64_t> Mebibytes::parse(std::string_view text) {
  const auto number = parse_number(text, 1, 65536);
  return number ? std::optional(*number << 20) : std::nullopt;
}

std::optional<std::uint64_t> MebibytesOrNone::parse(std::string_view text) {
  const auto number = parse_number(text, 0, 65536);
  return number ? std::optional(*number << 20) : std::nullopt;
}

std::optional<std::string> Text::parse(std::string_view text) { return std::string(text); }

std::optional<LogLevel> Level::parse(std::string_view text) {
  constexpr std::array<std::string_view, 5> levels = {"NONE", "ERROR", "WARN", "INFO", "TRACE"};
  const auto level =
      std::find_if(levels.begin(), levels.end(), [&](std::string_view one) { return same_word(text, one); });
  return level == levels.end() ? std::nullopt : std::optional(static_cast<LogLevel>(level - levels.begin()));
}

std::vector<std::string> Configuration::route_settings() const {
  return {"ZIPCCL_COLLECTIVES=" + settings.collectives.text(),
          "ZIPCCL_MIN_BYTES=" + (settings.min_bytes ? std::to_string(*settings.min_bytes) : "auto"),
          std::string("ZIPCCL_EXCHANGE=") + to_string(settings.exchange),
          std::string("ZIPCCL_START=") + to_string(settings.start),
          "ZIPCCL_POOL=" + std::to_string(settings.pool_bytes),
          std::string("ZIPCCL_COPY_ENGINES=") + (settings.copy_engines ? "1" : "0"),
          std::string("ZIPCCL_IGNORE_MAX_CONNECTIONS=") + (settings.ignore_max_connections ? "1" : "0")};
}

collectives::Agreement Configuration::agreement(std::uint64_t staging_bytes, switcher::LinkClass slowest_link,
                                                bool copy_engines) const {
  collectives::Agreement agreed;
  agreed.exchange = settings.exchange;
  agreed.pool_fraction = pool_fraction_of(settings.pool_bytes);
  agreed.staging_bytes = staging_bytes;
  if (slowest_link == switcher::LinkClass::sockets) {
    agreed.call_ns = collectives::ChunkPlan::sockets_call_ns;
  }
  const std::optional<std::uint64_t> min_bytes = settings.min_bytes ? settings.min_bytes : automatic_min(slowest_link);
  agreed.all_gather = settings.collectives.all_gather && min_bytes.has_value();
  agreed.all_to_all = settings.collectives.all_to_all && min_bytes.has_value();
  agreed.point_to_point = settings.collectives.point_to_point && min_bytes.has_value();
  agreed.min_bytes = min_bytes.value_or(0);
  if (copy_engines && settings.collectives.all_gather) {
    agreed.copy_engines = true;
    agreed.all_gather = true;
    agreed.min_bytes = settings.min_bytes.value_or(copy_engines_min);
  }
  return agreed;
}

std::uint64_t Configuration::link_min_bytes(switcher::LinkClass link) const {
  if (settings.min_bytes) {
    return *settings.min_bytes;
  }
  const std::optional<std::uint64_t> output = automatic_min(link);
  return output ? *output / 2 : collectives::never;  // between two ranks half of an all-gather's output is one message
}

Configuration parse_configuration(const Environment& environment) {
  Configuration result;
#define ZIPCCL_PARSE(member, name, kind, standard, accepted, description)                                  \
  result.settings.member = *kind::parse(standard);                                                         \
  if (const auto found = environment.find(name); found != environment.end() && !found->second.empty()) {   \
    result.given.insert(*found);                                                                           \
    if (auto value = kind::parse(found->second)) {                                                         \
      result.settings.member = *std::move(value);                                                          \
    } else {                                                                                               \
      result.errors.push_back(std::string(name) + "=" + quoted(found->second) + " is not accepted; use " + \
                              (accepted));                                                                 \
    }                                                                                                      \
  }
  ZIPCCL_PARAMETERS(ZIPCCL_PARSE)
#undef ZIPCCL_PARSE
  for (const auto& [name, value] : environment) {
    if (has_prefix(name) && !known(name)) {
      result.warnings.push_back(unknown_warning(name));
    }
  }
  return result;
}

const Configuration& configuration() {
  // Leaked on purpose: calls may come while the process's static objects are being destroyed.
  static const Configuration* const own = [] {
    Environment environment;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const std::size_t equals = text.find('=');
      if (equals != std::string_view::npos && text.starts_with(prefix)) {
        environment.emplace(text.substr(0, equals), text.substr(equals + 1));
      }
    }
    return new Configuration(parse_configuration(environment));
  }();
  return *own;
}

}  // namespace zipccl::interpose
