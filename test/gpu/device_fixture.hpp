// Device memory, comparisons and failure counting for GPU tests and benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "codec/device.hpp"

namespace zipccl::test {

inline constexpr int skip_exit_code = 77;

// The first GPU, or null after saying on stderr why there is none.
std::unique_ptr<codec::Device> open_device();

// Ends the program with a message if `ok` is false: for what no test is about.
void require(bool ok, const std::string& what);
void require(Status status, const codec::Device& device, const std::string& what);

// For what a test is about: a failure is said on stderr and counted.
void expect(bool ok, const std::string& what);
int failures();

// Device memory of exactly `bytes` bytes, so that memory checkers see accesses beyond.
class Memory {
 public:
  Memory() = default;
  Memory(codec::Device& device, std::size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::uint8_t* data() const { return data_; }
  std::uint8_t* end() const { return data_ + bytes_; }
  std::size_t size() const { return bytes_; }

 private:
  codec::Device* device_ = nullptr;
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Host memory that kernels reach.
class MappedSummaries {
 public:
  MappedSummaries(codec::Device& device, std::uint32_t count);
  ~MappedSummaries();
  MappedSummaries(const MappedSummaries&) = delete;
  MappedSummaries& operator=(const MappedSummaries&) = delete;

  codec::MessageSummary* data() const { return summaries_; }
  codec::MessageSummary& operator[](std::uint32_t i) const { return summaries_[i]; }
  void clear() const;

 private:
  codec::Device& device_;
  codec::MessageSummary* summaries_ = nullptr;
  std::uint32_t count_;
};

// Synchronous; they end the program on a CUDA error.
void upload(void* device, const void* host, std::size_t bytes);
void download(void* host, const void* device, std::size_t bytes);
void fill(void* device, int byte, std::size_t bytes);
void synchronize();
// Number of differing bytes, counted on the device.
std::uint64_t count_differences(const void* a, const void* b, std::size_t bytes);
// Number of bytes that differ from `byte`.
std::uint64_t count_other_bytes(const void* a, int byte, std::size_t bytes);

// Fills `count` values, wherever they are, from a hash of their index: the exponents of a normal distribution, roughly,
// and now and then one far away.
void generate_hashed(std::uint16_t* values, std::uint64_t count, std::uint64_t seed);
// Fills `count` values with copies of `period` ones.
void replicate(std::uint16_t* values, std::uint64_t count, const std::uint16_t* source, std::uint64_t period);

}  // namespace zipccl::test
