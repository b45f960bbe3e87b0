// SPDX-License-Identifier: Apache-2.0
// Views of a cache: against themselves, and against a spec and a device.
#include <array>
#include <cmath>
#include <cstdint>

#include "attention/validate.h"
#include "base/check.h"
#include "layout/kv_extent.h"
#include "layout/kv_offset.h"
#include "layout/stride_check.h"

namespace quire {
namespace {

bool tiles_fit(const KvCacheView& cache) {
  AttentionSpec spec;
  spec.head_dim = cache.head_dim;
  spec.value_dim = cache.value_dim;
  spec.kv = cache.format;
  return pair_tiled_layout_fits(spec);
}

void validate_fields(const KvCacheView& cache, const FieldName& name) {
  const auto in_range = [&](const char* field, int value, int limit) {
    require(value >= 1 && value <= limit, name, ".", field, ": not in [1, ", limit, "]: ", value);
  };
  in_range("num_kv_heads", cache.num_kv_heads, kMaxHeads);
  in_range("head_dim", cache.head_dim, kMaxDim);
  in_range("value_dim", cache.value_dim, kMaxDim);
  const KvFormat& format = cache.format;
  require(format.block_size >= 1, name, ".format.block_size: not positive: ", format.block_size);
  require(format.dtype <= DType::kI8, name,
          ".format.dtype: unknown: ", static_cast<int>(format.dtype));
  require(format.scales <= ScaleGranularity::kPerTokenHead, name,
          ".format.scales: unknown: ", static_cast<int>(format.scales));
  require(format.layout == KvLayoutId::kPlain || format.layout == KvLayoutId::kPairTiled ||
              is_opaque(format.layout),
          name, ".format.layout: unknown: ", static_cast<int>(format.layout));
  require(format.layout != KvLayoutId::kPairTiled || tiles_fit(cache), name,
          ".format.layout: pair-tiled does not fit block_size, head_dim and value_dim: ",
          format.block_size, ", ", cache.head_dim, ", ", cache.value_dim);
  require(cache.num_blocks >= 0 && cache.num_blocks <= kMaxElementOffset / format.block_size, name,
          ".num_blocks: not in [0, ", kMaxElementOffset / format.block_size,
          "]: ", cache.num_blocks);
}

// K or V of an opaque layout.
void validate_opaque_bytes(const KvCacheView& cache, const FieldName& name, const char* field,
                           const void* data, std::int64_t block_stride, std::int64_t size_bytes) {
  require(data != nullptr, name, ".", field, ": null, num_blocks ", cache.num_blocks);
  require(size_bytes > 0, name, ".opaque_", field, "_bytes: not positive: ", size_bytes);
  require(cache.num_blocks <= 1 || block_stride >= size_bytes, name, ".", field,
          "_strides.block: less than the ", size_bytes, " bytes of a block: ", block_stride);
  require(offsets_fit(std::array<StridedAxis, 1>{{{cache.num_blocks, block_stride}}}), name, ".",
          field, "_strides.block: offsets exceed 64 bits: ", block_stride);
}

// K and V of an opaque layout lie apart as wholes, or V beside K in every record.
void validate_opaque_apart(const KvCacheView& cache, const FieldName& name) {
  const std::int64_t last = cache.num_blocks - 1;
  const auto address = [](const void* data) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data));
  };
  const std::int64_t distance = address(cache.v) - address(cache.k);
  if (distance >= last * cache.k_strides.block + cache.opaque_k_bytes) return;
  if (-distance >= last * cache.v_strides.block + cache.opaque_v_bytes) return;
  const std::int64_t stride = cache.k_strides.block;
  require(last > 0 && cache.v_strides.block == stride, name,
          ".v: bytes of K and V overlap, V begins after K: ", distance);
  const std::int64_t inside = (distance % stride + stride) % stride;
  require(inside >= cache.opaque_k_bytes && inside + cache.opaque_v_bytes <= stride, name,
          ".v: bytes of K and V overlap, V begins after K: ", distance);
}

