// SPDX-License-Identifier: Apache-2.0
#include "backends/openvino/cache_blocks.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "backends/openvino/operation_spec.h"
#include "base/check.h"
#include "layout/kv_rows.h"

namespace quire::openvino {
namespace {

constexpr std::int64_t kParameterBytes = 2 * sizeof(float);  // a scale and a zero point

// Where row (head, token) of one tensor lies, in every form but u8.
std::byte* row_at(const KvCacheView& cache, KvTensor tensor, std::int64_t block, std::int64_t head,
                  std::int64_t token, std::int64_t element_bytes) {
  const bool is_k = tensor == KvTensor::kK;
  auto* base = static_cast<std::byte*>(is_k ? cache.k : cache.v) +
               block * (is_k ? cache.k_strides : cache.v_strides).block;
  return base + (head * kBlockSize + token) * row_dims(cache, tensor) * element_bytes;
}

std::byte* plain_row(const KvCacheView& plain, KvTensor tensor, std::int64_t block,
                     std::int64_t head, std::int64_t token) {
  auto* base = static_cast<std::byte*>(tensor == KvTensor::kK ? plain.k : plain.v);
  return base +
         element_offset(plain, tensor, block, head, token, 0) * dtype_bytes(plain.format.dtype);
}

// bf16 numbers that lie as f32: the upper half of each word.
void narrow_row(const std::byte* words, std::byte* halves, std::int64_t dims) {
  for (std::int64_t d = 0; d < dims; ++d) std::memcpy(halves + 2 * d, words + 4 * d + 2, 2);
}
void widen_row(const std::byte* halves, std::byte* words, std::int64_t dims) {
  std::memset(words, 0, static_cast<std::size_t>(4 * dims));
  for (std::int64_t d = 0; d < dims; ++d) std::memcpy(words + 4 * d + 2, halves + 2 * d, 2);
}

// Calls f(tensor, head, token) for every row of a block.
template <class F>
void for_rows(const KvCacheView& cache, F&& f) {
  for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
    for (std::int64_t head = 0; head < cache.num_kv_heads; ++head) {
      for (std::int64_t token = 0; token < kBlockSize; ++token) f(tensor, head, token);
    }
  }
}

float float_at(const std::byte* data, std::int64_t index) {
  float value = 0;
  std::memcpy(&value, data + index * std::int64_t{sizeof(float)}, sizeof(float));
  return value;
}

void decode_k_row(const std::byte* head_base, std::int64_t token, std::int64_t dims, float* out) {
  const std::byte* codes = head_base + kParameterBytes * dims + token * dims;
  for (std::int64_t d = 0; d < dims; ++d) {
    out[d] =
        (static_cast<float>(codes[d]) - float_at(head_base, dims + d)) * float_at(head_base, d);
  }
}

void decode_v_row(const std::byte* head_base, std::int64_t token, std::int64_t dims, float* out) {
  const std::byte* row = head_base + token * (dims + kParameterBytes);
  for (std::int64_t d = 0; d < dims; ++d) {
    out[d] = (static_cast<float>(row[kParameterBytes + d]) - float_at(row, 1)) * float_at(row, 0);
  }
}

void export_u8_block(const KvCacheView& cache, const CacheForm& form, std::int64_t block,
                     const KvCacheView& plain, std::int64_t plain_block) {
  std::vector<float> row(static_cast<std::size_t>(std::max(cache.head_dim, cache.value_dim)));
  for_rows(cache, [&](KvTensor tensor, std::int64_t head, std::int64_t token) {
    if (tensor == KvTensor::kK) {
      const std::byte* base = static_cast<const std::byte*>(cache.k) +
                              block * cache.k_strides.block +
                              head * form.k.num_rows * form.k.num_columns;
      decode_k_row(base, token, cache.head_dim, row.data());
    } else {
      const std::byte* base = static_cast<const std::byte*>(cache.v) +
                              block * cache.v_strides.block +
                              head * form.v.num_rows * form.v.num_columns;
      decode_v_row(base, token, cache.value_dim, row.data());
    }
    store_row(plain, tensor, plain_block, head, token, row.data());
  });
}

}  // namespace

void require_known_form(const CacheForm& form, CacheElement element, int head_dim, int value_dim) {
  const bool is_u8 = element == CacheElement::kU8;
  const std::int64_t extra = is_u8 ? kParameterBytes : 0;
  if (form.k.num_rows == kBlockSize + extra && form.k.num_columns == head_dim &&
      form.v.num_rows == kBlockSize && form.v.num_columns == value_dim + extra) {
    return;
  }
  fail(ErrorCode::kUnsupported, "openvino: blocks of ", cache_element_name(element), " with K [",
       form.k.num_rows, ", ", form.k.num_columns, "] and V [", form.v.num_rows, ", ",
       form.v.num_columns, "] per head are of a form that cannot be exported or imported");
}

void export_block(const KvCacheView& cache, const CacheForm& form, std::int64_t block,
                  const KvCacheView& plain, std::int64_t plain_block) {
  const CacheElement element = *element_of(cache.format.layout);
  if (element == CacheElement::kU8) return export_u8_block(cache, form, block, plain, plain_block);
  for_rows(cache, [&](KvTensor tensor, std::int64_t head, std::int64_t token) {
    const std::int64_t dims = row_dims(cache, tensor);
    const std::byte* row = row_at(cache, tensor, block, head, token, form.k.element_bytes);
    std::byte* to = plain_row(plain, tensor, plain_block, head, token);
    if (element == CacheElement::kF32 && plain.format.dtype == DType::kBF16) {
      narrow_row(row, to, dims);
    } else {
      std::memcpy(to, row, static_cast<std::size_t>(dims * form.k.element_bytes));
    }
  });
}

void import_block(const KvCacheView& plain, std::int64_t plain_block, const KvCacheView& cache,
                  const CacheForm& form, std::int64_t block) {
  const CacheElement element = *element_of(cache.format.layout);
  for_rows(cache, [&](KvTensor tensor, std::int64_t head, std::int64_t token) {
    const std::int64_t dims = row_dims(cache, tensor);
    const std::byte* row = plain_row(plain, tensor, plain_block, head, token);
    std::byte* to = row_at(cache, tensor, block, head, token, form.k.element_bytes);
    if (element == CacheElement::kF32 && plain.format.dtype == DType::kBF16) {
      widen_row(row, to, dims);
    } else {
      std::memcpy(to, row, static_cast<std::size_t>(dims * form.k.element_bytes));
    }
  });
}

}  // namespace quire::openvino
