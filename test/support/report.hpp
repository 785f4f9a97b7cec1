// What zipccl's reports say, for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace zipccl::test {

// Calls by route ("compressed" or "native") that the reports in `folder` show together; of one collective if it is
// named.
std::uint64_t reported_calls(const std::filesystem::path& folder, const std::string& route,
                             const std::string& collective = {});

}  // namespace zipccl::test
