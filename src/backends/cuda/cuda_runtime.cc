// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_runtime.h"

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "backends/cuda/cuda_kernels.h"
#include "base/check.h"

namespace quire::gpu {
namespace {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();  // it would come back from the next call otherwise
  const ErrorCode code =
      result == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  fail(code, "CUDA: ", what, ": ", cudaGetErrorString(result), " (", cudaGetErrorName(result), ")");
}

cudaStream_t native(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

// The current device belongs to a thread; default streams, new memory and launches to it. Calls
// come from any thread, and leave it on the device that it was on.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) noexcept {
    if (cudaGetDevice(&before_) != cudaSuccess || before_ == index) return;
    changed_ = cudaSetDevice(index) == cudaSuccess;
  }
  ~CurrentDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(int index) : device_{DeviceKind::kCuda, index} {}

  Device device() const noexcept override { return device_; }

  void* allocate(std::int64_t size_bytes, PageHint) override {
    const CurrentDevice current(device_.index);
    void* data = nullptr;
    const cudaError_t result = cudaMalloc(&data, static_cast<std::size_t>(size_bytes));
    if (result != cudaSuccess) {
      (void)cudaGetLastError();
      fail(ErrorCode::kOutOfMemory, "CUDA: no ", size_bytes,
           " bytes of device memory: ", cudaGetErrorString(result));
    }
    return data;
  }
  void free(void* data) noexcept override {
    const CurrentDevice current(device_.index);
    (void)cudaFree(data);
  }
  void* allocate_host(std::int64_t size_bytes) override {
    const CurrentDevice current(device_.index);
    void* data = nullptr;
    const cudaError_t result = cudaHostAlloc(&data, static_cast<std::size_t>(size_bytes),
                                             cudaHostAllocPortable | cudaHostAllocMapped);
    if (result != cudaSuccess) {
      (void)cudaGetLastError();
      fail(ErrorCode::kOutOfMemory, "CUDA: no ", size_bytes,
           " bytes of pinned host memory: ", cudaGetErrorString(result));
    }
    return data;
  }
  void free_host(void* data) noexcept override { (void)cudaFreeHost(data); }

  void copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                      Stream stream) override {
    const CurrentDevice current(device_.index);
    check(cudaMemcpyAsync(device, host, static_cast<std::size_t>(size_bytes),
                          cudaMemcpyHostToDevice, native(stream)),
          "copy to the device");
  }
  void copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                    Stream stream) override {
    const CurrentDevice current(device_.index);
    check(cudaMemcpyAsync(host, device, static_cast<std::size_t>(size_bytes),
                          cudaMemcpyDeviceToHost, native(stream)),
          "copy to the host");
  }
  void fill(void* device, unsigned char byte, std::int64_t size_bytes, Stream stream) override {
    const CurrentDevice current(device_.index);
    check(cudaMemsetAsync(device, byte, static_cast<std::size_t>(size_bytes), native(stream)),
          "fill");
  }
  Stream create_stream() override {
    const CurrentDevice current(device_.index);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
    return {stream};
  }
  void destroy_stream(Stream stream) noexcept override { (void)cudaStreamDestroy(native(stream)); }
  void synchronize(Stream stream) override {
    const CurrentDevice current(device_.index);
    check(cudaStreamSynchronize(native(stream)), "work on a stream");
  }

 private:
  Device device_;
};

