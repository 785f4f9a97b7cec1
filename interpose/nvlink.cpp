#include "interpose/nvlink.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <map>
#include <mutex>

namespace zipccl::interpose {

namespace {

// NVML's public ABI, as far as it is used here.
using NvmlDevice = struct nvmlDevice_st*;
struct NvmlPciInfo {
  std::array<char, 16> legacy_bus_id;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  std::array<char, 32> bus_id;
};
constexpr int nvml_success = 0;
constexpr int nvml_p2p_nvlink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
constexpr int nvml_p2p_ok = 0;      // NVML_P2P_STATUS_OK

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, NvmlDevice*) = nullptr;
  int (*by_bus_id)(const char*, NvmlDevice*) = nullptr;
  int (*pci_info)(NvmlDevice, NvmlPciInfo*) = nullptr;
  int (*p2p_status)(NvmlDevice, NvmlDevice, int, int*) = nullptr;
};

template <typename Function>
bool resolve(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool resolve_all(void* library, Nvml* nvml) {
  return resolve(library, "nvmlInit_v2", &nvml->init) && resolve(library, "nvmlShutdown", &nvml->shutdown) &&
         resolve(library, "nvmlDeviceGetCount_v2", &nvml->count) &&
         resolve(library, "nvmlDeviceGetHandleByIndex_v2", &nvml->by_index) &&
         resolve(library, "nvmlDeviceGetHandleByPciBusId_v2", &nvml->by_bus_id) &&
         resolve(library, "nvmlDeviceGetPciInfo_v3", &nvml->pci_info) &&
         resolve(library, "nvmlDeviceGetP2PStatus", &nvml->p2p_status);
}

std::vector<std::string> ask(const Nvml& nvml, const std::string& device) {
  std::vector<std::string> peers;
  NvmlDevice own = nullptr;
  unsigned count = 0;
  if (nvml.by_bus_id(device.c_str(), &own) != nvml_success || nvml.count(&count) != nvml_success) {
    return peers;
  }
  for (unsigned index = 0; index < count; ++index) {
    NvmlDevice other = nullptr;
    NvmlPciInfo info{};
    int status = nvml_p2p_ok + 1;
    if (nvml.by_index(index, &other) == nvml_success && other != own &&
        nvml.p2p_status(own, other, nvml_p2p_nvlink, &status) == nvml_success && status == nvml_p2p_ok &&
        nvml.pci_info(other, &info) == nvml_success) {
      std::array<char, 32> text{};
      std::snprintf(text.data(), text.size(), "%04X:%02X:%02X.0", info.domain, info.bus, info.device);
      peers.emplace_back(text.data());
    }
  }
  return peers;
}

std::vector<std::string> load_and_ask(const std::string& device) {
  std::vector<std::string> peers;
  void* library = device.empty() ? nullptr : dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return peers;
  }
  if (Nvml nvml; resolve_all(library, &nvml) && nvml.init() == nvml_success) {
    peers = ask(nvml, device);
    nvml.shutdown();
  }
  dlclose(library);
  return peers;
}

}  // namespace

std::vector<std::string> nvlink_peers(const std::string& device) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, std::vector<std::string>>;
  const std::lock_guard lock(mutex);
  const auto [place, fresh] = known->try_emplace(device);
  if (fresh) {
    place->second = load_and_ask(device);
  }
  return place->second;
}

}  // namespace zipccl::interpose
