// SPDX-License-Identifier: Apache-2.0
#include "conformance/device_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/sanitizers.h"
#include "conformance/index.h"

namespace quire::conformance {
namespace {

// Address sanitizers find stray reads and writes themselves, if the buffer is no larger than asked.
constexpr std::int64_t kGuardBytes = kHasAddressSanitizer ? 0 : 256;

// Above it only what is uploaded is written: large memory is reserved, not committed.
constexpr std::int64_t kMaxFilledBytes = std::int64_t{1} << 30;

constexpr unsigned char kPoisonByte = std::to_integer<unsigned char>(kPoison);

}  // namespace

DeviceBuffer::DeviceBuffer(DeviceMemory& memory, std::int64_t size_bytes, Place place,
                           std::int64_t alignment)
    : memory_(memory), place_(place), size_bytes_(size_bytes) {
  const std::int64_t all_bytes = size_bytes + 2 * kGuardBytes + alignment - kAlignment;
  base_ = static_cast<std::byte*>(place == Place::kHost ? memory_.allocate_host(all_bytes)
                                                        : memory_.allocate(all_bytes));
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(base_) + kGuardBytes;
  const auto multiple = static_cast<std::uintptr_t>(alignment);
  data_ = base_ + kGuardBytes + (multiple - first % multiple) % multiple;
  if (size_bytes <= kMaxFilledBytes) {
    fill(base_, all_bytes);
  } else {
    fill(data_ - kGuardBytes, kGuardBytes);
    fill(data_ + size_bytes_, kGuardBytes);
  }
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : memory_(other.memory_),
      place_(other.place_),
      size_bytes_(other.size_bytes_),
      base_(std::exchange(other.base_, nullptr)),
      data_(std::exchange(other.data_, nullptr)) {}

DeviceBuffer::~DeviceBuffer() {
  if (base_ == nullptr) return;
  if (place_ == Place::kHost) {
    memory_.free_host(base_);
  } else {
    memory_.free(base_);
  }
}

Device DeviceBuffer::device() const noexcept {
  return place_ == Place::kHost ? Device{} : memory_.device();
}

void DeviceBuffer::fill(std::byte* data, std::int64_t size) {
  if (place_ == Place::kHost) {
    std::memset(data, kPoisonByte, at(size));
    return;
  }
  memory_.fill(data, kPoisonByte, size, {});
  memory_.synchronize({});
}

void DeviceBuffer::read(void* host, const std::byte* data, std::int64_t size) const {
  if (size == 0) return;
  if (place_ == Place::kHost) {
    std::memcpy(host, data, at(size));
    return;
  }
  memory_.copy_to_host(host, data, size, {});
  memory_.synchronize({});
}

void DeviceBuffer::upload(const void* host, std::int64_t offset_bytes, std::int64_t size) {
  QUIRE_CHECK(offset_bytes >= 0 && size >= 0 && offset_bytes + size <= size_bytes_);
  if (size == 0) return;
  if (place_ == Place::kHost) {
    std::memcpy(data_ + offset_bytes, host, at(size));
    return;
  }
  memory_.copy_to_device(data_ + offset_bytes, host, size, {});
  memory_.synchronize({});
}

void DeviceBuffer::download(void* host, std::int64_t offset_bytes, std::int64_t size) const {
  QUIRE_CHECK(offset_bytes >= 0 && size >= 0 && offset_bytes + size <= size_bytes_);
  read(host, data_ + offset_bytes, size);
}

std::vector<std::byte> DeviceBuffer::download() const {
  std::vector<std::byte> bytes(at(size_bytes_));
  download(bytes.data(), 0, size_bytes_);
  return bytes;
}

bool DeviceBuffer::guards_are_intact() const {
  std::vector<std::byte> guards(at(2 * kGuardBytes));
  read(guards.data(), data_ - kGuardBytes, kGuardBytes);
  read(guards.data() + kGuardBytes, data_ + size_bytes_, kGuardBytes);
  return std::all_of(guards.begin(), guards.end(), [](std::byte b) { return b == kPoison; });
}

std::optional<std::string> first_difference(const std::vector<std::byte>& want,
                                            const std::vector<std::byte>& got) {
  QUIRE_CHECK(want.size() == got.size());
  const auto [w, g] = std::mismatch(want.begin(), want.end(), got.begin());
  if (w == want.end()) return std::nullopt;
  return concat("byte ", w - want.begin(), " of ", want.size(), " changed from ", std::hex,
                std::to_integer<int>(*w), " to ", std::to_integer<int>(*g));
}

}  // namespace quire::conformance