class CudaGraph final : public DeviceRecording {
 public:
  // REQUIRES: the stream is capturing.
  explicit CudaGraph(Stream stream) {
    check(cudaStreamEndCapture(native(stream), &graph_), "end of a capture");
    const cudaError_t result = cudaGraphInstantiate(&executable_, graph_, 0);
    if (result == cudaSuccess) return;
    (void)cudaGraphDestroy(graph_);
    check(result, "instantiate a graph");
  }
  ~CudaGraph() override {
    (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void replay(Stream stream) override {
    check(cudaGraphLaunch(executable_, native(stream)), "launch a graph");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

class CudaRuntime final : public GpuRuntime {
 public:
  CudaRuntime() : index_(current_device()), memory_(index_) {
    check(cudaGetDeviceProperties(&properties_, index_), "properties of the device");
    cudaFuncAttributes attributes{};
    const KernelId any{.kind = KernelKind::kPlanItems};
    const std::string what = concat("load the kernels, which this build has for ",
                                    QUIRE_CUDA_ARCHITECTURES, ", on ", architecture());
    check(cudaFuncGetAttributes(&attributes, cuda_kernel(any).function), what.c_str());
    // What this device runs may have been compiled for an older one, which has none of it.
    overlaps_ = attributes.ptxVersion >= 90;
  }

  DeviceMemory& memory() override { return memory_; }
  std::string version() const override { return version_text(); }
  std::string architecture() const override {
    return concat("sm_", properties_.major, properties_.minor);
  }
  int num_processors() const override { return properties_.multiProcessorCount; }
  std::int64_t cache_bytes() const override { return properties_.l2CacheSize; }

  // Parts of compute capability 8.6, 8.9 and 12.0 have less shared memory than 8.0 and 9.0.
  bool fits(const KernelId& id) override {
    return static_cast<std::size_t>(cuda_kernel(id).shared_bytes) <=
           properties_.sharedMemPerBlockOptin;
  }
  int blocks_per_processor(const KernelId& id) override {
    const CurrentDevice current(index_);
    return instance(id).resident;
  }

  bool overlaps_grids() const override { return overlaps_; }

  void launch(const KernelId& id, int num_blocks, const void* args, Stream stream) override {
    const CurrentDevice current(index_);
    const Instance& kernel = instance(id);
    void* arguments[] = {const_cast<void*>(args)};
    cudaLaunchAttribute overlap{};  // with the end of the last grid (cuda_entry.h)
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(num_blocks));
    config.blockDim = dim3(static_cast<unsigned>(kernel.kernel.num_threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(kernel.kernel.shared_bytes);
    config.stream = native(stream);
    config.attrs = &overlap;
    config.numAttrs = overlaps_ ? 1 : 0;
    check(cudaLaunchKernelExC(&config, kernel.kernel.function, arguments), "launch");
  }

  bool is_reachable(const void* data) override {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    return attributes.type != cudaMemoryTypeUnregistered;
  }
  bool is_capturing(Stream stream) override {
    const CurrentDevice current(index_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(native(stream), &status), "state of a stream");
    return status != cudaStreamCaptureStatusNone;
  }

  void* create_fence() override {
    const CurrentDevice current(index_);
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event");
    return event;
  }
  void destroy_fence(void* fence) noexcept override {
    (void)cudaEventDestroy(static_cast<cudaEvent_t>(fence));
  }
  void record_fence(void* fence, Stream stream) override {
    const CurrentDevice current(index_);
    check(cudaEventRecord(static_cast<cudaEvent_t>(fence), native(stream)), "record an event");
  }
  void wait_fence(void* fence) override {
    check(cudaEventSynchronize(static_cast<cudaEvent_t>(fence)), "work before an event");
  }

  void* create_timed_fence() override {
    const CurrentDevice current(index_);
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "create an event");
    return event;
  }
  double seconds_between(void* first, void* last) override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(first),
                               static_cast<cudaEvent_t>(last)),
          "time between events");
    return 1e-3 * static_cast<double>(milliseconds);
  }
  std::unique_ptr<DeviceRecording> record(std::function<void()> enqueue, Stream stream) override {
    const CurrentDevice current(index_);
    check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
          "begin of a capture");
    try {
      enqueue();
    } catch (...) {
      cudaGraph_t rest = nullptr;
      (void)cudaStreamEndCapture(native(stream), &rest);
      if (rest != nullptr) (void)cudaGraphDestroy(rest);
      (void)cudaGetLastError();
      throw;
    }
    return std::make_unique<CudaGraph>(stream);
  }
  DeviceFacts facts() const override {
    return {.name = properties_.name,
            .architecture = architecture(),
            .version = version_text(),
            .num_processors = properties_.multiProcessorCount,
            .cache_bytes = properties_.l2CacheSize,
            .memory_bytes = static_cast<std::int64_t>(properties_.totalGlobalMem)};
  }
  std::int64_t free_memory_bytes() override {
    const CurrentDevice current(index_);
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "free memory");
    return static_cast<std::int64_t>(free);
  }

  static std::string version_text() {
    int driver = 0;
    check(cudaDriverGetVersion(&driver), "version of the driver");
    return concat("CUDA ", driver / 1000, ".", driver % 1000 / 10);
  }

 private:
  struct Instance {
    CudaKernel kernel;
    int resident = 1;
  };

  static int current_device() {
    int index = 0;
    check(cudaGetDevice(&index), "current device");
    return index;
  }

  // Made ready when it is first used. REQUIRES: the device is the current one.
  const Instance& instance(const KernelId& id) {
    const int key = (static_cast<int>(id.kind) * 16 + static_cast<int>(id.stored)) * 1024 + id.dims;
    const std::lock_guard lock(mutex_);
    const auto found = instances_.find(key);
    if (found != instances_.end()) return found->second;
    Instance made{.kernel = cuda_kernel(id)};
    if (made.kernel.shared_bytes > 48 * 1024) {
      check(cudaFuncSetAttribute(made.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 made.kernel.shared_bytes),
            "shared memory of a kernel");
    }
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
              &made.resident, made.kernel.function, made.kernel.num_threads,
              static_cast<std::size_t>(made.kernel.shared_bytes)),
          "occupancy of a kernel");
    require(made.resident > 0,
            "a kernel needs more than this device has: ", made.kernel.shared_bytes,
            " bytes of shared memory");
    return instances_.emplace(key, made).first->second;
  }

  int index_;
  CudaMemory memory_;
  bool overlaps_ = false;  // grids of which the kernels know when others have ended
  cudaDeviceProp properties_{};
  std::mutex mutex_;
  std::map<int, Instance> instances_;
};

}  // namespace

Availability probe_cuda() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) {
    (void)cudaGetLastError();
    return {.available = false,
            .version = "",
            .reasons = {concat("CUDA: ", cudaGetErrorString(result))}};
  }
  if (count == 0) return {.available = false, .version = "", .reasons = {"no CUDA device"}};
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "capability");
  if (major < 8) {
    return {
        .available = false,
        .version = "",
        .reasons = {concat("needs compute capability 8.0, the device has ", major, ".", minor)}};
  }
  return {.available = true, .version = CudaRuntime::version_text(), .reasons = {}};
}

std::unique_ptr<GpuRuntime> make_cuda_runtime() {
  return std::make_unique<CudaRuntime>();
}

}  // namespace quire::gpu
