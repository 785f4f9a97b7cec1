// The order of one communicator's compressed calls, whatever streams they are made on: each waits for the one before,
// as NCCL's own kernels do, so that they may share staging.
#pragma once

#include <cstdint>
#include <memory>

#include "codec/device.hpp"

namespace zipccl::collectives {

class CallChain {
 public:
  static Status create(codec::Device& device, std::unique_ptr<CallChain>* chain);
  ~CallChain();
  CallChain(const CallChain&) = delete;
  CallChain& operator=(const CallChain&) = delete;

  // Orders a call behind the communicator's previous one. Every end() needs a begin() on its stream after the latest
  // end(), or the chain loses that one's work. `capture` is Device::capture of the stream: each launch of a graph then
  // takes its place in the chain as a call does.
  Status begin(codec::Stream stream, std::uint64_t capture = 0);
  Status end(codec::Stream stream, std::uint64_t capture = 0);
  // What is enqueued on `then` from now on waits for what `first` has now.
  Status order(codec::Stream first, codec::Stream then);
  // Whether everything up to the last end() is done. Never blocks.
  Status idle(bool* done);

 private:
  explicit CallChain(codec::Device& device) : device_(device) {}

  codec::Device& device_;
  codec::Event handover_ = nullptr;  // for order(): waited for at once, so one is enough
  codec::Event last_use_ = nullptr;
  bool used_ = false;
  codec::Event captured_use_ = nullptr;  // the last use within the latest capture
  std::uint64_t capture_ = 0;            // that capture
};

}  // namespace zipccl::collectives
