#include "test/golden/golden.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace zipccl::test {
namespace {

constexpr const char* manifest_name = "manifest.txt";
constexpr const char* manifest_columns = "# name count pool_fraction sequence chunk status hash";

std::vector<std::uint8_t> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read " + path.string());
  }
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return {bytes.begin(), bytes.end()};
}

void write_file(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  std::ofstream file(path, std::ios::binary);
  for (const std::uint8_t byte : bytes) {
    file.put(static_cast<char>(byte));
  }
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

}  // namespace

std::uint64_t hash_values(std::span<const std::uint16_t> values) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint16_t value : values) {
    for (const unsigned byte : {value & 255u, unsigned{value} >> 8}) {
      hash = (hash ^ byte) * 0x100000001b3u;
    }
  }
  return hash;
}

std::filesystem::path golden_folder() {
  const char* folder = std::getenv("ZIPCCL_TEST_GOLDEN");
  return folder != nullptr ? folder : GOLDEN_FOLDER;
}

std::vector<GoldenMessage> load_golden(const std::filesystem::path& folder) {
  std::ifstream manifest(folder / manifest_name);
  if (!manifest) {
    throw std::runtime_error("cannot read " + (folder / manifest_name).string());
  }
  std::vector<GoldenMessage> messages;
  for (std::string line; std::getline(manifest, line);) {
    if (line.starts_with('#')) {
      continue;
    }
    std::istringstream fields(line);
    std::string name;
    std::uint64_t count = 0;
    std::uint32_t pool_fraction = 0;
    std::uint64_t sequence = 0;
    std::uint32_t chunk = 0;
    std::int32_t status = 0;
    std::uint64_t hash = 0;
    fields >> name >> count >> pool_fraction >> sequence >> chunk >> status >> std::hex >> hash;
    if (!fields) {
      throw std::runtime_error("cannot parse \"" + line + "\"");
    }
    const auto overflow = folder / (name + ".overflow");
    messages.push_back({name,
                        {count, pool_fraction, sequence, chunk, Block(read_file(folder / (name + ".message"))),
                         std::filesystem::exists(overflow) ? Block(read_file(overflow)) : Block(0)},
                        static_cast<Status>(status),
                        hash});
  }
  return messages;
}

void save_golden(const std::filesystem::path& folder, std::span<const GoldenMessage> messages) {
  std::filesystem::create_directories(folder);
  std::ofstream manifest(folder / manifest_name);
  manifest << manifest_columns << '\n';
  for (const GoldenMessage& golden : messages) {
    const Message& message = golden.message;
    manifest << golden.name << ' ' << std::dec << message.count << ' ' << message.pool_fraction << ' '
             << message.sequence << ' ' << message.chunk << ' ' << static_cast<std::int32_t>(golden.status) << ' '
             << std::hex << golden.hash << '\n';
    write_file(folder / (golden.name + ".message"), message.bytes.bytes());
    if (message.overflow.size() != 0) {
      write_file(folder / (golden.name + ".overflow"), message.overflow.bytes());
    }
  }
  if (!manifest.flush()) {
    throw std::runtime_error("cannot write " + (folder / manifest_name).string());
  }
}

}  // namespace zipccl::test
