#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "codec/cuda/cuda_device.hpp"
#include "codec/cuda/driver_call.hpp"
#include "codec/cuda/engine.hpp"
#include "codec/host_engine.hpp"
#include "codec/job_messages.hpp"
#include "codec/traits.hpp"

namespace zipccl::codec {
namespace {

constexpr int least_major = 8;  // compute capability of the oldest GPU that the kernels are written for
constexpr std::uint32_t longest_pause_ns = 1'000'000;

thread_local char error_text[256] = "";

// Outcome of a CUDA call as a Status; keeps the text for last_error() and clears CUDA's own sticky copy.
Status check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return Status::ok;
  std::snprintf(error_text, sizeof(error_text), "%s: %s (%s)", call, cudaGetErrorString(error),
                cudaGetErrorName(error));
  cudaGetLastError();
  return error == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::device_error;
}

bool is_scratch(const void* memory) {
  return memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % alignof(std::uint64_t) == 0;
}

// The driver's calls on the current context. An application has a CUDA runtime of its own beside the one linked in
// here, and only the driver knows what both have made current; asking it also costs less than cudaSetDevice.
struct ContextCalls {
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*push_current)(CUcontext) = nullptr;
  CUresult (*pop_current)(CUcontext*) = nullptr;

  cudaError_t load() {
    cudaError_t error = cuda::find_driver_call("cuCtxGetCurrent", get_current);
    if (error == cudaSuccess) error = cuda::find_driver_call("cuCtxPushCurrent", push_current);
    if (error == cudaSuccess) error = cuda::find_driver_call("cuCtxPopCurrent", pop_current);
    return error;
  }
};

