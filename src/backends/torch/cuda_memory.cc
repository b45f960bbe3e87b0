// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/cuda_memory.h"

#include <dlfcn.h>

#include <cstddef>

#include "base/check.h"

namespace quire::torch_sdpa {
namespace {

// As cuda_runtime_api.h has them; the numbers are part of its binary interface.
constexpr int kSuccess = 0;
constexpr int kNotReady = 600;
constexpr int kCaptureImplicit = 906;  // another stream that the default one waits for is recorded
constexpr int kHostToDevice = 1;
constexpr int kDeviceToHost = 2;
constexpr unsigned kPortableMapped = 0x01 | 0x02;
constexpr unsigned kNonBlocking = 0x01;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
// Below it torch has neither its flash attention nor products of bf16.
constexpr int kMinCapabilityMajor = 8;

// The functions of the runtime that libtorch_cuda brings.
class Runtime {
 public:
  explicit Runtime(const char* library) : library_(dlopen(library, RTLD_NOW | RTLD_NOLOAD)) {
    if (!library_) fail(ErrorCode::kUnsupported, library, ", torch's CUDA library, is not loaded");
    find(device_count, "cudaGetDeviceCount");
    find(device_attribute, "cudaDeviceGetAttribute");
    find(get_device, "cudaGetDevice");
    find(set_device, "cudaSetDevice");
    find(malloc, "cudaMalloc");
    find(free, "cudaFree");
    find(host_alloc, "cudaHostAlloc");
    find(free_host, "cudaFreeHost");
    find(copy, "cudaMemcpyAsync");
    find(fill, "cudaMemsetAsync");
    find(stream_create, "cudaStreamCreateWithFlags");
    find(stream_destroy, "cudaStreamDestroy");
    find(stream_synchronize, "cudaStreamSynchronize");
    find(stream_query, "cudaStreamQuery");
    find(stream_is_capturing, "cudaStreamIsCapturing");
    find(last_error, "cudaGetLastError");
    find(error_string, "cudaGetErrorString");
  }
  void check(int result, const char* what) const {
    if (result == kSuccess) return;
    (void)last_error();  // it would come back from the next call otherwise
    fail(ErrorCode::kDevice, "CUDA: ", what, ": ", error_string(result));
  }
  void check_memory(int result, std::int64_t size_bytes, const char* which) const {
    if (result == kSuccess) return;
    (void)last_error();
    fail(ErrorCode::kOutOfMemory, "CUDA: no ", size_bytes, " bytes of ", which, ": ",
         error_string(result));
  }

  int current_device() const {
    int index = 0;
    check(get_device(&index), "current device");
    return index;
  }

  int (*device_count)(int*) = nullptr;
  int (*device_attribute)(int*, int, int) = nullptr;
  int (*get_device)(int*) = nullptr;
  int (*set_device)(int) = nullptr;
  int (*malloc)(void**, std::size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*host_alloc)(void**, std::size_t, unsigned) = nullptr;
  int (*free_host)(void*) = nullptr;
  int (*copy)(void*, const void*, std::size_t, int, void*) = nullptr;
  int (*fill)(void*, int, std::size_t, void*) = nullptr;
  int (*stream_create)(void**, unsigned) = nullptr;
  int (*stream_destroy)(void*) = nullptr;
  int (*stream_synchronize)(void*) = nullptr;
  int (*stream_query)(void*) = nullptr;
  int (*stream_is_capturing)(void*, int*) = nullptr;
  int (*last_error)() = nullptr;
  const char* (*error_string)(int) = nullptr;

 private:
  template <class F>
  void find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library_.get(), name));
    if (function == nullptr) {
      fail(ErrorCode::kUnsupported, "the CUDA runtime of torch has no ", name);
    }
  }

  struct Close {
    void operator()(void* library) const noexcept { dlclose(library); }
  };

  std::unique_ptr<void, Close> library_;
};

