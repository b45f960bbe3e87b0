// SPDX-License-Identifier: Apache-2.0
#include "layout/kv_rows.h"

#include <algorithm>
#include <cstdint>

#include "base/dispatch.h"
#include "base/number_formats.h"

namespace quire {
namespace {

struct Place {
  std::int64_t block;
  std::int64_t head;
  std::int64_t token;
};

// Calls f(element, dim) for every dim of a row that begins at `first`.
template <class T, class F>
void for_each_element(T* first, const RowShape& shape, std::int64_t dims, F&& f) noexcept {
  for (std::int64_t begin = 0; begin < dims; begin += shape.run, first += shape.run_stride) {
    const std::int64_t count = std::min(shape.run, dims - begin);
    for (std::int64_t i = 0; i < count; ++i) f(first[i * shape.stride], begin + i);
  }
}

template <class T>
T* first_element(const KvCacheView& cache, KvTensor tensor, const Place& place) noexcept {
  void* base = tensor == KvTensor::kK ? cache.k : cache.v;
  return static_cast<T*>(base) +
         element_offset(cache, tensor, place.block, place.head, place.token, 0);
}

float* scale_of(const KvCacheView& cache, KvTensor tensor, const Place& place) noexcept {
  const KvScales& scales = tensor == KvTensor::kK ? cache.k_scales : cache.v_scales;
  return scales.data + scale_offset(scales, place.block, place.head, place.token);
}

// The scale that a row is stored with, kept in the cache where it is computed here.
float storing_scale(const KvCacheView& cache, KvTensor tensor, const Place& place,
                    const float* row) noexcept {
  if (cache.format.scales == ScaleGranularity::kNone) return 1.0F;
  float* scale = scale_of(cache, tensor, place);
  if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
    float amax = 0.0F;
    const std::int64_t dims = row_dims(cache, tensor);
    for (std::int64_t d = 0; d < dims; ++d) amax = std::max(amax, finite_magnitude(row[d]));
    *scale = token_head_scale(cache.format.dtype, amax);
  }
  return *scale;
}

}  // namespace

void load_row(const KvCacheView& cache, KvTensor tensor, std::int64_t block, std::int64_t head,
              std::int64_t token, float* out) noexcept {
  const Place place = {block, head, token};
  const bool scaled = cache.format.scales != ScaleGranularity::kNone;
  const float scale = scaled ? *scale_of(cache, tensor, place) : 1.0F;
  dispatch_dtype(cache.format.dtype, [&]<class T>() {
    for_each_element(first_element<const T>(cache, tensor, place), row_shape(cache, tensor),
                     row_dims(cache, tensor),
                     [&](const T& x, std::int64_t dim) { out[dim] = to_float(x) * scale; });
  });
}

void store_row(const KvCacheView& cache, KvTensor tensor, std::int64_t block, std::int64_t head,
               std::int64_t token, const float* row) noexcept {
  const Place place = {block, head, token};
  const float scale = storing_scale(cache, tensor, place, row);
  dispatch_dtype(cache.format.dtype, [&]<class T>() {
    for_each_element(first_element<T>(cache, tensor, place), row_shape(cache, tensor),
                     row_dims(cache, tensor),
                     [&](T& x, std::int64_t dim) { x = quantize<T>(row[dim], scale); });
  });
}

}  // namespace quire
