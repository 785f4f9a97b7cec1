// The stand-in NCCL as files that a program loads: the current one and the old one. Not linked to either.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "test/standin/standin_nccl.h"
#include "test/unit/catch.hpp"

namespace standin::test {
namespace {

class Library {
 public:
  explicit Library(const char* variable) {
    const char* path = std::getenv(variable);
    REQUIRE(path != nullptr);
    loaded_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(loaded_ != nullptr);
  }
  ~Library() { dlclose(loaded_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void* symbol(const std::string& name) const { return dlsym(loaded_, name.c_str()); }
  template <class Function>
  Function* function(const std::string& name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* loaded_ = nullptr;
};

void require_twins(const Library& library, const std::string& name) {
  CAPTURE(name);
  REQUIRE(library.symbol("nccl" + name) != nullptr);
  REQUIRE(library.symbol("nccl" + name) == library.symbol("pnccl" + name));
}

void require_version(const Library& library, int expected) {
  int code = 0;
  REQUIRE(library.function<decltype(ncclGetVersion)>("ncclGetVersion")(&code) == ncclSuccess);
  REQUIRE(code == expected);
}

void require_communicators(const Library& library) {
  ncclComm_t comms[2] = {};
  REQUIRE(library.function<decltype(ncclCommInitAll)>("ncclCommInitAll")(comms, 2, nullptr) == ncclSuccess);
  for (ncclComm_t comm : comms) {
    REQUIRE(library.function<decltype(ncclCommDestroy)>("ncclCommDestroy")(comm) == ncclSuccess);
  }
}

// The byte behind those that an id needs, after an id was made over bytes of 1.
int byte_behind_id(const Library& library) {
  ncclUniqueId id;
  std::memset(id.internal, 1, sizeof(id.internal));
  REQUIRE(library.function<decltype(ncclGetUniqueId)>("ncclGetUniqueId")(&id) == ncclSuccess);
  return id.internal[36];
}

}  // namespace

TEST_CASE("the library exports every function twice and works when loaded locally") {
  const Library library("STANDIN_LIBRARY");
  for (const char* name : {"AllGather", "AlltoAll", "CommInitRank", "CommInitRankScalable", "CommRevoke", "CommShrink",
                           "CommSplit", "CommWindowRegister", "Gather", "GroupEnd", "GroupSimulateEnd"}) {
    require_twins(library, name);
  }
  REQUIRE(library.symbol(ZIPCCL_HOST_RUNTIME_SYMBOL) != nullptr);
  require_version(library, 22809);
  require_communicators(library);
  REQUIRE(byte_behind_id(library) == 0);
}

TEST_CASE("the old library is like NCCL 2.21") {
  const Library library("STANDIN_OLD_LIBRARY");
  for (const char* name :
       {"AllGather", "CommInitRank", "CommInitRankConfig", "CommRegister", "CommSplit", "GroupEnd"}) {
    require_twins(library, name);
  }
  for (const char* name : {"AlltoAll", "CommInitRankScalable", "CommRevoke", "CommShrink", "CommWindowRegister",
                           "Gather", "GroupSimulateEnd", "Scatter"}) {
    CAPTURE(name);
    REQUIRE(library.symbol(std::string("nccl") + name) == nullptr);
  }
  require_version(library, 22105);
  require_communicators(library);
  REQUIRE(byte_behind_id(library) == 1);  // left as it was
}

}  // namespace standin::test
