#include "test/jobs/recorded.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace zipccl::test {

std::vector<std::uint16_t> read_recorded(const std::string& directory, const std::string& prefix) {
  std::vector<std::filesystem::path> paths;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() == ".bf16" && path.filename().string().rfind(prefix, 0) == 0) {
      paths.push_back(path);
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::uint16_t> values;
  for (const auto& path : paths) {
    const std::size_t count = std::filesystem::file_size(path) / sizeof(std::uint16_t);
    const std::size_t begin = values.size();
    values.resize(begin + count);
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char*>(values.data() + begin),
              static_cast<std::streamsize>(count * sizeof(std::uint16_t)));
  }
  return values;
}

}  // namespace zipccl::test
