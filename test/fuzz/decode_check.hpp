// What must hold for any bytes that arrive as a message: the engine stays within its memory (the sanitizers watch) and
// gives the same verdict and values as the plain decoder.
#pragma once

#include <cstdint>

#include "test/unit/codec_messages.hpp"

namespace zipccl::test {

// Bytes of overflow that a receiver would hold for this message, going by its header alone: none if the header is bad.
std::uint64_t expected_overflow_bytes(const Message& message);

// Decodes a message whose overflow has expected_overflow_bytes(), whole, in pieces of `step` bytes (a multiple of
// 16), and in one piece that is cut short. Prints and aborts if anything differs from the plain decoder.
void check_decode(const Message& message, std::uint64_t step);

}  // namespace zipccl::test
