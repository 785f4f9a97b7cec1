// The committed messages of test/golden/files: what they are and what decoding them must give. Other implementations of
// FORMAT.md can use them too: `manifest.txt` has one line a message, NAME.message and NAME.overflow its bytes.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "codec/status.hpp"
#include "test/unit/codec_messages.hpp"

namespace zipccl::test {

struct GoldenMessage {
  std::string name;
  Message message;
  Status status;       // of a decode, header and tiles together
  std::uint64_t hash;  // hash_values of the decoded values; 0 unless status is ok
};

// FNV-1a, 64 bits, over the values' bytes.
std::uint64_t hash_values(std::span<const std::uint16_t> values);

// ZIPCCL_TEST_GOLDEN in the environment, else the folder in the source tree.
std::filesystem::path golden_folder();

// Throw std::runtime_error on files that cannot be read or written.
std::vector<GoldenMessage> load_golden(const std::filesystem::path& folder);
void save_golden(const std::filesystem::path& folder, std::span<const GoldenMessage> messages);

}  // namespace zipccl::test
