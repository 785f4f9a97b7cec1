// The codec on host memory, in plain C++: what the stand-in runs on, and the CUDA engine's reference. Calls are
// synchronous, run in the calling thread, allocate nothing and keep no state; jobs mean what device.hpp and
// overflow.hpp say. The clock of started_ns is the steady one.
#pragma once

#include "codec/device.hpp"
#include "codec/job_checks.hpp"
#include "codec/overflow.hpp"
#include "codec/status.hpp"
#include "codec/traits.hpp"

namespace zipccl::codec {

template <ValueTraits Traits>
class HostEngine {
 public:
  // Writes the canonical message of FORMAT.md 6: entries in tile order; alignment gaps, the rest of the pool and the
  // overflow before its first entry zero. Bytes beyond the overflow's last entry are left alone. `scratch` is not used
  // and may be null. ok, or invalid_argument before anything is written. Waits for the CPU thread by sleeping.
  static Status encode(const EncodeJob& job);

  // ok even if messages are found corrupt, which their summaries say; invalid_argument before anything is written. A
  // message with a bad header keeps its output untouched, and so do, in the first pass, tiles that are bad.
  static Status decode(const DecodeJob& job);

  // ok even if a record is lost or a message corrupt, which the counters say; invalid_argument before anything is
  // written. Waits for the CPU thread by sleeping.
  static Status receive(const ReceiveJob& job);

  // ok, or invalid_argument before anything is counted. `scratch` is not used and may be null.
  static Status observe(const ObserveJob& job);
};

extern template Status HostEngine<Bf16Traits>::encode(const EncodeJob& job);
extern template Status HostEngine<Bf16Traits>::decode(const DecodeJob& job);
extern template Status HostEngine<Bf16Traits>::receive(const ReceiveJob& job);
extern template Status HostEngine<Bf16Traits>::observe(const ObserveJob& job);

}  // namespace zipccl::codec
