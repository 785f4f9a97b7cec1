// codec::Device on a CUDA GPU. This folder holds all code that depends on CUDA's version.
#pragma once

#include <memory>
#include <string>

#include "codec/device.hpp"
#include "codec/status.hpp"

namespace zipccl::codec {

// Makes the Device of CUDA device `ordinal` and loads all kernels onto it, so that no later call waits for that.
// Creates the device's primary context if nobody has yet; leaves the calling thread's current device as it was.
//
// On failure (unsupported: no driver or GPU, or one that is too old, or a build without code for it; device_error:
// anything else CUDA reports; out_of_memory) *why is one sentence without a full stop that says what and what to do.
Status make_cuda_device(int ordinal, std::unique_ptr<Device>* device, std::string* why);

}  // namespace zipccl::codec
