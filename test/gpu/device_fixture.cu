#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "codec/cuda/cuda_device.hpp"
#include "test/gpu/cuda_check.hpp"
#include "test/gpu/device_fixture.hpp"

namespace zipccl::test {
namespace {

constexpr unsigned grid_blocks = 1024;
constexpr unsigned block_threads = 256;

int failed = 0;

__device__ std::uint64_t first_index() { return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ std::uint64_t index_step() { return std::uint64_t{gridDim.x} * blockDim.x; }

__device__ std::uint64_t hash(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// `b` null: compares with `byte`.
__global__ void count_kernel(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t byte, std::uint64_t bytes,
                             unsigned long long* different) {
  unsigned long long own = 0;
  for (std::uint64_t i = first_index(); i < bytes; i += index_step()) own += a[i] != (b == nullptr ? byte : b[i]);
  if (own != 0) atomicAdd(different, own);
}

__global__ void hash_kernel(std::uint16_t* values, std::uint64_t count, std::uint64_t seed) {
  for (std::uint64_t i = first_index(); i < count; i += index_step()) {
    const std::uint64_t bits = hash(i * 0x9e3779b97f4a7c15u + seed);
    const unsigned below = bits >> 32 == 0 ? 32 : static_cast<unsigned>(__clzll(static_cast<long long>(bits)));
    const unsigned exponent = (bits & 0xffff) < 20 ? static_cast<unsigned>(bits >> 16 & 0xff) : 121 - below;
    values[i] = static_cast<std::uint16_t>((bits >> 16 & 0x807f) | exponent << 7);
  }
}

__global__ void replicate_kernel(std::uint16_t* values, std::uint64_t count, const std::uint16_t* source,
                                 std::uint64_t period) {
  for (std::uint64_t i = first_index(); i < count; i += index_step()) values[i] = source[i % period];
}

std::uint64_t count_bytes(const void* a, const void* b, int byte, std::size_t bytes) {
  unsigned long long* different = nullptr;
  check(cudaMalloc(&different, sizeof(*different)));
  check(cudaMemset(different, 0, sizeof(*different)));
  count_kernel<<<grid_blocks, block_threads>>>(static_cast<const std::uint8_t*>(a), static_cast<const std::uint8_t*>(b),
                                               static_cast<std::uint8_t>(byte), bytes, different);
  check(cudaGetLastError());
  unsigned long long result = 0;
  check(cudaMemcpy(&result, different, sizeof(result), cudaMemcpyDeviceToHost));
  check(cudaFree(different));
  return result;
}

}  // namespace

std::unique_ptr<codec::Device> open_device() {
  std::unique_ptr<codec::Device> device;
  std::string why;
  const Status status = codec::make_cuda_device(0, &device, &why);
  if (status != Status::ok) std::fprintf(stderr, "no GPU: %s\n", why.c_str());
  return device;
}

void require(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "fatal: %s\n", what.c_str());
  std::exit(1);
}

void require(Status status, const codec::Device& device, const std::string& what) {
  require(status == Status::ok, what + ": " + describe(status) + " " + device.last_error());
}

void expect(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  ++failed;
}

int failures() { return failed; }

Memory::Memory(codec::Device& device, std::size_t bytes) : device_(&device), bytes_(bytes) {
  void* pointer = nullptr;
  if (bytes != 0) require(device.allocate(&pointer, bytes), device, "allocating " + std::to_string(bytes) + " bytes");
  data_ = static_cast<std::uint8_t*>(pointer);
}

Memory::~Memory() {
  if (data_ != nullptr) device_->release(data_);
}

Memory::Memory(Memory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedSummaries::MappedSummaries(codec::Device& device, std::uint32_t count) : device_(device), count_(count) {
  void* pointer = nullptr;
  require(device.allocate_mapped(&pointer, count * sizeof(codec::MessageSummary)), device, "mapped memory");
  summaries_ = static_cast<codec::MessageSummary*>(pointer);
}

MappedSummaries::~MappedSummaries() { device_.release_mapped(summaries_); }

void MappedSummaries::clear() const { std::memset(summaries_, 0, count_ * sizeof(codec::MessageSummary)); }

void upload(void* device, const void* host, std::size_t bytes) {
  check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

void download(void* host, const void* device, std::size_t bytes) {
  check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

void fill(void* device, int byte, std::size_t bytes) { check(cudaMemset(device, byte, bytes)); }

void synchronize() { check(cudaDeviceSynchronize()); }

std::uint64_t count_differences(const void* a, const void* b, std::size_t bytes) { return count_bytes(a, b, 0, bytes); }

std::uint64_t count_other_bytes(const void* a, int byte, std::size_t bytes) {
  return count_bytes(a, nullptr, byte, bytes);
}

void generate_hashed(std::uint16_t* values, std::uint64_t count, std::uint64_t seed) {
  hash_kernel<<<grid_blocks, block_threads>>>(values, count, seed);
  check(cudaGetLastError());
  synchronize();
}

void replicate(std::uint16_t* values, std::uint64_t count, const std::uint16_t* source, std::uint64_t period) {
  replicate_kernel<<<grid_blocks, block_threads>>>(values, count, source, period);
  check(cudaGetLastError());
  synchronize();
}

}  // namespace zipccl::test
