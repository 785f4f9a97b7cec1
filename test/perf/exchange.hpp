// What a benchmark measures: one call, or one group of calls, of known sizes with inputs and the outputs they must
// give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "test/jobs/job.hpp"
#include "test/perf/device_work.hpp"
#include "test/perf/nccl_functions.hpp"
#include "test/perf/options.hpp"
#include "test/support/backend.hpp"

namespace zipccl::test {

// Device memory, released with its owner.
class Buffer {
 public:
  Buffer(Backend& backend, std::size_t bytes)
      : backend_(backend), data_(static_cast<unsigned char*>(backend.allocate(bytes))) {}
  ~Buffer() { backend_.release(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  unsigned char* data() const { return data_; }

 private:
  Backend& backend_;
  unsigned char* data_;
};

// Buffers belong to one size and live as long as the exchange. Every rank makes the same exchanges in the same order.
class Exchange {
 public:
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // nccl-tests' size column: the whole output of an all-gather, what one rank sends in an all-to-all (itself included),
  // one message of send-recv.
  std::uint64_t bytes() const { return bytes_; }
  std::size_t count() const { return count_; }            // nccl-tests' count column
  std::uint64_t bus_bytes() const { return bus_bytes_; }  // that the busiest rank sends or receives, itself excluded
  const std::vector<std::uint64_t>& operations() const { return operations_; }  // bytes, as zipccl's report files them

  // Before every call, while no stream works on the buffers: puts inputs in place and poisons outputs if `poisoned`.
  virtual void prepare(bool poisoned) = 0;
  // Enqueues the call. The group of a grouped exchange is opened and closed here.
  virtual ncclResult_t call(const NcclFunctions& nccl, ncclComm_t communicator, cudaStream_t stream) = 0;
  // The same exchange, uncompressed, as the exact mode does it: the `share` of known size and with it the sizes, for
  // which the host waits, then the rest. What it takes longer than call() is a second group and the host's wait before
  // it. Ends the process if the collective has no such form.
  virtual ncclResult_t call_in_two(const NcclFunctions& nccl, ncclComm_t communicator, cudaStream_t stream,
                                   DeviceWork& work, double share);
  // After the call's work is done: whether every byte of this rank's output is right.
  virtual bool correct() = 0;

 protected:
  Exchange() = default;
  std::uint64_t bytes_ = 0;
  std::size_t count_ = 0;
  std::uint64_t bus_bytes_ = 0;
  std::vector<std::uint64_t> operations_;
};

// Exchanges of about `bytes` for options.collective; ends the process if that is unknown.
std::unique_ptr<Exchange> make_exchange(const Options& options, const Job& job, Backend& backend, std::uint64_t bytes);

// Values to fill inputs with: part `part` of the inputs begins elsewhere in a block of recorded or generated values,
// and so on in every size. The same on every rank.
class Values {
 public:
  Values(const Options& options, std::uint64_t seed, const char* recorded_prefix);
  void upload(Backend& backend, unsigned char* device, std::size_t part, std::size_t bytes) const;

 private:
  std::vector<std::uint16_t> block_;
  std::uint64_t seed_;
};

}  // namespace zipccl::test
