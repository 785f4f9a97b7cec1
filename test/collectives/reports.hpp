// What the ranks' reports say of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace zipccl::test {

// Calls by route that the reports in `folder` show together.
std::uint64_t reported_calls(const std::filesystem::path& folder, const std::string& route);

}  // namespace zipccl::test
