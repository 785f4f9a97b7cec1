// The verdict from all hellos. Reasons are looked for in an order that names the cause before its consequences.
#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "switcher/session.hpp"
#include "switcher/text.hpp"

namespace zipccl::switcher {
namespace {

using Hellos = std::span<const Hello* const>;
using Settings = std::map<std::string_view, std::string_view>;

std::optional<std::string> missing_rank(Hellos hellos) {
  const auto first = std::find(hellos.begin(), hellos.end(), nullptr);
  if (first == hellos.end()) return std::nullopt;
  std::string reason = rank_name(static_cast<std::size_t>(first - hellos.begin())) +
                       " runs without zipccl or cannot connect to the process that made the ncclUniqueId";
  const auto others = std::count(hellos.begin(), hellos.end(), nullptr) - 1;
  if (others > 0) reason += ", and so do " + std::to_string(others) + " more";
  return reason;
}

Settings parse(std::string_view configuration) {
  Settings settings;
  while (!configuration.empty()) {
    const std::string_view line = configuration.substr(0, configuration.find('\n'));
    configuration.remove_prefix(std::min(line.size() + 1, configuration.size()));
    const std::size_t equals = line.find('=');
    settings[line.substr(0, equals)] = equals == line.npos ? std::string_view() : line.substr(equals + 1);
  }
  return settings;
}

std::string shortened(std::string_view value) {
  constexpr std::size_t shown = 100;
  return value.size() <= shown ? std::string(value) : std::string(value.substr(0, shown)) + "...";
}

// "ZIPCCL_MIN_BYTES=65536, rank 0 has 1048576; ..." for every setting that differs.
std::string differing_settings(const std::string& configuration, const std::string& reference) {
  const Settings mine = parse(configuration);
  const Settings theirs = parse(reference);
  std::string text;
  const auto add = [&text](const std::string& item) { text += (text.empty() ? "" : "; ") + item; };
  for (const auto& [name, value] : mine) {
    const auto match = theirs.find(name);
    const std::string setting = std::string(name) + "=" + shortened(value);
    if (match == theirs.end()) {
      add(setting + ", rank 0 has none");
    } else if (match->second != value) {
      add(setting + ", rank 0 has " + shortened(match->second));
    }
  }
  for (const auto& [name, value] : theirs) {
    if (!mine.contains(name)) add("no " + std::string(name) + ", rank 0 has " + shortened(value));
  }
  return text.empty() ? "the same settings as rank 0, written differently" : text;
}

std::optional<std::string> own_refusal(const Hello& hello) {
  if (!hello.refusal.empty()) return ": " + hello.refusal;
  if (hello.nonblocking) return " uses a nonblocking communicator";
  if (hello.staging_bytes == 0) return " could not reserve staging memory";
  return std::nullopt;
}

std::optional<std::string> native_reason(Hellos hellos) {
  if (hellos.empty()) return "the communicator has no ranks";
  if (auto reason = missing_rank(hellos)) return reason;
  const Hello& reference = *hellos[0];
  for (std::size_t rank = 0; rank < hellos.size(); ++rank) {
    if (hellos[rank]->library_version != reference.library_version) {
      return rank_name(rank) + " has zipccl " + hellos[rank]->library_version + ", rank 0 has " +
             reference.library_version;
    }
  }
  for (std::size_t rank = 0; rank < hellos.size(); ++rank) {
    if (const auto refusal = own_refusal(*hellos[rank])) return rank_name(rank) + *refusal;
  }
  for (std::size_t rank = 0; rank < hellos.size(); ++rank) {
    if (hellos[rank]->configuration != reference.configuration) {
      return rank_name(rank) + " has " + differing_settings(hellos[rank]->configuration, reference.configuration);
    }
  }
  return std::nullopt;
}

}  // namespace

Verdict decide(Hellos hellos) {
  Verdict verdict;
  if (const auto reason = native_reason(hellos)) {
    verdict.reason = one_line(*reason);
    return verdict;
  }
  verdict.compressed = true;
  verdict.staging_bytes = hellos[0]->staging_bytes;
  verdict.max_connections = hellos[0]->max_connections;
  verdict.slowest_link = LinkClass::same_device;
  const bool able = std::ranges::all_of(hellos, [](const Hello* hello) { return hello->copy_engines; });
  const std::size_t count = hellos.size();
  verdict.links.assign(count * count, LinkClass::same_device);
  for (std::size_t row = 0; row < count; ++row) {
    verdict.staging_bytes = std::min(verdict.staging_bytes, hellos[row]->staging_bytes);
    verdict.max_connections = std::min(verdict.max_connections, hellos[row]->max_connections);
    for (std::size_t column = row + 1; column < count; ++column) {
      const LinkClass link = link_between(*hellos[row], *hellos[column]);
      verdict.links[row * count + column] = link;
      verdict.links[column * count + row] = link;
      verdict.slowest_link = std::max(verdict.slowest_link, link);
    }
  }
  verdict.copy_engines = able && verdict.slowest_link == LinkClass::nvlink;
  return verdict;
}

}  // namespace zipccl::switcher
