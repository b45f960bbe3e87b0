// SPDX-License-Identifier: Apache-2.0
// Memory of a backend and the host bytes that it should hold.
//
// Every byte has a known value before a call, guards on both sides included, so that after it any
// byte that changed without leave is found. Move-only; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/device.h"

namespace quire::conformance {

// NaN in every floating-point format.
inline constexpr std::byte kPoison{0xff};

// kHost is the backend's own host memory, pinned where that exists: the other end of a swap.
enum class Place : std::uint8_t { kDevice, kHost };

class DeviceBuffer {
 public:
  // Holds poison until the first upload. `memory` must outlive it. The alignment is a power of two
  // from kAlignment on.
  DeviceBuffer(DeviceMemory& memory, std::int64_t size_bytes, Place place = Place::kDevice,
               std::int64_t alignment = kAlignment);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer();

  void* data() const noexcept { return data_; }
  std::int64_t size_bytes() const noexcept { return size_bytes_; }
  Device device() const noexcept;

  // Both wait for the copy. REQUIRES: [offset, offset + size) lies inside.
  void upload(const void* host, std::int64_t offset_bytes, std::int64_t size);
  void download(void* host, std::int64_t offset_bytes, std::int64_t size) const;
  std::vector<std::byte> download() const;

  // Whether nothing was written right before or after.
  bool guards_are_intact() const;

 private:
  static constexpr std::int64_t kAlignment = 64;  // of all that DeviceMemory allocates

  void fill(std::byte* data, std::int64_t size);
  void read(void* host, const std::byte* data, std::int64_t size) const;

  DeviceMemory& memory_;
  Place place_;
  std::int64_t size_bytes_;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
};

// The first byte that differs: "byte 12 of 4096 changed from ff to 00", or nothing.
std::optional<std::string> first_difference(const std::vector<std::byte>& want,
                                            const std::vector<std::byte>& got);

}  // namespace quire::conformance
