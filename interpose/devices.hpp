// The process's devices as codec::Device objects: the host runtime that the real NCCL offers, or CUDA's.
#pragma once

#include <string>

#include "codec/device.hpp"

namespace zipccl::interpose {

// The device of a communicator that the calling thread creates now. One object per device, made when first asked for
// and never destroyed. Null with *why if there is none that zipccl can use.
codec::Device* current_device(std::string* why);

// CUDA's current device in this thread, or -1. Does not initialise a device.
int current_ordinal();

// Makes a CUDA device current in this thread; false if that is not possible.
bool set_ordinal(int ordinal);

// What tells a device from all others of a host, as NCCL sees it (PCI bus id); empty on the host runtime.
std::string device_identity(const codec::Device& device);

// Makes a CUDA device current in this thread while the object lives; -1 changes nothing.
class OrdinalScope {
 public:
  explicit OrdinalScope(int ordinal);
  ~OrdinalScope();
  OrdinalScope(const OrdinalScope&) = delete;
  OrdinalScope& operator=(const OrdinalScope&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace zipccl::interpose
