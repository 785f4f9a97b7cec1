#include "interpose/devices.hpp"

#include <map>
#include <memory>
#include <mutex>

#include "codec/host_device.hpp"
#include "interpose/real_nccl.hpp"

#if ZIPCCL_HAVE_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "codec/cuda/cuda_device.hpp"
#endif

namespace zipccl::interpose {

namespace {

Status make_device(int ordinal, std::unique_ptr<codec::Device>* device, std::string* why) {
  if (const zipccl_host_runtime_v1* runtime = RealNccl::get().host_runtime()) {
    std::unique_ptr<codec::HostDevice> host;
    const Status status = codec::HostDevice::create(runtime, &host);
    *device = std::move(host);
    *why = status == Status::ok ? "" : describe(status);
    return status;
  }
#if ZIPCCL_HAVE_CUDA
  return codec::make_cuda_device(ordinal, device, why);
#else
  static_cast<void>(ordinal);
  *why = "this libzipccl.so was built without CUDA; build it where nvcc is";
  return Status::unsupported;
#endif
}

}  // namespace

codec::Device* current_device(std::string* why) {
  // A failure is kept like a device: asking again would cost a failing initialisation for every communicator.
  struct Entry {
    std::unique_ptr<codec::Device> device;
    std::string why;
  };
  static std::mutex mutex;
  static auto* const devices = new std::map<int, Entry>;
  const int ordinal = current_ordinal();
  const std::lock_guard lock(mutex);
  const auto [place, fresh] = devices->try_emplace(ordinal);
  Entry& entry = place->second;
  if (fresh && make_device(ordinal, &entry.device, &entry.why) != Status::ok) {
    entry.device.reset();
  }
  *why = entry.why;
  return entry.device.get();
}

#if ZIPCCL_HAVE_CUDA

int current_ordinal() {
  int ordinal = -1;
  if (RealNccl::get().host_runtime() != nullptr || cudaGetDevice(&ordinal) != cudaSuccess) {
    return -1;
  }
  return ordinal;
}

std::string device_identity(const codec::Device& device) {
  std::array<char, 32> text{};
  if (RealNccl::get().host_runtime() != nullptr ||
      cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device.ordinal()) != cudaSuccess) {
    return "";
  }
  std::string identity = text.data();
  std::transform(identity.begin(), identity.end(), identity.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return identity;
}

bool set_ordinal(int ordinal) { return cudaSetDevice(ordinal) == cudaSuccess; }

#else

int current_ordinal() { return -1; }
std::string device_identity(const codec::Device&) { return ""; }
bool set_ordinal(int) { return false; }

#endif

OrdinalScope::OrdinalScope(int ordinal) {
  const int current = current_ordinal();
  if (ordinal >= 0 && current != ordinal && set_ordinal(ordinal)) {
    previous_ = current;
  }
}

OrdinalScope::~OrdinalScope() {
  if (previous_ >= 0) {
    static_cast<void>(set_ordinal(previous_));
  }
}

}  // namespace zipccl::interpose
