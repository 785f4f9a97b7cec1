// What zipccl's reports say, for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace zipccl::test {

// Calls by route ("compressed" or "native") that the reports in `folder` show together; of one collective if it is
// named.
std::uint64_t reported_calls(const std::filesystem::path& folder, const std::string& route,
                             const std::string& collective = {});

struct ReportedCommunicator {
  std::string file;          // the report's: one for each process
  std::string name;          // the same on all ranks
  std::uint64_t number = 0;  // in the process, from 0 on
  std::string state;         // "compressed" or "native"
  std::string reason;        // of a native one
  std::string error;         // the first one that zipccl has found
  std::uint64_t staging_bytes = 0;
  std::uint64_t compressed_calls = 0;
};
std::vector<ReportedCommunicator> reported_communicators(const std::filesystem::path& folder);

}  // namespace zipccl::test
