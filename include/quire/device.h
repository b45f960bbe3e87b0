// SPDX-License-Identifier: Apache-2.0
// Where memory lies, the order in which work on it runs, and how a backend hands memory out.
#pragma once

#include <cstdint>

#include "quire/export.h"

namespace quire {

enum class DeviceKind : std::uint8_t {
  kHost,
  kCuda,
  kRocm,
  kCustom,  // a device of a backend outside this repository
};

QUIRE_API const char* device_kind_name(DeviceKind kind) noexcept;

struct Device {
  DeviceKind kind = DeviceKind::kHost;
  int index = 0;

  bool is_host() const noexcept { return kind == DeviceKind::kHost; }
  friend bool operator==(const Device&, const Device&) = default;
};

// An opaque queue of a device (a cudaStream_t, a hipStream_t). Work on one stream runs in order.
// Host backends take only the default one and have finished when a call returns.
struct Stream {
  void* handle = nullptr;
  friend bool operator==(const Stream&, const Stream&) = default;
};

// Huge pages where the system offers them: fewer TLB misses on large caches. Only a hint.
enum class PageHint : std::uint8_t { kDefault, kHuge };

// The memory of one device. All calls may be made from any thread.
class QUIRE_API DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual Device device() const noexcept = 0;

  // At least 64-byte aligned, uninitialised; throws Error(kOutOfMemory) that names the bytes.
  // Large host memory is reserved and takes pages only when touched.
  virtual void* allocate(std::int64_t size_bytes, PageHint hint = PageHint::kDefault) = 0;
  virtual void free(void* data) noexcept = 0;

  // Host memory that copies to and from the device run fastest with (pinned where that exists).
  virtual void* allocate_host(std::int64_t size_bytes) = 0;
  virtual void free_host(void* data) noexcept = 0;

  // Ordered on `stream`; `host` must stay unchanged and alive until the stream has passed the copy.
  virtual void copy_to_device(void* device, const void* host, std::int64_t size_bytes, Stream) = 0;
  virtual void copy_to_host(void* host, const void* device, std::int64_t size_bytes, Stream) = 0;
  virtual void fill(void* device, unsigned char byte, std::int64_t size_bytes, Stream) = 0;

  virtual Stream create_stream() = 0;
  virtual void destroy_stream(Stream) noexcept = 0;
  virtual void synchronize(Stream) = 0;
};

}  // namespace quire
