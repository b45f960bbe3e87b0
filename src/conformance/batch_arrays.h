// SPDX-License-Identifier: Apache-2.0
// The metadata of an arrangement as a BatchView, on the host or in the backend's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/arrangement.h"
#include "conformance/device_buffer.h"
#include "quire/batch.h"

namespace quire::conformance {

// A read-only array and a copy of it in the backend's memory, if that is where it is to lie.
template <class T>
class ArrayImage {
 public:
  ArrayImage() = default;
  ArrayImage(DeviceMemory& memory, const std::vector<T>& values, bool on_device)
      : values_(values), device_(memory.device()) {
    if (!on_device || values.empty()) return;
    const std::int64_t size_bytes = std::ssize(values) * std::int64_t{sizeof(T)};
    buffer_ = std::make_unique<DeviceBuffer>(memory, size_bytes);
    buffer_->upload(values_.data(), 0, size_bytes);
  }

  ArrayView<T> view() const {
    if (buffer_ == nullptr) return ArrayView<T>(values_);
    return ArrayView<T>(static_cast<const T*>(buffer_->data()), std::ssize(values_), device_);
  }

  bool is_changed() const {
    if (buffer_ == nullptr) return false;  // the host copy is const
    std::vector<T> now(values_.size());
    buffer_->download(now.data(), 0, buffer_->size_bytes());
    return now != values_ || !buffer_->guards_are_intact();
  }

 private:
  std::vector<T> values_;
  Device device_;
  std::unique_ptr<DeviceBuffer> buffer_;
};

class BatchArrays {
 public:
  // `with_slots`: whether new K and V are to be stored. Depths are padded to `max_tokens` rows.
  BatchArrays(DeviceMemory& memory, const Arrangement& arrangement, bool with_slots,
              std::int64_t max_tokens, bool on_device);

  BatchView view() const;
  std::optional<std::string> changed() const;

 private:
  BlockTables::Kind kind_;
  std::int64_t row_stride_;
  ArrayImage<std::int32_t> offsets_;  // if present, begins and ends are views of it
  ArrayImage<std::int32_t> q_begins_;
  ArrayImage<std::int32_t> q_ends_;
  ArrayImage<std::int32_t> kv_lens_;
  ArrayImage<std::int32_t> indices_;
  ArrayImage<std::int32_t> begins_;
  ArrayImage<std::int64_t> rows_;
  ArrayImage<std::int64_t> slots_;
  ArrayImage<std::uint8_t> tree_bits_;
  ArrayImage<std::int64_t> tree_begins_;
  ArrayImage<std::int32_t> depths_;
};

}  // namespace quire::conformance