// The current device belongs to a thread, and default streams and new memory to it.
class CurrentDevice {
 public:
  CurrentDevice(const Runtime& runtime, int index) noexcept : runtime_(runtime) {
    if (runtime_.get_device(&before_) != kSuccess || before_ == index) return;
    changed_ = runtime_.set_device(index) == kSuccess;
  }
  ~CurrentDevice() {
    if (changed_) (void)runtime_.set_device(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const Runtime& runtime_;
  int before_ = 0;
  bool changed_ = false;
};

class CudaMemory final : public PolledMemory {
 public:
  explicit CudaMemory(const char* library)
      : runtime_(library), device_{DeviceKind::kCuda, runtime_.current_device()} {}

  Device device() const noexcept override { return device_; }

  void* allocate(std::int64_t size_bytes, PageHint) override {
    const CurrentDevice current = enter();
    void* data = nullptr;
    runtime_.check_memory(runtime_.malloc(&data, static_cast<std::size_t>(size_bytes)), size_bytes,
                          "device memory");
    return data;
  }
  void free(void* data) noexcept override {
    const CurrentDevice current = enter();
    (void)runtime_.free(data);
  }
  void* allocate_host(std::int64_t size_bytes) override {
    const CurrentDevice current = enter();
    void* data = nullptr;
    runtime_.check_memory(
        runtime_.host_alloc(&data, static_cast<std::size_t>(size_bytes), kPortableMapped),
        size_bytes, "pinned host memory");
    return data;
  }
  void free_host(void* data) noexcept override {
    const CurrentDevice current = enter();
    (void)runtime_.free_host(data);
  }

  void copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                      Stream stream) override {
    const CurrentDevice current = enter();
    runtime_.check(runtime_.copy(device, host, static_cast<std::size_t>(size_bytes), kHostToDevice,
                                 stream.handle),
                   "copy to the device");
  }
  void copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                    Stream stream) override {
    const CurrentDevice current = enter();
    runtime_.check(runtime_.copy(host, device, static_cast<std::size_t>(size_bytes), kDeviceToHost,
                                 stream.handle),
                   "copy to the host");
  }
  void fill(void* device, unsigned char byte, std::int64_t size_bytes, Stream stream) override {
    const CurrentDevice current = enter();
    runtime_.check(runtime_.fill(device, byte, static_cast<std::size_t>(size_bytes), stream.handle),
                   "fill");
  }
  Stream create_stream() override {
    const CurrentDevice current = enter();
    void* stream = nullptr;
    runtime_.check(runtime_.stream_create(&stream, kNonBlocking), "create a stream");
    return {stream};
  }
  void destroy_stream(Stream stream) noexcept override {
    const CurrentDevice current = enter();
    (void)runtime_.stream_destroy(stream.handle);
  }
  void synchronize(Stream stream) override {
    const CurrentDevice current = enter();
    runtime_.check(runtime_.stream_synchronize(stream.handle), "work on a stream");
  }

  Status poll(Stream stream) override {
    const CurrentDevice current = enter();
    int capture = 0;
    int result = runtime_.stream_is_capturing(stream.handle, &capture);
    if (result == kCaptureImplicit || capture != 0) {
      (void)runtime_.last_error();
      return {};  // nothing has run yet, and a query would end the recording
    }
    if (result == kSuccess) result = runtime_.stream_query(stream.handle);
    if (result == kSuccess) return {};
    (void)runtime_.last_error();  // that a stream is busy is kept as an error too
    if (result == kNotReady) return {};
    return {ErrorCode::kDevice, concat("CUDA: work on a stream: ", runtime_.error_string(result))};
  }

 private:
  CurrentDevice enter() const noexcept { return {runtime_, device_.index}; }

  Runtime runtime_;
  Device device_;
};

}  // namespace

std::string missing_in_cuda_runtime(const char* library) {
  try {
    const Runtime runtime(library);
    int count = 0;
    runtime.check(runtime.device_count(&count), "number of devices");
    if (count == 0) return "the CUDA runtime of torch finds no device";
    const int index = runtime.current_device();
    int major = 0;
    int minor = 0;
    runtime.check(runtime.device_attribute(&major, kCapabilityMajor, index), "capability");
    runtime.check(runtime.device_attribute(&minor, kCapabilityMinor, index), "capability");
    if (major >= kMinCapabilityMajor) return {};
    return concat("torch's flash attention and bf16 need compute capability ", kMinCapabilityMajor,
                  ".0, device ", index, " has ", major, ".", minor);
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<PolledMemory> make_cuda_memory(const char* library) {
  return std::make_unique<CudaMemory>(library);
}

}  // namespace quire::torch_sdpa
