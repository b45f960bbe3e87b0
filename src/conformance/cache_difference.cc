// SPDX-License-Identifier: Apache-2.0
// What a cache holds against what its image says, reported by element.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/number_formats.h"
#include "conformance/cache_memory.h"
#include "conformance/index.h"

namespace quire::conformance {
namespace {

constexpr std::byte kNotExported{0x5a};  // a number in every format

const char* tensor_name(KvTensor tensor) {
  return tensor == KvTensor::kK ? "K" : "V";
}

// Calls f(tensor, block, head, token) for every row of the cache until it returns something.
template <class F>
std::optional<std::string> first_of_rows(const KvCacheView& cache, KvTensor tensor, F&& f) {
  for (std::int64_t block = 0; block < cache.num_blocks; ++block) {
    for (std::int64_t head = 0; head < cache.num_kv_heads; ++head) {
      for (std::int64_t token = 0; token < cache.format.block_size; ++token) {
        if (auto found = f(tensor, block, head, token)) return found;
      }
    }
  }
  return std::nullopt;
}

std::string place_name(KvTensor tensor, std::int64_t block, std::int64_t head, std::int64_t token) {
  return concat(tensor_name(tensor), " block ", block, " head ", head, " token ", token);
}

}  // namespace

std::optional<std::string> CacheMemory::element_difference(const KvCacheView& got,
                                                           KvTensor tensor) const {
  const DType dtype = image_.format.dtype;
  const bool is_k = tensor == KvTensor::kK;
  const void* want_data = is_k ? image_.k : image_.v;
  const void* got_data = is_k ? got.k : got.v;
  const std::int64_t element_bytes = dtype_bytes(dtype);
  const auto differs = [&](std::int64_t offset) {
    const auto* w = static_cast<const std::byte*>(want_data) + offset * element_bytes;
    const auto* g = static_cast<const std::byte*>(got_data) + offset * element_bytes;
    if (std::memcmp(w, g, at(element_bytes)) == 0) return false;
    return !(std::isnan(load_float(dtype, want_data, offset)) &&
             std::isnan(load_float(dtype, got_data, offset)));
  };
  return first_of_rows(image_, tensor,
                       [&](KvTensor t, std::int64_t block, std::int64_t head,
                           std::int64_t token) -> std::optional<std::string> {
                         const std::int64_t slot = block * image_.format.block_size + token;
                         if (!forgotten_.empty() && forgotten_[at(slot)] != 0) return std::nullopt;
                         for (int d = 0; d < (is_k ? image_.head_dim : image_.value_dim); ++d) {
                           const std::int64_t offset =
                               element_offset(image_, t, block, head, token, d);
                           if (!differs(offset)) continue;
                           return concat(place_name(t, block, head, token), " dim ", d, ": holds ",
                                         load_float(dtype, got_data, offset), ", should hold ",
                                         load_float(dtype, want_data, offset), " (",
                                         dtype_name(dtype), " before scaling)");
                         }
                         return std::nullopt;
                       });
}

std::optional<std::string> CacheMemory::scale_difference(const Bytes& got) const {
  const auto* want_bytes = reinterpret_cast<const std::byte*>(scales_.data());
  if (std::equal(got.begin(), got.end(), want_bytes)) return std::nullopt;
  const auto* got_scales = reinterpret_cast<const float*>(got.data());
  for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
    const KvScales& scales = tensor == KvTensor::kK ? image_.k_scales : image_.v_scales;
    auto found =
        first_of_rows(image_, tensor,
                      [&](KvTensor t, std::int64_t block, std::int64_t head,
                          std::int64_t token) -> std::optional<std::string> {
                        const std::int64_t offset =
                            scales.data - scales_.data() + scale_offset(scales, block, head, token);
                        const float want = scales_[at(offset)];
                        const float has = got_scales[offset];
                        if (want == has || (std::isnan(want) && std::isnan(has)))
                          return std::nullopt;
                        return concat("scale of ", place_name(t, block, head, token), ": holds ",
                                      has, ", should hold ", want);
                      });
    if (found) return found;
  }
  return "bytes between the scales were written";
}

// Bytes that hold no element. REQUIRES: no element differs.
std::optional<std::string> CacheMemory::slack_difference(const Bytes& got) const {
  if (is_record_ || std::equal(got.begin(), got.end(), kv_bytes_.begin())) return std::nullopt;
  Bytes want = kv_bytes_;
  const std::int64_t element_bytes = dtype_bytes(image_.format.dtype);
  for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
    const bool is_k = tensor == KvTensor::kK;
    const auto* data = static_cast<const std::byte*>(is_k ? image_.k : image_.v);
    first_of_rows(image_, tensor,
                  [&](KvTensor t, std::int64_t block, std::int64_t head,
                      std::int64_t token) -> std::optional<std::string> {
                    const std::int64_t first =
                        data - kv_bytes_.data() +
                        element_offset(image_, t, block, head, token, 0) * element_bytes;
                    const std::int64_t size =
                        (is_k ? image_.head_dim : image_.value_dim) * element_bytes;
                    std::copy_n(got.begin() + first, size, want.begin() + first);
                    return std::nullopt;
                  });
  }
  if (auto difference = first_difference(want, got)) {
    return concat("between the elements: ", *difference);
  }
  return std::nullopt;
}

// To where it was imported from, which first loses what it held: what is not exported shows.
void CacheMemory::export_opaque() const {
  const Bytes unlike(kv_bytes_.size(), kNotExported);
  for (const Extent& extent : kv_extents_) {
    kv_buffer_->upload(unlike.data() + extent.in_image, extent.in_memory, extent.size);
  }
  if (image_.format.scales == ScaleGranularity::kPerTokenHead) {
    const std::vector<float> none(scales_.size(), std::numeric_limits<float>::quiet_NaN());
    const auto* bytes = reinterpret_cast<const std::byte*>(none.data());
    for (const Extent& extent : scale_extents_) {
      scale_buffer_->upload(bytes + extent.in_image, extent.in_memory, extent.size);
    }
  }
  backend_.export_blocks({&view_, 1}, {&stage_, 1}, image_copies());
  backend_.memory().synchronize({});
}

std::optional<std::string> CacheMemory::difference(const char* name) const {
  if (opaque_buffer_ != nullptr) export_opaque();
  const bool opaque_is_intact = opaque_buffer_ == nullptr || opaque_buffer_->guards_are_intact();
  if (!opaque_is_intact || !kv_buffer_->guards_are_intact() ||
      !scale_buffer_->guards_are_intact()) {
    return concat(name, ": bytes next to it were written");
  }
  Bytes kv(kv_bytes_.size());
  for (const Extent& extent : kv_extents_) {
    kv_buffer_->download(kv.data() + extent.in_image, extent.in_memory, extent.size);
  }
  Bytes scales(scales_.size() * sizeof(float));
  for (const Extent& extent : scale_extents_) {
    scale_buffer_->download(scales.data() + extent.in_image, extent.in_memory, extent.size);
  }
  std::optional<std::string> found;
  if (kv != kv_bytes_) {
    KvCacheView got = image_;
    const auto rebase = [&](const void* data) -> void* {
      return kv.data() + (static_cast<const std::byte*>(data) - kv_bytes_.data());
    };
    got.k = rebase(image_.k);
    got.v = rebase(image_.v);
    found = element_difference(got, KvTensor::kK);
    if (!found) found = element_difference(got, KvTensor::kV);
    if (!found) found = slack_difference(kv);
  }
  if (!found && !scales.empty()) found = scale_difference(scales);
  if (!found) return std::nullopt;
  return concat(name, ": ", *found);
}

}  // namespace quire::conformance
