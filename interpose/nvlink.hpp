// Which GPUs of this host a GPU reaches over NVLink, asked of NVIDIA's management library, which every driver brings
// and which is loaded only for the question, once for each GPU.
#pragma once

#include <string>
#include <vector>

namespace zipccl::interpose {

// `device` and the result are PCI bus identities as cudaDeviceGetPCIBusId writes them. GPUs that this process cannot
// see are included. Empty where the library is missing or does not answer.
std::vector<std::string> nvlink_peers(const std::string& device);

}  // namespace zipccl::interpose