// Makes a context current and the former one again.
class CurrentContext {
 public:
  CurrentContext(const ContextCalls& calls, CUcontext context) : calls_(calls) {
    CUcontext former = nullptr;
    if (calls_.get_current(&former) == CUDA_SUCCESS && former == context) return;
    pushed_ = calls_.push_current(context) == CUDA_SUCCESS;
    if (!pushed_) error_ = cudaErrorInvalidResourceHandle;
  }
  ~CurrentContext() {
    CUcontext popped = nullptr;
    if (pushed_) calls_.pop_current(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  Status status() const { return check(error_, "cuCtxPushCurrent"); }

 private:
  const ContextCalls& calls_;
  cudaError_t error_ = cudaSuccess;
  bool pushed_ = false;
};

// Allows calls that a stream capture elsewhere in the process would otherwise forbid, or that would invalidate it.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The process's pools. Peer access, which NCCL enables between the GPUs of one process, is to cudaMalloc's memory and
// not to a pool's; but where ranks are threads of one process, NCCL before 2.23 has a sender's kernel write to the
// receiver's buffer. So every pool is opened to the process's other GPUs as soon as they have one themselves: a process
// with one GPU, as most are, maps nothing elsewhere.
class Pools {
 public:
  // On failure the pool is not among them.
  cudaError_t add(int ordinal, cudaMemPool_t pool) {
    const std::lock_guard lock(mutex_);
    pools_.reserve(pools_.size() + 1);
    for (const auto& [other, others_pool] : pools_) {
      cudaError_t error = open(others_pool, other, ordinal);
      if (error == cudaSuccess) error = open(pool, ordinal, other);
      if (error != cudaSuccess) return error;
    }
    pools_.emplace_back(ordinal, pool);
    return cudaSuccess;
  }
  void remove(cudaMemPool_t pool) {
    const std::lock_guard lock(mutex_);
    pools_.erase(std::remove_if(pools_.begin(), pools_.end(), [&](const auto& entry) { return entry.second == pool; }),
                 pools_.end());
  }

  static Pools& all() {
    static auto* const pools = new Pools;  // devices may outlive static objects
    return *pools;
  }

 private:
  // Also for what has been allocated before.
  static cudaError_t open(cudaMemPool_t pool, int owner, int reader) {
    int possible = 0;
    cudaError_t error = cudaSuccess;
    if (owner != reader) error = cudaDeviceCanAccessPeer(&possible, reader, owner);
    if (error != cudaSuccess || possible == 0) return error;
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = reader;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    return cudaMemPoolSetAccess(pool, &access, 1);
  }

  std::mutex mutex_;
  std::vector<std::pair<int, cudaMemPool_t>> pools_;  // with their GPUs
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {}
  ~CudaDevice() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (pool_ != nullptr) {
      Pools::all().remove(pool_);
      cudaMemPoolDestroy(pool_);
    }
    cudaFree(word_);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  Status open(std::string* why);

  int ordinal() const override { return ordinal_; }
  const char* name() const override { return properties_.name; }
  const char* last_error() const override { return error_text; }
  std::uint64_t total_memory() const override { return properties_.totalGlobalMem; }

  Status allocate(void** pointer, std::size_t bytes) override {
    return with_device([&] {
      const RelaxedCapture relaxed;
      return check(cudaMalloc(pointer, bytes), "cudaMalloc");
    });
  }
  void release(void* pointer) override {
    const CurrentContext current(calls_, context_);
    const RelaxedCapture relaxed;
    cudaFree(pointer);
  }
  Status allocate_mapped(void** pointer, std::size_t bytes) override {
    return with_device([&] {
      const RelaxedCapture relaxed;
      const Status status =
          check(cudaHostAlloc(pointer, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
      if (status == Status::ok) std::memset(*pointer, 0, bytes);
      return status;
    });
  }
  void release_mapped(void* pointer) override {
    const CurrentContext current(calls_, context_);
    const RelaxedCapture relaxed;
    cudaFreeHost(pointer);
  }
  Status clear(void* pointer, std::size_t bytes) override {
    return with_device([&] {
      const RelaxedCapture relaxed;
      const Status status = check(cudaMemsetAsync(pointer, 0, bytes, stream_), "cudaMemsetAsync");
      return status == Status::ok ? check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize") : status;
    });
  }

  // From a pool of zipccl's own, which gives back to the device what it does not use: the job needs it more.
  Status allocate_async(void** pointer, std::size_t bytes, Stream stream) override {
    if (pool_ == nullptr) return allocate(pointer, bytes);
    return with_device([&] {
      const RelaxedCapture relaxed;
      return check(cudaMallocFromPoolAsync(pointer, bytes, pool_, stream), "cudaMallocFromPoolAsync");
    });
  }
  void release_async(void* pointer, Stream stream) override {
    if (pool_ == nullptr) return release(pointer);
    const CurrentContext current(calls_, context_);
    cudaFreeAsync(pointer, stream);
  }
  Status clear_async(void* pointer, std::size_t bytes, Stream stream) override {
    return with_device([&] { return check(cudaMemsetAsync(pointer, 0, bytes, stream), "cudaMemsetAsync"); });
  }
  Stream own_stream() override { return stream_; }

  Status create_event(Event* event) override {
    return with_device([&] {
      cudaEvent_t created = nullptr;
      const Status status = check(cudaEventCreateWithFlags(&created, cudaEventDisableTiming), "cudaEventCreate");
      *event = created;
      return status;
    });
  }
  void destroy_event(Event event) override {
    const CurrentContext current(calls_, context_);
    cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
  Status record(Event event, Stream stream) override {
    return with_device(
        [&] { return check(cudaEventRecord(static_cast<cudaEvent_t>(event), stream), "cudaEventRecord"); });
  }
  Status query(Event event, bool* done) override {
    return with_device([&] {
      const RelaxedCapture relaxed;
      const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
      *done = error == cudaSuccess;
      if (error != cudaErrorNotReady) return check(error, "cudaEventQuery");
      cudaGetLastError();
      return Status::ok;
    });
  }
  Status wait(Event event, Stream stream) override {
    return with_device(
        [&] { return check(cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(event), 0), "cudaStreamWaitEvent"); });
  }
  Status record_external(Event event, Stream stream) override {
    return with_device([&] {
      std::uint64_t captured = 0;
      const Status status = capture(stream, &captured);
      if (status != Status::ok) return status;
      const unsigned flags = captured != 0 ? cudaEventRecordExternal : cudaEventRecordDefault;
      return check(cudaEventRecordWithFlags(static_cast<cudaEvent_t>(event), stream, flags),
                   "cudaEventRecordWithFlags");
    });
  }
  Status wait_external(Event event, Stream stream) override {
    return with_device([&] {
      std::uint64_t captured = 0;
      const Status status = capture(stream, &captured);
      if (status != Status::ok) return status;
      const unsigned flags = captured != 0 ? cudaEventWaitExternal : cudaEventWaitDefault;
      return check(cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(event), flags), "cudaStreamWaitEvent");
    });
  }

  Status priority(Stream stream, int* priority) override {
    return with_device([&] { return check(cudaStreamGetPriority(stream, priority), "cudaStreamGetPriority"); });
  }
  Status create_stream(Stream* stream, int priority) override {
    return with_device([&] {
      const RelaxedCapture relaxed;
      return check(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, priority),
                   "cudaStreamCreateWithPriority");
    });
  }
  void destroy_stream(Stream stream) override {
    const CurrentContext current(calls_, context_);
    const RelaxedCapture relaxed;
    cudaStreamDestroy(stream);
  }

  Status copy(void* destination, const void* source, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return Status::ok;
    return with_device([&] {
      return check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    });
  }
  // On the legacy stream while another stream captures, the application's mistake, CUDA answers with an error.
  Status capture(Stream stream, std::uint64_t* id) override {
    return with_device([&] {
      cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
      unsigned long long number = 0;
      cudaError_t error = cudaStreamGetCaptureInfo(stream, &state, &number);
      if (state == cudaStreamCaptureStatusInvalidated) error = cudaErrorStreamCaptureInvalidated;
      *id = state == cudaStreamCaptureStatusActive ? number : 0;
      return check(error, "cudaStreamGetCaptureInfo");
    });
  }
  Status synchronize() override {
    return with_device([&] {
      const RelaxedCapture relaxed;
      return check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    });
  }

  Status encode(const EncodeJob& job, Stream stream) override {
    const Status status = check_encode(job);
    if (status != Status::ok) return status;
    if (message_total(job) == 0 && job.outbox == nullptr && job.started_ns == nullptr) return Status::ok;
    return with_device([&] { return check(cuda::launch_encode(job, stream), "encode kernel"); });
  }
  Status decode(const DecodeJob& job, Stream stream) override {
    const Status status = validate(job, sizeof(Bf16Traits::Value));
    if (status != Status::ok || message_total(job) == 0) return status;
    return with_device([&] { return check(cuda::launch_decode(job, stream), "decode kernel"); });
  }
  Status receive(const ReceiveJob& job, Stream stream) override {
    const Status status = validate(job, sizeof(Bf16Traits::Value));
    if (status != Status::ok) return status;
    return with_device([&] { return check(cuda::launch_receive(job, stream), "receive kernel"); });
  }
  Status encode_and_receive(const EncodeJob& encode, const ReceiveJob& receive, Stream stream) override {
    Status status = check_encode(encode);
    if (status == Status::ok) status = validate(receive, sizeof(Bf16Traits::Value));
    if (status != Status::ok) return status;
    return with_device(
        [&] { return check(cuda::launch_encode_and_receive(encode, receive, stream), "encode and receive kernel"); });
  }
  Status observe(const ObserveJob& job, Stream stream) override {
    const Status status = validate(job, sizeof(Bf16Traits::Value));
    if (status != Status::ok) return status;
    if (!is_scratch(job.scratch)) return Status::invalid_argument;
    return with_device([&] { return check(cuda::launch_observe(job, stream), "observe kernel"); });
  }
  Status pause(std::uint32_t nanoseconds, Stream stream) override {
    if (nanoseconds > longest_pause_ns) return Status::invalid_argument;
    return with_device([&] { return check(cuda::launch_pause(nanoseconds, word_, stream), "pause"); });
  }

 private:
  template <typename Call>
  Status with_device(Call call) {
    const CurrentContext current(calls_, context_);
    const Status status = current.status();
    return status == Status::ok ? call() : status;
  }

  static Status check_encode(const EncodeJob& job) {
    const Status status = validate(job, sizeof(Bf16Traits::Value));
    if (status == Status::ok && message_total(job) != 0 && !is_scratch(job.scratch)) return Status::invalid_argument;
    return status;
  }

  Status find_context();
  Status create_pool();

  int ordinal_;
  ContextCalls calls_;
  CUcontext context_ = nullptr;  // the device's primary one
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;  // own_stream(): not ordered with anybody's legacy stream
  cudaMemPool_t pool_ = nullptr;   // for allocate_async()
  std::uint32_t* word_ = nullptr;  // for pause(); nobody reads it
};

std::string version_text(int version) {
  return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

std::string explain_driver(cudaError_t error) {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (error == cudaErrorInsufficientDriver || driver == 0) {
    const std::string found =
        driver == 0 ? "no NVIDIA driver was found" : "the NVIDIA driver supports only CUDA " + version_text(driver);
    return found + "; this build of zipccl needs one for CUDA " + version_text(CUDART_VERSION) + " or newer";
  }
  return std::string("CUDA sees no GPU (") + cudaGetErrorString(error) + "); check nvidia-smi and CUDA_VISIBLE_DEVICES";
}

// Initialises the primary context if nobody has, without leaving it current.
Status CudaDevice::find_context() {
  CUcontext former = nullptr;
  if (calls_.get_current(&former) != CUDA_SUCCESS) return check(cudaErrorInitializationError, "cuCtxGetCurrent");
  const Status status = check(cudaSetDevice(ordinal_), "cudaSetDevice");
  if (status != Status::ok) return status;
  cudaFree(nullptr);
  const CUresult found = calls_.get_current(&context_);
  CUcontext popped = nullptr;
  if (calls_.pop_current(&popped) == CUDA_SUCCESS && former != nullptr) calls_.push_current(former);
  return check(found == CUDA_SUCCESS && context_ != nullptr ? cudaSuccess : cudaErrorInitializationError,
               "cuCtxGetCurrent");
}

Status CudaDevice::open(std::string* why) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    *why = explain_driver(error == cudaSuccess ? cudaErrorNoDevice : error);
    return Status::unsupported;
  }
  if (ordinal_ < 0 || ordinal_ >= count) {
    *why = "there is no CUDA device " + std::to_string(ordinal_) + ", only 0 to " + std::to_string(count - 1);
    return Status::invalid_argument;
  }
  Status status = check(cudaGetDeviceProperties(&properties_, ordinal_), "cudaGetDeviceProperties");
  if (status == Status::ok) status = check(calls_.load(), "cudaGetDriverEntryPoint");
  if (status == Status::ok) status = find_context();
  if (status != Status::ok) {
    *why = "CUDA device " + std::to_string(ordinal_) + " cannot be used: " + error_text;
    return status;
  }
  const std::string gpu = std::string(properties_.name) + " (compute capability " + std::to_string(properties_.major) +
                          '.' + std::to_string(properties_.minor) + ')';
  if (properties_.major < least_major) {
    *why = gpu + " is too old; zipccl needs compute capability " + std::to_string(least_major) + ".0 or newer";
    return Status::unsupported;
  }
  const CurrentContext current(calls_, context_);
  const RelaxedCapture relaxed;
  error = cuda::load_encode();
  if (error == cudaSuccess) error = cuda::load_decode();
  if (error == cudaSuccess) error = cuda::load_receive();
  if (error == cudaSuccess) error = cuda::load_encode_and_receive();
  if (error == cudaSuccess) error = cuda::load_observe();
  if (error == cudaSuccess) error = cuda::load_pause();
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    *why = "this build has no kernels for " + gpu +
           "; build zipccl with -Dgpu_archs=" + std::to_string(properties_.major) + '.' +
           std::to_string(properties_.minor);
    return Status::unsupported;
  }
  status = check(error, "loading kernels");
  if (status == Status::ok) {
    status = check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  if (status == Status::ok) status = check(cudaMalloc(&word_, sizeof(*word_)), "cudaMalloc");
  if (status == Status::ok) status = create_pool();
  if (status != Status::ok) *why = gpu + " cannot be used: " + error_text;
  return status;
}

Status CudaDevice::create_pool() {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = ordinal_;
  const cudaError_t error = cudaMemPoolCreate(&pool_, &properties);
  if (error == cudaSuccess) {
    if (Pools::all().add(ordinal_, pool_) == cudaSuccess) return Status::ok;
    cudaMemPoolDestroy(pool_);
  } else if (error != cudaErrorNotSupported) {
    return check(error, "cudaMemPoolCreate");
  }
  cudaGetLastError();  // some virtual GPUs have no pools, or none for other GPUs: allocate() then serves
  pool_ = nullptr;
  return Status::ok;
}

}  // namespace

Status make_cuda_device(int ordinal, std::unique_ptr<Device>* device, std::string* why) {
  try {
    auto made = std::make_unique<CudaDevice>(ordinal);
    const Status status = made->open(why);
    if (status == Status::ok) *device = std::move(made);
    return status;
  } catch (const std::exception&) {  // allocation of the object or of the text failed
    return Status::out_of_memory;
  }
}

}  // namespace zipccl::codec