void validate_pointer(const KvCacheView& cache, const FieldName& name, const char* field,
                      const void* data) {
  const std::int64_t bytes = dtype_bytes(cache.format.dtype);
  require(data != nullptr, name, ".", field, ": null, num_blocks ", cache.num_blocks);
  require(reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0, name,
          ".", field, ": not aligned to ", bytes, " bytes: ", data);
}

// REQUIRES: fields and pointers are valid, the layout is not opaque.
void validate_strides(const KvCacheView& cache, CacheUse use, const FieldName& name) {
  try {
    if (use == CacheUse::kWrite) return require_distinct_elements(cache);
    element_range(cache, KvTensor::kK);
    element_range(cache, KvTensor::kV);
  } catch (const Error& error) {
    fail(error.code(), name, ": ", error.what());
  }
}

void validate_scales(const KvCacheView& cache, CacheUse use, const FieldName& name,
                     const char* field, const KvScales& scales) {
  const ScaleGranularity granularity = cache.format.scales;
  if (granularity == ScaleGranularity::kNone) {
    require(scales.data == nullptr, name, ".", field, ": given, but the format has none");
    return;
  }
  require(scales.data != nullptr, name, ".", field, ": missing, the format has ",
          scale_granularity_name(granularity));
  require(reinterpret_cast<std::uintptr_t>(scales.data) % alignof(float) == 0, name, ".", field,
          ": not aligned to ", alignof(float), " bytes: ", static_cast<const void*>(scales.data));
  const KvStrides& strides = scales.strides;
  const bool per_token = granularity == ScaleGranularity::kPerTokenHead;
  require(per_token || (strides.block == 0 && strides.token == 0), name, ".", field,
          ".strides: ", scale_granularity_name(granularity),
          " needs 0 for block and token, has: ", strides.block, ", ", strides.token);
  require(granularity != ScaleGranularity::kPerTensor || strides.head == 0, name, ".", field,
          ".strides: per-tensor needs 0 for head, has: ", strides.head);
  const std::array<StridedAxis, 3> axes{{{cache.num_blocks, strides.block},
                                         {cache.num_kv_heads, strides.head},
                                         {cache.format.block_size, strides.token}}};
  require(offsets_fit(axes), name, ".", field,
          ".strides: offsets exceed 64 bits, block, head and token: ", strides.block, ", ",
          strides.head, ", ", strides.token);
  require(use == CacheUse::kRead || !per_token || strides_are_disjoint(axes), name, ".", field,
          ".strides: scales overlap, block, head and token: ", strides.block, ", ", strides.head,
          ", ", strides.token);
}

// With v_in_k one tensor is stored under both names.
void validate_v_in_k(const KvCacheView& cache, const FieldName& name) {
  require(cache.value_dim <= cache.head_dim, name, ".value_dim: exceeds head_dim ", cache.head_dim,
          " with v_in_k: ", cache.value_dim);
  require(cache.v == cache.k, name, ".v: differs from k with v_in_k");
  require(cache.v_strides == cache.k_strides, name,
          ".v_strides: differ from k_strides with v_in_k");
  require(cache.v_scales.data == cache.k_scales.data &&
              cache.v_scales.strides == cache.k_scales.strides,
          name, ".v_scales: differ from k_scales with v_in_k");
}

// Where K and V are one record, V has no bytes of its own. Scales per (token, head) are inside the
// blocks, the caller's own ones are where they always are.
void validate_opaque(const KvCacheView& cache, CacheUse use, const FieldName& name) {
  const bool v_in_k = cache.format.v_in_k;
  validate_opaque_bytes(cache, name, "k", cache.k, cache.k_strides.block, cache.opaque_k_bytes);
  require(!v_in_k || cache.opaque_v_bytes == 0, name, ".opaque_v_bytes: needs 0 with v_in_k, has ",
          cache.opaque_v_bytes);
  if (cache.opaque_v_bytes != 0) {
    validate_opaque_bytes(cache, name, "v", cache.v, cache.v_strides.block, cache.opaque_v_bytes);
    if (use == CacheUse::kWrite) validate_opaque_apart(cache, name);
  }
  if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
    require(cache.k_scales.data == nullptr, name, ".k_scales: given, but they are in the blocks");
    require(cache.v_scales.data == nullptr, name, ".v_scales: given, but they are in the blocks");
    return;
  }
  validate_scales(cache, use, name, "k_scales", cache.k_scales);
  if (!v_in_k) validate_scales(cache, use, name, "v_scales", cache.v_scales);
}

