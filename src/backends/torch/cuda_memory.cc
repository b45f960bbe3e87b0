// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/cuda_memory.h"

#include <dlfcn.h>

#include <cstddef>

#include "base/check.h"

namespace quire::torch_sdpa {
namespace {

// As cuda_runtime_api.h has them; the numbers are part of its binary interface.
constexpr int kSuccess = 0;
constexpr int kHostToDevice = 1;
constexpr int kDeviceToHost = 2;
constexpr unsigned kPortableMapped = 0x01 | 0x02;
constexpr unsigned kNonBlocking = 0x01;

// The functions of the runtime that libtorch_cuda brings.
class Runtime {
 public:
  Runtime() : library_(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD)) {
    if (library_ == nullptr) fail(ErrorCode::kUnsupported, "torch's CUDA library is not loaded");
    find(get_device, "cudaGetDevice");
    find(malloc, "cudaMalloc");
    find(free, "cudaFree");
    find(host_alloc, "cudaHostAlloc");
    find(free_host, "cudaFreeHost");
    find(copy, "cudaMemcpyAsync");
    find(fill, "cudaMemsetAsync");
    find(stream_create, "cudaStreamCreateWithFlags");
    find(stream_destroy, "cudaStreamDestroy");
    find(stream_synchronize, "cudaStreamSynchronize");
    find(last_error, "cudaGetLastError");
    find(error_string, "cudaGetErrorString");
  }
  ~Runtime() { dlclose(library_); }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

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

  int (*get_device)(int*) = nullptr;
  int (*malloc)(void**, std::size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*host_alloc)(void**, std::size_t, unsigned) = nullptr;
  int (*free_host)(void*) = nullptr;
  int (*copy)(void*, const void*, std::size_t, int, void*) = nullptr;
  int (*fill)(void*, int, std::size_t, void*) = nullptr;
  int (*stream_create)(void**, unsigned) = nullptr;
  int (*stream_destroy)(void*) = nullptr;
  int (*stream_synchronize)(void*) = nullptr;
  int (*last_error)() = nullptr;
  const char* (*error_string)(int) = nullptr;

 private:
  template <class F>
  void find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library_, name));
    if (function == nullptr) {
      fail(ErrorCode::kUnsupported, "the CUDA runtime of torch has no ", name);
    }
  }

  void* library_;
};

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory() {
    int index = 0;
    runtime_.check(runtime_.get_device(&index), "current device");
    device_ = {DeviceKind::kCuda, index};
  }

  Device device() const noexcept override { return device_; }

  void* allocate(std::int64_t size_bytes, PageHint) override {
    void* data = nullptr;
    runtime_.check_memory(runtime_.malloc(&data, static_cast<std::size_t>(size_bytes)), size_bytes,
                          "device memory");
    return data;
  }
  void free(void* data) noexcept override { (void)runtime_.free(data); }
  void* allocate_host(std::int64_t size_bytes) override {
    void* data = nullptr;
    runtime_.check_memory(
        runtime_.host_alloc(&data, static_cast<std::size_t>(size_bytes), kPortableMapped),
        size_bytes, "pinned host memory");
    return data;
  }
  void free_host(void* data) noexcept override { (void)runtime_.free_host(data); }

  void copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                      Stream stream) override {
    runtime_.check(runtime_.copy(device, host, static_cast<std::size_t>(size_bytes), kHostToDevice,
                                 stream.handle),
                   "copy to the device");
  }
  void copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                    Stream stream) override {
    runtime_.check(runtime_.copy(host, device, static_cast<std::size_t>(size_bytes), kDeviceToHost,
                                 stream.handle),
                   "copy to the host");
  }
  void fill(void* device, unsigned char byte, std::int64_t size_bytes, Stream stream) override {
    runtime_.check(runtime_.fill(device, byte, static_cast<std::size_t>(size_bytes), stream.handle),
                   "fill");
  }
  Stream create_stream() override {
    void* stream = nullptr;
    runtime_.check(runtime_.stream_create(&stream, kNonBlocking), "create a stream");
    return {stream};
  }
  void destroy_stream(Stream stream) noexcept override {
    (void)runtime_.stream_destroy(stream.handle);
  }
  void synchronize(Stream stream) override {
    runtime_.check(runtime_.stream_synchronize(stream.handle), "work on a stream");
  }

 private:
  Runtime runtime_;
  Device device_;
};

}  // namespace

std::unique_ptr<DeviceMemory> make_cuda_memory() {
  return std::make_unique<CudaMemory>();
}

}  // namespace quire::torch_sdpa
