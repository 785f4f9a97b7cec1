// Staging memory for the all-gathers of all communicators: within a cap for each device (rule R9), and given back only
// when nothing that was enqueued can still use it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "interpose/comm_table.hpp"

namespace zipccl::interpose {

class StagingPool {
 public:
  static constexpr std::uint64_t most_shared = std::uint64_t{128} << 20;  // ZIPCCL_STAGING_MB's default
  static std::uint64_t cap(const codec::Device& device);                  // the smaller of 1 GiB and 2 % of its memory

  // Reserves `wanted` bytes or what the cap leaves, for a communicator of so many ranks; reclaims only if the cap
  // leaves less. *why explains a failure.
  Status reserve(codec::Device& device, std::uint64_t wanted, collectives::RankRange ranks, bool with_overflow,
                 std::unique_ptr<collectives::Staging>* staging, std::string* why,
                 const collectives::NcclTable* windows = nullptr);
  // What a communicator that comes later than its creation should reserve: `wanted`, but at most an eighth of what the
  // cap leaves, so that dozens of communicators get something; all that is left if an eighth is too little, or if
  // `wanted` is more than the default, as the user has then asked for it. reserve() does not reclaim for that.
  std::uint64_t share(const codec::Device& device, std::uint64_t wanted, int rank_count, bool with_overflow);
  // Of staging that no call has used.
  void release(const codec::Device& device, std::unique_ptr<collectives::Staging> staging);

  // Takes over a communicator that has left the table. It and its staging are freed by a later reclaim(), when the
  // communicator's last call is done and no thread is inside one.
  void retire(CommPointer state);
  std::vector<CommPointer> retired();  // what reclaim() has not taken yet
  // Frees device memory, for which CUDA waits until the device is idle: never where that can depend on what the calling
  // thread does next.
  void reclaim();

  // The process's own; never destroyed.
  static StagingPool& instance();

 private:
  std::mutex mutex_;
  std::unordered_map<const codec::Device*, std::uint64_t> used_;
  std::vector<CommPointer> retired_;
};

}  // namespace zipccl::interpose