// The caller's own scales are divisors. Contents on a device are not read.
void validate_scale_values(const KvCacheView& cache, const char* field, const KvScales& scales) {
  if (!cache.device.is_host() || cache.num_blocks == 0) return;
  const ScaleGranularity granularity = cache.format.scales;
  if (granularity != ScaleGranularity::kPerTensor && granularity != ScaleGranularity::kPerHead) {
    return;
  }
  const int num_scales = granularity == ScaleGranularity::kPerTensor ? 1 : cache.num_kv_heads;
  for (int head = 0; head < num_scales; ++head) {
    const float scale = scales.data[scale_offset(scales, 0, head, 0)];
    require(std::isfinite(scale) && scale > 0.0F, "cache.", field, ": head ", head,
            " has a scale that is not finite and positive: ", scale);
  }
}

void require_equal(const char* field, std::int64_t has, std::int64_t needs) {
  require(has == needs, "cache.", field, ": needs ", needs, " as the spec, has ", has);
}

void validate_format(const KvFormat& needs, const KvFormat& has) {
  require(has.dtype == needs.dtype, "cache.format.dtype: needs ", dtype_name(needs.dtype),
          " as the spec, has ", dtype_name(has.dtype));
  require_equal("format.block_size", has.block_size, needs.block_size);
  require(has.scales == needs.scales, "cache.format.scales: needs ",
          scale_granularity_name(needs.scales), " as the spec, has ",
          scale_granularity_name(has.scales));
  require_equal("format.v_in_k", has.v_in_k ? 1 : 0, needs.v_in_k ? 1 : 0);
  if (has.layout != needs.layout) {
    fail(ErrorCode::kInvalidArgument, "cache.format.layout: needs ", layout_text(needs.layout),
         " as the spec, has ", layout_text(has.layout));
  }
}

}  // namespace

void validate_cache(const KvCacheView& cache, CacheUse use, const FieldName& name) {
  validate_fields(cache, name);
  const bool v_in_k = cache.format.v_in_k;
  if (v_in_k) validate_v_in_k(cache, name);
  if (cache.num_blocks == 0) return;
  if (is_opaque(cache.format.layout)) return validate_opaque(cache, use, name);
  validate_pointer(cache, name, "k", cache.k);
  if (!v_in_k) validate_pointer(cache, name, "v", cache.v);
  validate_strides(cache, use, name);
  validate_scales(cache, use, name, "k_scales", cache.k_scales);
  if (v_in_k) return;
  validate_scales(cache, use, name, "v_scales", cache.v_scales);
  const bool stores_scales =
      use == CacheUse::kWrite && cache.format.scales == ScaleGranularity::kPerTokenHead;
  require(!stores_scales || cache.v_scales.data != cache.k_scales.data, name,
          ".v_scales: the same memory as k_scales");
}

void validate_cache(const AttentionSpec& spec, const KvCacheView& cache, Device device,
                    CacheUse use) {
  validate_cache(cache, use, "cache");
  if (cache.device != device) {
    fail(ErrorCode::kInvalidArgument, "cache: on ", device_text(cache.device),
         ", but the backend computes on ", device_text(device));
  }
  require_equal("num_kv_heads", cache.num_kv_heads, spec.num_kv_heads);
  require_equal("head_dim", cache.head_dim, spec.head_dim);
  require_equal("value_dim", cache.value_dim, spec.value_dim);
  validate_format(spec.kv, cache.format);
  validate_scale_values(cache, "k_scales", cache.k_scales);
  validate_scale_values(cache, "v_scales", cache.v_scales);
}

}  // namespace quire
