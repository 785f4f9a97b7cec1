// Looks at what a call would send, to see what compression would do to it, while the call itself goes natively.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "codec/device.hpp"

namespace zipccl::interpose {

// What one look has found.
struct Sight {
  std::uint64_t tiles = 0;
  std::uint64_t entry_bytes = 0;  // that the tiles need beside their fixed part
};

// One look at a time, by one thread. All work is on the caller's stream and none of it waits.
class Observer {
 public:
  // A GPU reads so much in some 30 us.
  static constexpr std::uint64_t most_values = std::uint64_t{32} << 20;

  // Reserves some bytes of device memory and of mapped memory.
  static Status create(codec::Device& device, std::unique_ptr<Observer>* observer);
  ~Observer();  // idle()
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // Enqueues a look at the `count` values, at another part of them each time if there are more than most_values. Only
  // if idle().
  Status look(const void* values, std::uint64_t count, codec::Stream stream);
  bool idle() const { return !looking_ || finished(); }
  // Takes the result of the last look, when it has one.
  bool take(Sight* sight);

 private:
  explicit Observer(codec::Device& device) : device_(device) {}
  Status reserve();
  bool finished() const;

  codec::Device& device_;
  void* scratch_ = nullptr;
  codec::Observation* observation_ = nullptr;  // mapped
  bool looking_ = false;
  std::uint64_t tiles_ = 0;  // of the latest look
  std::uint64_t looks_ = 0;
  std::uint64_t former_units_ = 0;  // of all looks before the latest
};

}  // namespace zipccl::interpose
