// Outcome of every operation below the interposer: codec, device seam, collectives and session return a Status and
// never throw, log or exit. Only interpose/ turns one into a log line or an ncclResult_t.
#pragma once

#include <cstdint>

namespace zipccl {

// Numbers are stable: reports and golden tests name them.
enum class [[nodiscard]] Status : std::int32_t{
    ok = 0,
    invalid_argument = 1,  // the caller broke a documented contract
    out_of_memory = 2,     // device or host allocation refused
    device_error = 3,      // a CUDA (or host runtime) call failed; Device::last_error() has its text
    unsupported = 4,       // this build, GPU or driver cannot do it
    // A received message is not what sender and receiver agreed on.
    bad_magic = 10, bad_version = 11, bad_dtype = 12, bad_count = 13, bad_pool = 14,
    bad_sequence = 15,  // sequence or chunk number differs from the expected one
    bad_totals = 16,    // totals contradict each other or the layout
    bad_tile = 17,      // a tile's tail contradicts its codes, or its entry lies outside pool and overflow
    // Agreement and transport.
    connection_lost = 20, timed_out = 21,
    refused = 22,    // unknown secret, protocol version or rank
    aborted = 23,    // the communicator was aborted while the operation waited
    nccl_error = 24  // the real NCCL returned an error; the caller holds its ncclResult_t
};

// One short English sentence without a full stop, static storage.
constexpr const char* describe(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::invalid_argument:
      return "invalid argument";
    case Status::out_of_memory:
      return "out of memory";
    case Status::device_error:
      return "device error";
    case Status::unsupported:
      return "not supported here";
    case Status::bad_magic:
      return "message does not start with the zipccl magic";
    case Status::bad_version:
      return "message has another format version";
    case Status::bad_dtype:
      return "message holds another data type";
    case Status::bad_count:
      return "message holds another number of values";
    case Status::bad_pool:
      return "message was made with another pool fraction";
    case Status::bad_sequence:
      return "message belongs to another call or chunk";
    case Status::bad_totals:
      return "message totals contradict its layout";
    case Status::bad_tile:
      return "a tile contradicts its own codes";
    case Status::connection_lost:
      return "connection lost";
    case Status::timed_out:
      return "timed out";
    case Status::refused:
      return "refused by the session";
    case Status::aborted:
      return "communicator aborted";
    case Status::nccl_error:
      return "NCCL returned an error";
  }
  return "unknown status";
}

}  // namespace zipccl
