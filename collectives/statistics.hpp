// What a communicator's calls did, for the report. Plain counters, written by the calling thread and read by the
// report at any time: relaxed atomics, no locks, no allocation.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "codec/status.hpp"

namespace zipccl::collectives {

// Why a call went the way it did. Order is the order of the checks.
enum class Route : std::uint8_t {
  compressed,
  disabled,     // ZIPCCL_COLLECTIVES leaves the collective out
  dtype,        // not a type that zipccl codes
  large,        // a message above what one can hold, or its overflow above what a record can
  small,        // below the agreed smallest size
  single_rank,  // nothing to move
  registered,   // a buffer that is registered with NCCL
  captured,     // the stream is being captured into a CUDA graph (exchange modes in which the host waits)
  closed,       // the communicator lost its agreement (an error, a revoke)
  native,       // the ranks have not agreed to compress this class of calls, or not any more
  link          // a peer over a link on which compression does not pay
};
inline constexpr std::size_t route_count = 11;
const char* to_string(Route route);

enum class Collective : std::uint8_t { all_gather, all_to_all, send, receive };
inline constexpr std::size_t collective_count = 4;
const char* to_string(Collective collective);

using Counter = std::atomic<std::uint64_t>;

// One class of calls: a collective and a power of two of its size.
struct Bucket {
  std::array<Counter, route_count> calls{};
  Counter raw_bytes{};        // uncompressed bytes that this rank would have sent (all-gather: its shard)
  Counter wire_bytes{};       // bytes that it sent instead, static and dynamic
  Counter values{};           // values in compressed messages received and sent
  Counter escapes{};          // of these, outside their window
  Counter overflow_chunks{};  // chunks in which some rank's entries exceeded the pool
  Counter overflow_bytes{};   // dynamic bytes that this rank sent
  Counter host_wait_ns{};     // time this rank's host waited (exchange mode exact)
};

inline constexpr std::size_t bucket_count = 48;  // bucket b: sizes of 2^b bytes up to 2^(b+1) - 1

struct Statistics {
  std::array<std::array<Bucket, bucket_count>, collective_count> buckets{};
  std::atomic<std::int32_t> error{0};  // first zipccl::Status that was not ok
  Bucket& bucket(Collective collective, std::uint64_t bytes);
  bool note_error(Status status);  // true if it is the first one
};

}  // namespace zipccl::collectives
