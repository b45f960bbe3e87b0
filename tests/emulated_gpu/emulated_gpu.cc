// SPDX-License-Identifier: Apache-2.0
#include "emulated_gpu/emulated_gpu.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/check.h"
#include "emulated_gpu/emulated_kernels.h"
#include "gpu/emulator/launch.h"

namespace quire::testing {
namespace {

// Host memory that kernels may touch, and nothing beside it.
class EmulatedMemory final : public DeviceMemory {
 public:
  Device device() const noexcept override { return {.kind = DeviceKind::kCustom, .index = 0}; }

  void* allocate(std::int64_t size_bytes, PageHint) override {
    return allocate_named(size_bytes, "device memory");
  }
  void free(void* data) noexcept override {
    const std::lock_guard lock(mutex_);
    buffers_.erase(data);
    ::operator delete (data, std::align_val_t{kAlignment});
  }
  void* allocate_host(std::int64_t size_bytes) override {
    return allocate_named(size_bytes, "pinned host memory");
  }
  void free_host(void* data) noexcept override { free(data); }

  void copy_to_device(void* device, const void* host, std::int64_t size_bytes, Stream) override {
    std::memcpy(device, host, static_cast<std::size_t>(size_bytes));
  }
  void copy_to_host(void* host, const void* device, std::int64_t size_bytes, Stream) override {
    std::memcpy(host, device, static_cast<std::size_t>(size_bytes));
  }
  void fill(void* device, unsigned char byte, std::int64_t size_bytes, Stream) override {
    std::memset(device, byte, static_cast<std::size_t>(size_bytes));
  }
  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {}

  bool owns(const void* data) {
    const std::lock_guard lock(mutex_);
    auto after = buffers_.upper_bound(const_cast<void*>(data));
    if (after == buffers_.begin()) return false;
    --after;
    return static_cast<const char*>(data) < static_cast<char*>(after->first) + after->second.size;
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  struct Buffer {
    std::int64_t size;
    std::unique_ptr<simt::GlobalBuffer> registered;
  };

  void* allocate_named(std::int64_t size_bytes, const char* name) {
    const auto size = static_cast<std::size_t>(size_bytes > 0 ? size_bytes : 1);
    void* data = ::operator new (size, std::align_val_t{kAlignment});
    const std::lock_guard lock(mutex_);
    buffers_.emplace(data, Buffer{static_cast<std::int64_t>(size),
                                  std::make_unique<simt::GlobalBuffer>(data, size, name,
                                                                       simt::Access::kReadWrite)});
    return data;
  }

  std::mutex mutex_;
  std::map<void*, Buffer> buffers_;
};

// What a device records once is done again here: calls are over when they return.
class EmulatedRecording final : public DeviceRecording {
 public:
  explicit EmulatedRecording(std::function<void()> enqueue) : enqueue_(std::move(enqueue)) {}
  void replay(Stream) override { enqueue_(); }

 private:
  std::function<void()> enqueue_;
};

class EmulatedRuntime final : public gpu::GpuRuntime {
 public:
  explicit EmulatedRuntime(const EmulatedGpuOptions& options) : options_(options) {}

  DeviceMemory& memory() override { return memory_; }
  std::string version() const override { return "emulator"; }
  std::string architecture() const override {
    return "warps of " + std::to_string(options_.warp_width);
  }
  int num_processors() const override { return options_.num_processors; }
  std::int64_t cache_bytes() const override { return 1 << 16; }
  bool fits(const gpu::KernelId& kernel) override {
    return emulated_shared_bytes(kernel) <= options_.shared_bytes;
  }
  int blocks_per_processor(const gpu::KernelId&) override { return 2; }
  bool overlaps_grids() const override { return true; }
  void launch(const gpu::KernelId& kernel, int num_blocks, const void* args, Stream) override {
    require(fits(kernel), "a kernel needs ", emulated_shared_bytes(kernel),
            " bytes of shared memory, a block has ", options_.shared_bytes);
    launch_emulated(
        kernel,
        {.num_blocks = num_blocks, .warp_width = options_.warp_width, .seed = options_.seed}, args);
  }
  bool is_reachable(const void* data) override { return memory_.owns(data); }
  bool is_capturing(Stream) override { return false; }
  // Nothing is ever under way; a fence with a time holds that of its last record.
  void* create_fence() override { return nullptr; }
  void destroy_fence(void* fence) noexcept override { delete static_cast<Time*>(fence); }
  void record_fence(void* fence, Stream) override {
    if (fence != nullptr) *static_cast<Time*>(fence) = std::chrono::steady_clock::now();
  }
  void wait_fence(void*) override {}
  void* create_timed_fence() override { return new Time(); }
  double seconds_between(void* first, void* last) override {
    const auto seconds = *static_cast<Time*>(last) - *static_cast<Time*>(first);
    return std::chrono::duration<double>(seconds).count();
  }
  std::unique_ptr<DeviceRecording> record(std::function<void()> enqueue, Stream) override {
    return std::make_unique<EmulatedRecording>(std::move(enqueue));
  }
  DeviceFacts facts() const override {
    return {.name = "emulated GPU",
            .architecture = architecture(),
            .version = version(),
            .num_processors = options_.num_processors,
            .cache_bytes = 4096,
            .memory_bytes = kMemoryBytes};
  }
  std::int64_t free_memory_bytes() override { return kMemoryBytes; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::int64_t kMemoryBytes = std::int64_t{1} << 30;

  EmulatedGpuOptions options_;
  EmulatedMemory memory_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_emulated_gpu(const EmulatedGpuOptions& options) {
  return gpu::make_gpu_backend(std::make_unique<EmulatedRuntime>(options),
                               {.name = "emulated_gpu", .check_blocks = options.check_blocks});
}

std::unique_ptr<DeviceMeter> make_emulated_meter(const EmulatedGpuOptions& options) {
  return gpu::make_gpu_meter(std::make_unique<EmulatedRuntime>(options),
                             {.memory_bytes = 80 * 1024, .link_bytes = 4096, .multiply_steps = 2});
}

}  // namespace quire::testing
