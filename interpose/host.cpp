#include "interpose/host.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "interpose/environment.hpp"

namespace zipccl::interpose {

std::string host_identity() {
  if (std::string given = variable("NCCL_HOSTID"); !given.empty()) {
    return given;
  }
  std::array<char, 256> name{};
  static_cast<void>(gethostname(name.data(), name.size() - 1));
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return std::string(name.data()) + " " + boot;
}

std::string shared_memory_identity() {
  struct stat status {};
  return stat("/dev/shm", &status) == 0 ? std::to_string(status.st_dev) : "";
}

}  // namespace zipccl::interpose
