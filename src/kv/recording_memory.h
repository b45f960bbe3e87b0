// SPDX-License-Identifier: Apache-2.0
// For tests: a device whose memory lies on the host, that counts what is asked of it and can be
// told to fail.
#pragma once

#include <cstdint>
#include <set>

#include "base/check.h"
#include "base/host_memory.h"
#include "quire/device.h"

namespace quire {

class RecordingMemory final : public DeviceMemory {
 public:
  Device device() const noexcept override { return {DeviceKind::kCustom, 3}; }

  void* allocate(std::int64_t size_bytes, PageHint hint) override {
    last_hint = hint;
    return record(device_live, size_bytes, fail_device);
  }
  void free(void* data) noexcept override { release(device_live, data); }
  void* allocate_host(std::int64_t size_bytes) override {
    return record(host_live, size_bytes, fail_host);
  }
  void free_host(void* data) noexcept override { release(host_live, data); }

  void copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                      Stream stream) override {
    if (fail_copy) fail(ErrorCode::kDevice, "copy failed");
    ++num_pending;
    host_memory().copy_to_device(device, host, size_bytes, stream);
  }
  void copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                    Stream stream) override {
    host_memory().copy_to_host(host, device, size_bytes, stream);
  }
  void fill(void* device, unsigned char byte, std::int64_t size_bytes, Stream stream) override {
    host_memory().fill(device, byte, size_bytes, stream);
  }
  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override { num_pending = 0; }

  std::set<void*> device_live;
  std::set<void*> host_live;
  std::int64_t last_bytes = -1;
  int num_bad_frees = 0;  // of what is not live, or of the other kind
  int num_pending = 0;    // copies not yet waited for
  PageHint last_hint = PageHint::kDefault;
  bool fail_device = false;
  bool fail_host = false;
  bool fail_copy = false;

 private:
  void* record(std::set<void*>& live, std::int64_t size_bytes, bool should_fail) {
    if (should_fail) fail(ErrorCode::kOutOfMemory, "no memory, bytes: ", size_bytes);
    last_bytes = size_bytes;
    void* data = host_memory().allocate(size_bytes);
    live.insert(data);
    return data;
  }
  void release(std::set<void*>& live, void* data) noexcept {
    if (live.erase(data) == 0) {
      ++num_bad_frees;
      return;
    }
    host_memory().free(data);
  }
};

}  // namespace quire
