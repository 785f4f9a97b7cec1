// The order of one communicator's compressed calls, whatever streams they are made on: each waits for the one before,
// as NCCL's own kernels do, so that they may share staging.
#pragma once

#include <array>
#include <cstddef>
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
  // takes its place in the chain as a call does. Up to `captures_at_once` captures may alternate.
  Status begin(codec::Stream stream, std::uint64_t capture = 0);
  Status end(codec::Stream stream, std::uint64_t capture = 0);
  // What is enqueued on `then` from now on waits for what `first` has now.
  Status order(codec::Stream first, codec::Stream then);
  // As order(own, caller), after what was done on `own` for the caller: what fails once is tried again, as it must not
  // leave the caller's buffers in use. The first status.
  Status hand_back(codec::Stream own, codec::Stream caller);
  // Whether everything up to the last end() is done. Never blocks.
  Status idle(bool* done);

 private:
  static constexpr std::size_t captures_at_once = 8;
  struct Captured {
    codec::Event last_use = nullptr;
    std::uint64_t capture = 0;  // 0: none
  };

  explicit CallChain(codec::Device& device) : device_(device) {}
  Captured* find(std::uint64_t capture);

  codec::Device& device_;
  codec::Event handover_ = nullptr;  // for order(): waited for at once, so one is enough
  codec::Event last_use_ = nullptr;
  bool used_ = false;
  std::array<Captured, captures_at_once> captured_;  // of the latest captures: nobody says when one ends
  std::size_t oldest_ = 0;
};

}  // namespace zipccl::collectives
