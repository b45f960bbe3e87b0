// SPDX-License-Identifier: Apache-2.0
#include "backends/dense/gather.h"

#include <algorithm>
#include <cstring>

#include "backends/dense/widen.h"
#include "base/dispatch.h"
#include "layout/kv_rows.h"

namespace quire::dense {
namespace {

// Adding one to the exponent of an infinity or a NaN, which is all ones, carries into the sign.
// Loops without branches: they become vectors.
bool all_finite(const float* x, std::int64_t count) noexcept {
  std::uint32_t carries = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    carries |= (__builtin_bit_cast(std::uint32_t, x[i]) & 0x7fffffffU) + 0x00800000U;
  }
  return (carries & 0x80000000U) == 0;
}

template <class T>
bool all_finite_16(const T* x, std::int64_t count, std::uint16_t exponent_step) noexcept {
  std::uint16_t carries = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    carries = static_cast<std::uint16_t>(carries | ((x[i].bits & 0x7fffU) + exponent_step));
  }
  return (carries & 0x8000U) == 0;
}

bool all_finite(DType dtype, const void* data, std::int64_t offset, std::int64_t count) noexcept {
  switch (dtype) {
    case DType::kF16:
      return all_finite_16(static_cast<const Float16*>(data) + offset, count, 0x0400);
    case DType::kBF16:
      return all_finite_16(static_cast<const BFloat16*>(data) + offset, count, 0x0080);
    default:
      return all_finite(static_cast<const float*>(data) + offset, count);
  }
}

void zero_elements(const DenseRows& rows, std::int64_t first, std::int64_t count) noexcept {
  const std::int64_t size = dtype_bytes(rows.dtype);
  std::memset(static_cast<char*>(rows.data) + first * size, 0,
              static_cast<std::size_t>(count * size));
}

// A part of the keys whose rows lie one after the other in one block.
struct Run {
  std::int64_t block = 0;
  std::int64_t token = 0;
  std::int64_t row = 0;  // of the target
  std::int64_t count = 0;
};

// One gather: what all of its runs share.
struct Gather {
  const KvCacheView& cache;
  KvTensor tensor;
  std::int64_t kv_head;
  const DenseRows& rows;
  std::int64_t dims = row_dims(cache, tensor);
  const KvStrides& strides =
      tensor == KvTensor::kK || cache.format.v_in_k ? cache.k_strides : cache.v_strides;
  const void* base = tensor == KvTensor::kK ? cache.k : cache.v;
  bool plain = cache.format.layout == KvLayoutId::kPlain;
  bool scaled = cache.format.scales != ScaleGranularity::kNone;
};

// Elements of a row in a layout that interleaves them, as they are stored.
template <class T>
void copy_interleaved(const Gather& g, const T* first, std::int64_t target) noexcept {
  const RowShape shape = row_shape(g.cache, g.tensor);
  T* out = static_cast<T*>(g.rows.data) + target;
  for (std::int64_t d = 0; d < g.dims; ++d) out[d] = first[shape.offset(d)];
}

// `count` elements from element `source` on, contiguous on both sides.
void copy_elements(const Gather& g, std::int64_t source, std::int64_t target,
                   std::int64_t count) noexcept {
  const DType dtype = g.cache.format.dtype;
  if (g.rows.dtype != dtype) {
    widen(dtype, g.base, source, count, static_cast<float*>(g.rows.data) + target);
    return;
  }
  const std::int64_t size = dtype_bytes(dtype);
  std::memcpy(static_cast<char*>(g.rows.data) + target * size,
              static_cast<const char*>(g.base) + source * size,
              static_cast<std::size_t>(count * size));
}

// Multiplies what copy_elements left by the scale of the row.
void scale_row(const Gather& g, std::int64_t block, std::int64_t token,
               std::int64_t target) noexcept {
  const KvScales& scales = g.tensor == KvTensor::kK ? g.cache.k_scales : g.cache.v_scales;
  const float scale = scales.data[scale_offset(scales, block, g.kv_head, token)];
  float* out = static_cast<float*>(g.rows.data) + target;
  for (std::int64_t d = 0; d < g.dims; ++d) out[d] *= scale;
}

void copy_row(const Gather& g, std::int64_t block, std::int64_t token,
              std::int64_t target) noexcept {
  const std::int64_t source = element_offset(g.cache, g.tensor, block, g.kv_head, token, 0);
  if (g.plain) {
    copy_elements(g, source, target, g.dims);
    if (g.scaled) scale_row(g, block, token, target);
  } else if (g.rows.dtype == DType::kF32) {
    load_row(g.cache, g.tensor, block, g.kv_head, token, static_cast<float*>(g.rows.data) + target);
  } else {
    dispatch_dtype(g.cache.format.dtype, [&]<class T>() {
      copy_interleaved<T>(g, static_cast<const T*>(g.base) + source, target);
    });
  }
}

