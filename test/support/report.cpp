#include "test/support/report.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

namespace zipccl::test {

std::uint64_t reported_calls(const std::filesystem::path& folder, const std::string& route,
                             const std::string& collective) {
  std::uint64_t calls = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") {
      continue;
    }
    std::ifstream file(entry.path());
    const nlohmann::json report = nlohmann::json::parse(file);
    for (const auto& communicator : report.at("communicators")) {
      for (const auto& bucket : communicator.at("buckets")) {
        if (collective.empty() || bucket.at("collective") == collective) {
          calls += bucket.at("calls").value(route, std::uint64_t{0});
        }
      }
    }
  }
  return calls;
}

}  // namespace zipccl::test
