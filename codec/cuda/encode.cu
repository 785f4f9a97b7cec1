// Encodes of single messages, rows and lists (EncodeJob), each a launch, but for long rows and lists.
#include <algorithm>

#include "codec/cuda/encode_block.cuh"
#include "codec/cuda/engine.hpp"
#include "codec/cuda/lists.cuh"
#include "codec/cuda/system_scope.cuh"
#include "codec/job_messages.hpp"

namespace zipccl::codec::cuda {
namespace {

// Large blocks, as each costs atomics on the message's few counters.
constexpr unsigned block_warps = 16;
constexpr unsigned block_threads = block_warps * lane_count;
// 40 registers a thread, which all kernels do with but those that must shift values and cannot read where their message
// lies from the constant cache.
template <bool aligned, typename Arguments>
constexpr unsigned blocks_per_multiprocessor = aligned || !Arguments::several ? 3 : 2;

// Grid: the message's blocks in x.
struct SingleArguments : SingleMessage {
  using SingleMessage::SingleMessage;
  __device__ unsigned blocks(unsigned) const { return gridDim.x; }
};

// Messages of a row. Grid: their blocks in x, messages in y, without the one that is skipped.
struct RowArguments {
  static constexpr bool several = true;
  MessagePlace place;  // of message 0 of the job
  EncodeShared shared;
  std::uint64_t value_stride;    // in values
  std::uint64_t message_stride;  // in bytes
  std::uint32_t first;           // the launch's first message if none were skipped
  std::uint32_t skip;

  __device__ bool is_first_block() const { return blockIdx.x == 0 && blockIdx.y == 0; }
  __device__ unsigned message_index() const { return first + blockIdx.y + (first + blockIdx.y >= skip ? 1 : 0); }
  __device__ MessagePlace message(unsigned index) const {
    return {place.values + index * value_stride, place.bytes + index * message_stride, place.layout};
  }
  __device__ EncodeCounters* counters(unsigned) const { return shared.counters_of(blockIdx.y); }
  __device__ std::uint32_t receiver(unsigned index) const { return index; }
  __device__ unsigned block(unsigned) const { return blockIdx.x; }
  __device__ unsigned blocks(unsigned) const { return gridDim.x; }
};

// Messages of a list. Grid: the blocks of all of them in x.
template <unsigned capacity>
struct ListArguments {
  static constexpr bool several = true;
  struct Item {
    const std::uint16_t* values;
    std::uint8_t* bytes;
    std::uint64_t count;
    std::uint32_t receiver;
    std::uint32_t first_block;
  };
  EncodeShared shared;
  std::uint32_t pool_fraction;
  std::uint32_t count;
  Item items[capacity];

  __device__ bool is_first_block() const { return blockIdx.x == 0; }
  __device__ unsigned message_index() const { return find_item(items, count, blockIdx.x); }
  __device__ MessagePlace message(unsigned index) const {
    const Item& item = items[index];
    return {item.values, item.bytes, Layout::of(item.count, pool_fraction)};
  }
  __device__ EncodeCounters* counters(unsigned index) const { return shared.counters_of(index); }
  __device__ std::uint32_t receiver(unsigned index) const { return items[index].receiver; }
  __device__ unsigned block(unsigned index) const { return blockIdx.x - items[index].first_block; }
  __device__ unsigned blocks(unsigned index) const {
    return (index + 1 < count ? items[index + 1].first_block : gridDim.x) - items[index].first_block;
  }
};

template <bool aligned, typename Arguments>
__global__ void __launch_bounds__(block_threads, (blocks_per_multiprocessor<aligned, Arguments>))
    encode_kernel(const __grid_constant__ Arguments arguments) {
  encode_block<aligned, block_warps>(arguments);
}

// A job without messages, whose receive job takes the time all the same.
__global__ void start_kernel(std::uint64_t* started_ns) { *started_ns = global_timer(); }

// For a launch that is not the job's first.
void forget_start(EncodeShared& shared) { shared.started_ns = nullptr; }

template <typename Arguments>
cudaError_t launch(const Arguments& arguments, dim3 grid, bool aligned, cudaStream_t stream) {
  if (aligned) {
    encode_kernel<true><<<grid, block_threads, 0, stream>>>(arguments);
  } else {
    encode_kernel<false><<<grid, block_threads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

cudaError_t launch_nothing(const EncodeJob& job, cudaStream_t stream) {
  if (job.started_ns == nullptr) return cudaSuccess;
  start_kernel<<<1, 1, 0, stream>>>(job.started_ns);
  return cudaGetLastError();
}

cudaError_t launch_single(const EncodeJob& job, cudaStream_t stream) {
  const SingleArguments arguments(job);
  return launch(arguments, blocks_of(arguments.place.layout.tiles, block_warps), is_aligned(job.values), stream);
}

cudaError_t launch_row(const EncodeJob& job, cudaStream_t stream) {
  RowArguments arguments{};
  arguments.place = first_place(job);
  arguments.shared = shared_arguments(job);
  arguments.value_stride = job.value_stride / sizeof(std::uint16_t);
  arguments.message_stride = job.message_stride;
  arguments.skip = job.skip;
  const bool aligned = is_aligned(job.values) && job.value_stride % sizeof(uint4) == 0;
  const std::uint32_t messages = job.message_count - (job.skip < job.message_count ? 1 : 0);
  while (arguments.first < messages) {
    const std::uint32_t part = std::min(messages - arguments.first, encode_scratch_messages);
    const dim3 grid(blocks_of(arguments.place.layout.tiles, block_warps), part);
    if (const cudaError_t error = launch(arguments, grid, aligned, stream); error != cudaSuccess) return error;
    arguments.first += part;
    forget_start(arguments.shared);
  }
  return cudaSuccess;
}

cudaError_t launch_list(const EncodeJob& job, cudaStream_t stream) {
  return launch_parts<ListArguments>(
      job.item_count, [&](auto& arguments, std::uint32_t first, std::uint32_t part, bool) {
        arguments.shared = shared_arguments(job);
        if (first != 0) forget_start(arguments.shared);
        arguments.pool_fraction = job.pool_fraction;
        arguments.count = part;
        std::uint32_t blocks = 0;
        bool aligned = true;
        for (std::uint32_t i = 0; i < part; ++i) {
          const EncodeItem& item = job.items[first + i];
          arguments.items[i] = {static_cast<const std::uint16_t*>(item.values),
                                static_cast<std::uint8_t*>(item.message), item.count, item.receiver, blocks};
          blocks += blocks_of(Layout::of(item.count, 0).tiles, block_warps);
          aligned = aligned && is_aligned(item.values);
        }
        return launch(arguments, blocks, aligned, stream);
      });
}

}  // namespace

cudaError_t launch_encode(const EncodeJob& job, cudaStream_t stream) {
  std::uint32_t messages = message_total(job);
  if (job.items == nullptr && job.skip < job.message_count) --messages;
  if (messages == 0) return launch_nothing(job, stream);
  if (job.items != nullptr) return launch_list(job, stream);
  return job.message_count == 1 ? launch_single(job, stream) : launch_row(job, stream);
}

cudaError_t load_encode() {
  return load_kernels(encode_kernel<true, SingleArguments>, encode_kernel<false, SingleArguments>,
                      encode_kernel<true, RowArguments>, encode_kernel<false, RowArguments>,
                      encode_kernel<true, ListArguments<small_list>>, encode_kernel<false, ListArguments<small_list>>,
                      encode_kernel<true, ListArguments<large_list>>, encode_kernel<false, ListArguments<large_list>>,
                      start_kernel);
}

}  // namespace zipccl::codec::cuda
