// The NCCL that the process would have called without zipccl.
#pragma once

#include <string>
#include <utility>

#include "codec/host_runtime.h"
#include "collectives/nccl_table.hpp"
#include "interpose/process.hpp"

namespace zipccl::interpose {

class RealNccl {
 public:
  // Found on the first call, whose `caller` (a return address, may be null) tells which of several copies is meant.
  // Thread-safe and callable from within itself; never destroyed. If there is none, table() still has all functions:
  // they return ncclSystemError.
  static const RealNccl& get(const void* caller = nullptr);

  // Every member can be called. One that the library lacks logs a line and returns ncclInvalidUsage, or
  // ncclSystemError if the library cannot be used at all.
  const collectives::NcclTable& table() const { return table_; }
  template <typename Function>
  bool has(Function collectives::NcclTable::*function) const {
    return found_.*function != nullptr;
  }
  bool usable() const { return problem_.empty(); }
  const std::string& problem() const { return problem_; }  // why it is not usable, ready for a log line
  const std::string& path() const { return path_; }
  const std::string& version_text() const { return version_text_; }  // "2.28.9"
  // The host runtime of a NCCL without GPUs; null for every other.
  const zipccl_host_runtime_v1* host_runtime() const { return host_runtime_; }
  // Whether an address is code of a NCCL library, so that a call from there is NCCL's own.
  bool contains(const void* address) const { return address >= code_begin_ && address < code_end_; }

 private:
  RealNccl() = default;
  explicit RealNccl(const void* caller);
  void* find(const void* caller);
  void* find_given();
  void* find_loaded(const void* caller);
  void fill(void* handle);
  void note_version();
  void note_code(const void* symbol);
  void log() const;

  collectives::NcclTable found_;  // null where the library lacks a function
  collectives::NcclTable table_;  // found_ with substitutes
  const zipccl_host_runtime_v1* host_runtime_ = nullptr;
  std::string path_;
  std::string version_text_;
  std::string problem_;
  std::string given_problem_;  // why ZIPCCL_NCCL_LIB is not used
  std::string second_copy_;    // path of another NCCL in the process
  const void* code_begin_ = nullptr;
  const void* code_end_ = nullptr;
};

// Calls a function of the real NCCL: call_real<&NcclTable::ncclAllReduce>(...).
template <auto function, typename... Arguments>
auto call_real(Arguments... arguments) {
  const RealCall scope;
  return (RealNccl::get().table().*function)(arguments...);
}

}  // namespace zipccl::interpose
