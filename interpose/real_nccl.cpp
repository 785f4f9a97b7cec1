#include "interpose/real_nccl.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "interpose/log.hpp"

namespace zipccl::interpose {

namespace {

using collectives::NcclTable;

constexpr const char* probe = "ncclGetVersion";  // every NCCL has it
constexpr const char* soname = "libnccl.so.2";

// Where the object that holds an address is mapped; null if no object does.
const void* base_of(const void* address) {
  Dl_info info{};
  return address != nullptr && dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

std::string path_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// libnccl.so.2, libnccl.so.2.28.9, but not plugins such as libnccl-net.so.
bool named_nccl(std::string_view path) { return file_name(path).starts_with("libnccl.so"); }

// Resolves a name in a library or search order, except to zipccl itself: this copy or, by its file's name, another.
void* foreign_symbol(void* handle, const char* name) {
  void* symbol = dlsym(handle, name);
  static const char own = 0;
  if (symbol == nullptr || base_of(symbol) == base_of(&own) || file_name(path_of(symbol)).starts_with("libzipccl")) {
    return nullptr;
  }
  return symbol;
}

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Library loaded_library(const std::string& path) {
  return path.empty() ? nullptr : Library(dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW));
}

// Paths of all objects in the process: those called libnccl.so* first, then libtorch_cuda*, which may hold NCCL
// itself, then the rest.
std::vector<std::string> loaded_objects() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* list) {
        if (info->dlpi_name != nullptr && info->dlpi_name[0] != '\0') {
          static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
        }
        return 0;
      },
      &paths);
  const auto rank = [](std::string_view path) {
    return named_nccl(path) ? 0 : file_name(path).starts_with("libtorch_cuda") ? 1 : 2;
  };
  std::stable_sort(paths.begin(), paths.end(),
                   [&](const auto& one, const auto& other) { return rank(one) < rank(other); });
  return paths;
}

// Stands in for a function that the library lacks.
constexpr std::array function_names = {
#define ZIPCCL_NCCL_NAME(function, required, result, parameters) #function,
    ZIPCCL_NCCL_FUNCTIONS(ZIPCCL_NCCL_NAME)
#undef ZIPCCL_NCCL_NAME
};

enum class FunctionIndex : std::size_t {
#define ZIPCCL_NCCL_INDEX(function, required, result, parameters) function,
  ZIPCCL_NCCL_FUNCTIONS(ZIPCCL_NCCL_INDEX)
#undef ZIPCCL_NCCL_INDEX
};

template <FunctionIndex index, typename Result, typename... Arguments>
Result missing(Arguments...) {
  const RealNccl& real = RealNccl::get();
  if constexpr (std::is_same_v<Result, const char*>) {
    return "no usable NCCL";
  } else {
    const char* name = function_names[static_cast<std::size_t>(index)];
    if (!real.usable()) {
      return ncclSystemError;  // said once, when it was found out
    }
    log::write(LogLevel::error, "%s was called, but NCCL %s (%s) does not have it", name, real.version_text().c_str(),
               real.path().c_str());
    return ncclInvalidUsage;
  }
}

template <FunctionIndex index, typename Result, typename... Arguments>
auto substitute(Result (*found)(Arguments...)) {
  return found != nullptr ? found : &missing<index, Result, Arguments...>;
}

constinit std::atomic<const RealNccl*> instance = nullptr;
constinit thread_local bool searching = false;

}  // namespace

const RealNccl& RealNccl::get(const void* caller) {
  if (const RealNccl* found = instance.load(std::memory_order_acquire)) {
    return *found;
  }
  if (searching) {  // a library's constructor, run by the search, calls NCCL
    static const RealNccl* const none = [] {
      auto* made = new RealNccl;
      made->problem_ = "NCCL is called while it is being loaded";
      made->fill(nullptr);
      return made;
    }();
    return *none;
  }
  // No lock: the loader has its own, and another thread may hold it while it waits for ours. Threads that come at the
  // same time all search, and the first result counts.
  searching = true;
  std::unique_ptr<const RealNccl> made(new RealNccl(caller));
  searching = false;
  const RealNccl* expected = nullptr;
  if (!instance.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel)) {
    return *expected;
  }
  made->log();
  return *made.release();
}

RealNccl::RealNccl(const void* caller) {
  void* handle = find(caller);
  if (handle == nullptr) {
    problem_ = std::string("no NCCL found: none is loaded and ") + soname +
               " cannot be loaded; every NCCL call fails. Set ZIPCCL_NCCL_LIB to the library's path";
    fill(nullptr);
    return;
  }
  const void* symbol = foreign_symbol(handle, probe);
  path_ = path_of(symbol);
  fill(handle);
  note_code(symbol);
  for (const std::string& path : loaded_objects()) {
    const Library library = named_nccl(path) ? loaded_library(path) : nullptr;
    const void* other = library != nullptr ? foreign_symbol(library.get(), probe) : nullptr;
    if (other != nullptr && base_of(other) != base_of(symbol)) {
      second_copy_ = path;
    }
  }
}

void* RealNccl::find(const void* caller) {
  if (void* given = find_given()) {
    return given;
  }
  if (void* loaded = find_loaded(caller)) {
    return loaded;
  }
  void* library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
  return library != nullptr && foreign_symbol(library, probe) != nullptr ? library : nullptr;
}

