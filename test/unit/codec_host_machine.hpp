// The host engine as a Machine: a HostDevice whose streams do all work at once.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "codec/host_device.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/codec_batch.hpp"

namespace zipccl::test {

class HostMachine final : public Machine {
 public:
  HostMachine() { REQUIRE(codec::HostDevice::create(&runtime(), &device_) == Status::ok); }

  void* allocate(std::size_t bytes) override {
    constexpr std::size_t alignment = 256;
    auto& block = blocks_.emplace_back(static_cast<std::byte*>(std::malloc(bytes + alignment)));
    std::memset(block.get(), 0x5A, bytes + alignment);
    return block.get() + (alignment - reinterpret_cast<std::uintptr_t>(block.get()) % alignment);
  }
  void* allocate_mapped(std::size_t bytes) override {
    void* memory = allocate(bytes);
    std::memset(memory, 0, bytes);
    return memory;
  }
  void free_all() override { blocks_.clear(); }
  void upload(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes != 0) {
      std::memcpy(to, from, bytes);
    }
  }
  Status run(const codec::EncodeJob& job) override { return device_->encode(job, nullptr); }
  Status run(const codec::ReceiveJob& job) override { return device_->receive(job, nullptr); }
  Status run(const codec::EncodeJob& encode, const codec::ReceiveJob& receive) override {
    return device_->encode_and_receive(encode, receive, nullptr);
  }
  Status run(const codec::ObserveJob& job) override { return device_->observe(job, nullptr); }
  void finish() override {}
  bool is_canonical() const override { return true; }

 private:
  struct Free {
    void operator()(std::byte* pointer) const { std::free(pointer); }
  };

  static const zipccl_host_runtime_v1& runtime() {
    static const zipccl_host_runtime_v1 made = [] {
      zipccl_host_runtime_v1 at_once{};
      at_once.version = ZIPCCL_HOST_RUNTIME_VERSION;
      at_once.size = sizeof(at_once);
      at_once.stream_enqueue_owned = [](CUstream_st*, void (*function)(void*), void (*release)(void*), void* argument) {
        function(argument);
        release(argument);
        return 0;
      };
      return at_once;
    }();
    return made;
  }

  std::unique_ptr<codec::HostDevice> device_;
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
};

}  // namespace zipccl::test