void copy_run(const Gather& g, const Run& run) noexcept {
  const std::int64_t target = run.row * g.rows.stride;
  if (g.plain && g.strides.token == g.dims && g.rows.stride == g.dims) {
    copy_elements(g, element_offset(g.cache, g.tensor, run.block, g.kv_head, run.token, 0), target,
                  run.count * g.dims);
    for (std::int64_t i = 0; g.scaled && i < run.count; ++i) {
      scale_row(g, run.block, run.token + i, target + i * g.dims);
    }
    return;
  }
  for (std::int64_t i = 0; i < run.count; ++i) {
    const std::int64_t row = target + i * g.rows.stride;
    copy_row(g, run.block, run.token + i, row);
    zero_elements(g.rows, row + g.dims, g.rows.stride - g.dims);
  }
}

// Zeroes the rows of the run that are not finite and appends their indices.
std::int64_t clear_not_finite(const Gather& g, const Run& run, std::int32_t* found) noexcept {
  const DenseRows& rows = g.rows;
  if (all_finite(rows.dtype, rows.data, run.row * rows.stride, run.count * rows.stride)) return 0;
  std::int64_t num_found = 0;
  for (std::int64_t row = run.row; row < run.row + run.count; ++row) {
    if (all_finite(rows.dtype, rows.data, row * rows.stride, rows.stride)) continue;
    zero_elements(rows, row * rows.stride, rows.stride);
    found[num_found++] = static_cast<std::int32_t>(row);
  }
  return num_found;
}

bool has_tree(const GatherSource& source) noexcept {
  return source.alignment == Alignment::kAligned && source.sequence.tree_bits != nullptr;
}

}  // namespace

GatherSource gather_source(const KvCacheView& cache, const BatchView& batch,
                           const AttentionSpec& spec, std::int64_t s) noexcept {
  GatherSource source{.cache = cache,
                      .tables = batch.kv.blocks,
                      .mask = spec.mask,
                      .alignment = spec.alignment,
                      .sequence = sequence_view(batch, s),
                      .s = s};
  if (has_tree(source)) source.first_old = first_old_key_seen(spec.mask, source.sequence);
  return source;
}

bool may_read_key(const GatherSource& source, std::int64_t j) noexcept {
  return !has_tree(source) || is_seen_in_tree(source.mask, source.sequence, source.first_old, j);
}

namespace {

// How many keys from j on can be read as one run, as far as masks are concerned; 0 if key j cannot.
std::int64_t readable_keys(const GatherSource& source, std::int64_t j, std::int64_t end) noexcept {
  if (!has_tree(source)) return end - j;
  const std::int64_t first_new = source.sequence.first_new();
  if (j < first_new) return j < source.first_old ? 0 : std::min(first_new, end) - j;
  return may_read_key(source, j) ? 1 : 0;
}

}  // namespace

std::int64_t gather_rows(const GatherSource& source, KvTensor tensor, std::int64_t kv_head,
                         KeyRange keys, const DenseRows& rows, std::int32_t* not_finite) noexcept {
  const Gather g{.cache = source.cache, .tensor = tensor, .kv_head = kv_head, .rows = rows};
  const std::int64_t block_size = source.cache.format.block_size;
  std::int64_t num_found = 0;
  for (std::int64_t j = keys.begin; j < keys.end;) {
    const std::int64_t row = j - keys.begin;
    const std::int64_t num_readable = readable_keys(source, j, keys.end);
    if (num_readable == 0) {
      zero_elements(rows, row * rows.stride, rows.stride);
      ++j;
      continue;
    }
    const std::int64_t slot = key_slot(source.tables, block_size, source.s, j);
    const std::int64_t token = slot % block_size;
    const Run run{.block = slot / block_size,
                  .token = token,
                  .row = row,
                  .count = std::min(block_size - token, num_readable)};
    copy_run(g, run);
    if (not_finite != nullptr) num_found += clear_not_finite(g, run, not_finite + num_found);
    j += run.count;
  }
  zero_elements(rows, keys.size() * rows.stride, (rows.num_rows - keys.size()) * rows.stride);
  return num_found;
}

void load_key(const GatherSource& source, KvTensor tensor, std::int64_t kv_head, std::int64_t j,
              float* out) noexcept {
  const std::int64_t block_size = source.cache.format.block_size;
  const std::int64_t slot = key_slot(source.tables, block_size, source.s, j);
  load_row(source.cache, tensor, slot / block_size, kv_head, slot % block_size, out);
}

}  // namespace quire::dense
