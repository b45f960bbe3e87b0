// SPDX-License-Identifier: Apache-2.0
#include "fake_device/fake_memory.h"

#include <cstring>

#include "base/check.h"
#include "base/host_memory.h"

namespace quire::testing {
namespace {

// Makes an address non-canonical on x86-64 and unmapped elsewhere.
constexpr std::uintptr_t kDeviceTag = std::uintptr_t{1} << 62;

std::uintptr_t address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace

FakeStream::FakeStream() : thread_([this] { thread_main(); }) {}

FakeStream::~FakeStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeStream::enqueue(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void FakeStream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
}

void FakeStream::thread_main() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    lock.unlock();
    task();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void* FakeMemory::allocate(std::int64_t size_bytes, PageHint hint) {
  void* host = host_memory().allocate(size_bytes, hint);
  const std::lock_guard lock(mutex_);
  allocations_[address(host) + kDeviceTag] = size_bytes;
  return reinterpret_cast<void*>(address(host) + kDeviceTag);
}

void FakeMemory::free(void* data) noexcept {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex_);
  allocations_.erase(address(data));
  host_memory().free(reinterpret_cast<void*>(address(data) - kDeviceTag));
}

void* FakeMemory::allocate_host(std::int64_t size_bytes) {
  return host_memory().allocate(size_bytes);
}

void FakeMemory::free_host(void* data) noexcept {
  host_memory().free(data);
}

void FakeMemory::copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                                Stream stream_) {
  void* target = size_bytes > 0 ? to_host(device) : nullptr;
  stream(stream_).enqueue([=] {
    if (size_bytes > 0) std::memcpy(target, host, static_cast<std::size_t>(size_bytes));
  });
}

void FakeMemory::copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                              Stream stream_) {
  const void* source = size_bytes > 0 ? to_host(device) : nullptr;
  stream(stream_).enqueue([=] {
    if (size_bytes > 0) std::memcpy(host, source, static_cast<std::size_t>(size_bytes));
  });
}

void FakeMemory::fill(void* device, unsigned char byte, std::int64_t size_bytes, Stream stream_) {
  void* target = size_bytes > 0 ? to_host(device) : nullptr;
  stream(stream_).enqueue([=] {
    if (size_bytes > 0) std::memset(target, byte, static_cast<std::size_t>(size_bytes));
  });
}

Stream FakeMemory::create_stream() {
  auto stream = std::make_unique<FakeStream>();
  void* handle = stream.get();
  const std::lock_guard lock(mutex_);
  streams_[handle] = std::move(stream);
  return {.handle = handle};
}

void FakeMemory::destroy_stream(Stream stream) noexcept {
  std::unique_ptr<FakeStream> dying;  // joins after the lock is gone: its tasks take the lock
  const std::lock_guard lock(mutex_);
  if (const auto it = streams_.find(stream.handle); it != streams_.end()) {
    dying = std::move(it->second);
    streams_.erase(it);
  }
}

void FakeMemory::synchronize(Stream stream_) {
  stream(stream_).synchronize();
}

FakeStream& FakeMemory::stream(Stream stream) {
  if (stream.handle == nullptr) return default_stream_;
  const std::lock_guard lock(mutex_);
  const auto it = streams_.find(stream.handle);
  require(it != streams_.end(), "stream ", stream.handle, " is none of this device");
  return *it->second;
}

void* FakeMemory::to_host(const void* device) const {
  if (device == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  auto it = allocations_.upper_bound(address(device));
  if (it != allocations_.begin()) {
    --it;
    // One past the end is a valid base of nothing.
    if (address(device) - it->first <= static_cast<std::uintptr_t>(it->second)) {
      return reinterpret_cast<void*>(address(device) - kDeviceTag);
    }
  }
  fail(ErrorCode::kDevice, "address ", device, " is not in device memory");
}

}  // namespace quire::testing
