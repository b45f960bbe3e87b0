// SPDX-License-Identifier: Apache-2.0
// Small lists on their way to kernels that belong to no prepared batch: copies of blocks, partial
// results. A few slots of pinned host memory with a twin on the device each; a slot is used again
// when the kernel that read it is done.
//
// Thread safety: slots may be acquired from any thread; a slot belongs to one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "backends/gpu/gpu_runtime.h"
#include "base/check.h"

namespace quire::gpu {

class StagingRing {
 public:
  static constexpr std::int64_t kSlotBytes = 256 * 1024;
  static constexpr int kNumSlots = 4;

  explicit StagingRing(GpuRuntime& runtime) : runtime_(runtime) {
    host_ = static_cast<char*>(runtime.memory().allocate_host(kNumSlots * kSlotBytes));
    device_ = static_cast<char*>(runtime.memory().allocate(kNumSlots * kSlotBytes));
    for (void*& fence : fences_) fence = runtime.create_fence();
  }
  ~StagingRing() {
    for (void* fence : fences_) {
      runtime_.wait_fence(fence);
      runtime_.destroy_fence(fence);
    }
    runtime_.memory().free(device_);
    runtime_.memory().free_host(host_);
  }
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  class Slot {
   public:
    // Room for more elements of T.
    template <class T>
    std::size_t room() const {
      return static_cast<std::size_t>(kSlotBytes - used_) / sizeof(T);
    }
    // A copy of an array; returns where it will lie on the device.
    template <class T>
    const T* put(const T* data, std::size_t count) const {
      require(count <= room<T>(), "a list of ", count, " entries does not fit the staging of ",
              kSlotBytes, " bytes");
      const std::int64_t begin = used_;
      std::memcpy(host_ + begin, data, count * sizeof(T));
      used_ += static_cast<std::int64_t>((count * sizeof(T) + 63) / 64 * 64);
      return reinterpret_cast<const T*>(device_ + begin);
    }
    void upload(Stream stream) const {
      ring_->runtime_.memory().copy_to_device(device_, host_, used_, stream);
    }
    // After the launch that reads it.
    void release(Stream stream) const { ring_->runtime_.record_fence(fence_, stream); }

   private:
    friend class StagingRing;
    StagingRing* ring_ = nullptr;
    char* host_ = nullptr;
    char* device_ = nullptr;
    void* fence_ = nullptr;
    mutable std::int64_t used_ = 0;
    std::unique_lock<std::mutex> lock_;
  };

  Slot acquire(Stream stream) {
    if (runtime_.is_capturing(stream)) {
      fail(ErrorCode::kUnsupported,
           "long lists of copies of blocks and of partial results are uploaded from the host: a "
           "graph cannot capture them");
    }
    Slot slot;
    slot.lock_ = std::unique_lock(mutex_);
    const std::size_t index = next_++ % kNumSlots;
    slot.ring_ = this;
    slot.host_ = host_ + static_cast<std::int64_t>(index) * kSlotBytes;
    slot.device_ = device_ + static_cast<std::int64_t>(index) * kSlotBytes;
    slot.fence_ = fences_[index];
    runtime_.wait_fence(slot.fence_);
    return slot;
  }

 private:
  GpuRuntime& runtime_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  char* host_ = nullptr;
  char* device_ = nullptr;
  std::array<void*, kNumSlots> fences_{};
};

}  // namespace quire::gpu
