// The encode of one message and the receive job of a row of others, side by side in one launch: what an all-gather in
// chunks has for each chunk. Other forms are launched one after the other.
#include "codec/cuda/encode_block.cuh"
#include "codec/cuda/engine.hpp"
#include "codec/cuda/lists.cuh"
#include "codec/cuda/receive_block.cuh"

namespace zipccl::codec::cuda {
namespace {

struct EncodedMessage : SingleMessage {
  std::uint32_t message_blocks;

  explicit EncodedMessage(const EncodeJob& job)
      : SingleMessage(job), message_blocks(blocks_of(place.layout.tiles, decode_block_warps)) {}
  __device__ unsigned blocks(unsigned) const { return message_blocks; }
};

// Grid: the encode's blocks, which the next exchange waits for, then the receive job's, in x.
struct EncodeAndReceiveArguments {
  EncodedMessage encode;
  ReceiveArguments<ReceivedRow> receive;
};

// Two blocks wait, at most: the encode's last one, when all of its message's others have started, for the CPU thread
// that empties the outbox (or for a block, of whatever launch, that holds the outbox and waits for that thread only);
// the patching one, which starts last, for the CPU thread that fills the mailbox with the record of a message that its
// sender's launch has encoded before. Neither waits for the other, nor for a block that has yet to start.
template <bool aligned>
__global__ void __launch_bounds__(decode_block_threads, decode_blocks_per_multiprocessor)
    encode_and_receive_kernel(const __grid_constant__ EncodeAndReceiveArguments arguments) {
  const unsigned encode_blocks = arguments.encode.message_blocks;
  if (blockIdx.x < encode_blocks) {
    encode_block<aligned, decode_block_warps>(arguments.encode);
    return;
  }
  // A block has one part only, for which the same memory serves: escapes need as much in either direction.
  receive_block<aligned>(arguments.receive, blockIdx.x - encode_blocks, blockIdx.x == gridDim.x - 1,
                         [] { return block_storage<decode_block_warps>()[warp_id()].exponents; });
}

bool is_message(const EncodeJob& job) { return job.items == nullptr && job.message_count == 1 && job.skip != 0; }
bool is_row(const DecodeJob& job) { return job.items == nullptr && job.message_count != 0; }

}  // namespace

cudaError_t launch_encode_and_receive(const EncodeJob& encode, const ReceiveJob& receive, cudaStream_t stream) {
  if (!is_message(encode) || !is_row(receive.decode)) {
    const cudaError_t error = launch_encode(encode, stream);
    return error == cudaSuccess ? launch_receive(receive, stream) : error;
  }
  const EncodeAndReceiveArguments arguments{EncodedMessage(encode),
                                            {shared_arguments(receive), ReceivedRow(receive.decode)}};
  const ReceivedRow& messages = arguments.receive.messages;
  const std::uint32_t blocks = arguments.encode.message_blocks + messages.block_total() + 1;
  if (is_aligned(encode.values) && messages.is_aligned()) {
    encode_and_receive_kernel<true><<<blocks, decode_block_threads, 0, stream>>>(arguments);
  } else {
    encode_and_receive_kernel<false><<<blocks, decode_block_threads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

cudaError_t load_encode_and_receive() {
  return load_kernels(encode_and_receive_kernel<true>, encode_and_receive_kernel<false>);
}

}  // namespace zipccl::codec::cuda