void* RealNccl::find_given() {
  const std::string& path = configuration().settings.nccl_library;
  if (path.empty()) {
    return nullptr;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    given_problem_ = error != nullptr ? error : "it cannot be loaded";
  } else if (foreign_symbol(library, probe) == nullptr) {
    given_problem_ = path + " is not NCCL: it has no " + probe;
    dlclose(library);
    library = nullptr;
  }
  return library;
}

void* RealNccl::find_loaded(const void* caller) {
  // The global scope, as the loader would have resolved the call. Null under PyTorch, which loads NCCL RTLD_LOCAL.
  if (foreign_symbol(RTLD_NEXT, probe) != nullptr) {
    return RTLD_NEXT;
  }
  // The caller's own dependencies, as the loader would have gone on.
  if (Library library = caller != nullptr ? loaded_library(path_of(caller)) : nullptr;
      library != nullptr && foreign_symbol(library.get(), probe) != nullptr) {
    return library.release();
  }
  if (Library library = loaded_library(soname); library != nullptr && foreign_symbol(library.get(), probe) != nullptr) {
    return library.release();
  }
  for (const std::string& path : loaded_objects()) {
    Library library = loaded_library(path);
    if (library == nullptr) {
      continue;
    }
    // Its own symbol, not that of a library it depends on.
    for (const char* name : {"pncclGetVersion", probe}) {
      const void* symbol = foreign_symbol(library.get(), name);
      if (symbol != nullptr && path_of(symbol) == path && foreign_symbol(library.get(), probe) != nullptr) {
        return library.release();
      }
    }
  }
  return nullptr;
}

void RealNccl::fill(void* handle) {
  // RTLD_NEXT goes on to the next library if one lacks a symbol; functions of two copies must not be mixed.
  const void* base = handle == RTLD_NEXT ? base_of(foreign_symbol(handle, probe)) : nullptr;
  const auto resolve = [&](const char* name) -> void* {
    void* symbol = handle != nullptr ? foreign_symbol(handle, name) : nullptr;
    return base == nullptr || base_of(symbol) == base ? symbol : nullptr;
  };
  std::string lacking;
#define ZIPCCL_NCCL_RESOLVE(function, required, result, parameters)                  \
  found_.function = reinterpret_cast<decltype(found_.function)>(resolve(#function)); \
  if (found_.function == nullptr && (required)) {                                    \
    lacking += std::string(lacking.empty() ? "" : ", ") + #function;                 \
  }
  ZIPCCL_NCCL_FUNCTIONS(ZIPCCL_NCCL_RESOLVE)
#undef ZIPCCL_NCCL_RESOLVE
  if (handle != nullptr) {
    note_version();
    if (!lacking.empty()) {
      problem_ = "NCCL " + version_text_ + " (" + path_ + ") cannot be used, it lacks " + lacking +
                 "; every NCCL call fails. zipccl needs NCCL 2.18 or later";
      found_ = {};  // not half a library: a job must not start with the functions that happen to be there
    }
  }
#define ZIPCCL_NCCL_SUBSTITUTE(function, required, result, parameters) \
  table_.function = substitute<FunctionIndex::function>(found_.function);
  ZIPCCL_NCCL_FUNCTIONS(ZIPCCL_NCCL_SUBSTITUTE)
#undef ZIPCCL_NCCL_SUBSTITUTE
  if (!usable()) {
    return;
  }
  const auto* runtime = static_cast<const zipccl_host_runtime_v1*>(resolve(ZIPCCL_HOST_RUNTIME_SYMBOL));
  if (runtime != nullptr && runtime->version == ZIPCCL_HOST_RUNTIME_VERSION && runtime->size >= sizeof(*runtime)) {
    host_runtime_ = runtime;
  }
}

void RealNccl::note_version() {
  int version = 0;
  const RealCall scope;
  if (found_.ncclGetVersion == nullptr || found_.ncclGetVersion(&version) != ncclSuccess || version == 0) {
    version_text_ = "of unknown version";
    return;
  }
  // 2.9 changed the code from 1000 a major version to 10000.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  version_text_ = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

void RealNccl::note_code(const void* symbol) {
  // A NCCL inside libtorch_cuda shares that library's code with its callers, which then cannot be told apart.
  if (!named_nccl(path_)) {
    return;
  }
  struct Range {
    const void* symbol;
    const void* begin = nullptr;
    const void* end = nullptr;
  } range{symbol};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* argument) {
        auto* wanted = static_cast<Range*>(argument);
        for (std::size_t i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          const char* begin = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
          const char* end = begin + header.p_memsz;
          if (header.p_type == PT_LOAD && (header.p_flags & PF_X) != 0 && wanted->symbol >= begin &&
              wanted->symbol < end) {
            wanted->begin = begin;
            wanted->end = end;
            return 1;
          }
        }
        return 0;
      },
      &range);
  code_begin_ = range.begin;
  code_end_ = range.end;
}

void RealNccl::log() const {
  if (!given_problem_.empty()) {
    log::write(LogLevel::error, "ZIPCCL_NCCL_LIB cannot be used, searching for NCCL instead: %s",
               given_problem_.c_str());
  }
  if (!usable()) {
    log::write(LogLevel::error, "%s", problem_.c_str());
    return;
  }
  if (!second_copy_.empty()) {
    log::write(LogLevel::warn, "two copies of NCCL are loaded: %s is used, %s is not", path_.c_str(),
               second_copy_.c_str());
  }
  log::write(LogLevel::info, "NCCL %s from %s", version_text_.c_str(), path_.c_str());
}

}  // namespace zipccl::interpose
