// Times work on the GPU. Several pieces are captured into one CUDA graph, so that launch overhead on the host does not
// show; the median of its replays is taken.
#pragma once

#include <functional>

#include "codec/device.hpp"

namespace zipccl::test {

// Median microseconds of one of `launches` pieces of work; enqueue(i, stream) enqueues piece i. Replays the graph of
// all pieces `warmup` + `samples` times. Ends the program on a CUDA error.
double median_microseconds(unsigned launches, unsigned warmup, unsigned samples,
                           const std::function<void(unsigned, codec::Stream)>& enqueue);

}  // namespace zipccl::test
