// SPDX-License-Identifier: Apache-2.0
// The memory and the streams of a device that exists only in tests.
//
// Its addresses are not addresses of the host: reading one without to_host() faults. A stream is a
// thread with a queue, so copies and kernels really run later than the calls that ask for them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "quire/device.h"

namespace quire::testing {

class FakeStream {
 public:
  FakeStream();
  ~FakeStream();  // runs what is queued
  void enqueue(std::function<void()> task);
  void synchronize();

 private:
  void thread_main();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

class FakeMemory final : public DeviceMemory {
 public:
  Device device() const noexcept override { return {.kind = DeviceKind::kCustom, .index = 0}; }
  void* allocate(std::int64_t size_bytes, PageHint hint) override;
  void free(void* data) noexcept override;
  void* allocate_host(std::int64_t size_bytes) override;
  void free_host(void* data) noexcept override;
  void copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                      Stream stream) override;
  void copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                    Stream stream) override;
  void fill(void* device, unsigned char byte, std::int64_t size_bytes, Stream stream) override;
  Stream create_stream() override;
  void destroy_stream(Stream stream) noexcept override;
  void synchronize(Stream stream) override;

  FakeStream& stream(Stream stream);

  // The host address behind one of the device, or null for null. Throws Error(kDevice) for an
  // address that is not in a live allocation: what would be an illegal access.
  void* to_host(const void* device) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::int64_t> allocations_;  // device address -> bytes
  std::map<void*, std::unique_ptr<FakeStream>> streams_;
  FakeStream default_stream_;
};

}  // namespace quire::testing
