#include "test/support/report.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

namespace zipccl::test {

namespace {

using Json = nlohmann::json;

template <typename Visit>
void visit_communicators(const std::filesystem::path& folder, const Visit& visit) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") {
      continue;
    }
    std::ifstream file(entry.path());
    const Json report = Json::parse(file);
    for (const auto& communicator : report.at("communicators")) {
      visit(entry.path().filename().string(), communicator);
    }
  }
}

std::uint64_t calls_of(const Json& communicator, const std::string& route, const std::string& collective) {
  std::uint64_t calls = 0;
  for (const auto& bucket : communicator.at("buckets")) {
    if (collective.empty() || bucket.at("collective") == collective) {
      calls += bucket.at("calls").value(route, std::uint64_t{0});
    }
  }
  return calls;
}

}  // namespace

std::uint64_t reported_calls(const std::filesystem::path& folder, const std::string& route,
                             const std::string& collective) {
  std::uint64_t calls = 0;
  visit_communicators(folder, [&](const std::string&, const Json& communicator) {
    calls += calls_of(communicator, route, collective);
  });
  return calls;
}

std::vector<ReportedCommunicator> reported_communicators(const std::filesystem::path& folder) {
  std::vector<ReportedCommunicator> found;
  visit_communicators(folder, [&](const std::string& file, const Json& communicator) {
    found.push_back({file, communicator.at("name"), communicator.at("number"), communicator.at("state"),
                     communicator.value("reason", ""), communicator.value("error", ""),
                     communicator.value("staging_bytes", std::uint64_t{0}), calls_of(communicator, "compressed", {})});
  });
  return found;
}

}  // namespace zipccl::test
