#include "test/perf/nccl_functions.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "test/perf/options.hpp"

namespace zipccl::test {

namespace {

template <typename Function>
void find(void* library, const char* name, Function* function) {
  void* address = library == nullptr ? nullptr : dlsym(library, name);
  if (address == nullptr) {
    fail(std::string("no ") + name + " in libnccl.so.2");
  }
  *function = reinterpret_cast<Function>(address);
}

}  // namespace

const NcclFunctions& intercepted_nccl() {
  static const NcclFunctions functions = {
      &ncclAllGather,
      // Not linked against: NCCL before 2.28 lacks it. The default search order is the linker's.
      reinterpret_cast<decltype(&ncclAllGather)>(dlsym(RTLD_DEFAULT, "ncclAlltoAll")),
      &ncclSend,
      &ncclRecv,
      &ncclGroupStart,
      &ncclGroupEnd,
  };
  return functions;
}

const NcclFunctions& native_nccl() {
  static const NcclFunctions functions = [] {
    void* library = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY);
    NcclFunctions found{};
    find(library, "ncclAllGather", &found.all_gather);
    find(library, "ncclSend", &found.send);
    find(library, "ncclRecv", &found.receive);
    find(library, "ncclGroupStart", &found.group_start);
    find(library, "ncclGroupEnd", &found.group_end);
    found.all_to_all = reinterpret_cast<decltype(&ncclAllGather)>(dlsym(library, "ncclAlltoAll"));
    return found;
  }();
  return functions;
}

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) {
    std::fprintf(stderr, "collective-perf: %s failed: %s\n", what, ncclGetErrorString(result));
    std::_Exit(1);
  }
}

}  // namespace zipccl::test
