// SPDX-License-Identifier: Apache-2.0
// Views of a cache: against themselves, and against a spec and a device.
#include <array>
#include <cmath>
#include <cstdint>

#include "attention/validate.h"
#include "base/check.h"
#include "layout/stride_check.h"

namespace quire {
namespace {

bool is_opaque(const KvFormat& format) {
  return format.layout >= KvLayoutId::kFirstPrivate;
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
              is_opaque(format),
          name, ".format.layout: unknown: ", static_cast<int>(format.layout));
  require(cache.num_blocks >= 0 && cache.num_blocks <= kMaxElementOffset / format.block_size, name,
          ".num_blocks: not in [0, ", kMaxElementOffset / format.block_size,
          "]: ", cache.num_blocks);
}

// One stored tensor of a cache.
struct StoredTensor {
  const FieldName& name;
  const char* field;  // "k" or "v"
  const void* data;
  const KvStrides& strides;
  std::int64_t dim;
  std::int64_t opaque_bytes;
};

void validate_opaque_tensor(const KvCacheView& cache, const StoredTensor& t) {
  require(t.opaque_bytes > 0, t.name, ".opaque_", t.field,
          "_bytes: not positive: ", t.opaque_bytes);
  require(cache.num_blocks <= 1 || t.strides.block >= t.opaque_bytes, t.name, ".", t.field,
          "_strides.block: less than the ", t.opaque_bytes, " bytes of a block: ", t.strides.block);
  require(offsets_fit(std::array<StridedAxis, 1>{{{cache.num_blocks, t.strides.block}}}), t.name,
          ".", t.field, "_strides.block: offsets exceed 64 bits: ", t.strides.block);
}

// The axes of K or V that hold different elements. A tile is dense: [block_size * dim].
std::array<StridedAxis, 4> tensor_axes(const KvCacheView& cache, const StoredTensor& t) {
  const bool tiled = cache.format.layout == KvLayoutId::kPairTiled;
  const std::int64_t block_size = cache.format.block_size;
  return {{{cache.num_blocks, t.strides.block},
           {cache.num_kv_heads, t.strides.head},
           {tiled ? 1 : block_size, t.strides.token},
           {tiled ? block_size * t.dim : t.dim, 1}}};
}

void validate_tensor_memory(const KvCacheView& cache, CacheUse use, const StoredTensor& t) {
  if (cache.num_blocks == 0) return;
  require(t.data != nullptr, t.name, ".", t.field, ": null, num_blocks ", cache.num_blocks);
  if (is_opaque(cache.format)) return validate_opaque_tensor(cache, t);
  const std::int64_t bytes = dtype_bytes(cache.format.dtype);
  require(reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(bytes) == 0,
          t.name, ".", t.field, ": not aligned to ", bytes, " bytes: ", t.data);
  const std::array<StridedAxis, 4> axes = tensor_axes(cache, t);
  require(offsets_fit(axes), t.name, ".", t.field,
          "_strides: offsets exceed 64 bits, block, head and token: ", t.strides.block, ", ",
          t.strides.head, ", ", t.strides.token);
  require(use == CacheUse::kRead || strides_are_disjoint(axes), t.name, ".", t.field,
          "_strides: elements overlap, block, head and token: ", t.strides.block, ", ",
          t.strides.head, ", ", t.strides.token);
}

void validate_scales(const KvCacheView& cache, CacheUse use, const FieldName& name,
                     const char* field, const KvScales& scales) {
  const ScaleGranularity granularity = cache.format.scales;
  if (is_opaque(cache.format)) return;  // inside the blocks, if at all
  if (granularity == ScaleGranularity::kNone) {
    require(scales.data == nullptr, name, ".", field, ": given, but the format has none");
    return;
  }
  if (cache.num_blocks == 0) return;
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

// The caller's own scales are divisors. Contents on a device are not read.
void validate_scale_values(const KvCacheView& cache, const char* field, const KvScales& scales) {
  if (!cache.device.is_host() || is_opaque(cache.format) || cache.num_blocks == 0) return;
  const ScaleGranularity granularity = cache.format.scales;
  if (granularity != ScaleGranularity::kPerTensor && granularity != ScaleGranularity::kPerHead) {
    return;
  }
  const int num_scales = granularity == ScaleGranularity::kPerTensor ? 1 : cache.num_kv_heads;
  for (int head = 0; head < num_scales; ++head) {
    const float scale = scales.data[head * scales.strides.head];
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
  validate_tensor_memory(cache, use,
                         {.name = name,
                          .field = "k",
                          .data = cache.k,
                          .strides = cache.k_strides,
                          .dim = cache.head_dim,
                          .opaque_bytes = cache.opaque_k_bytes});
  validate_scales(cache, use, name, "k_scales", cache.k_scales);
  if (cache.format.v_in_k) return validate_v_in_k(cache, name);
  validate_tensor_memory(cache, use,
                         {.name = name,
                          .field = "v",
                          .data = cache.v,
                          .strides = cache.v_strides,
                          .dim = cache.value_dim,
                          .opaque_bytes = cache.opaque_v_bytes});
  validate_scales(cache, use, name, "v_scales", cache.v_scales);
  if (use == CacheUse::kRead || cache.num_blocks == 0) return;
  require(cache.v != cache.k, name, ".v: the same memory as k without v_in_k");
  require(cache.format.scales != ScaleGranularity::kPerTokenHead || is_opaque(cache.format) ||
              cache.v_scales.data != cache.k_scales.data,
          name, ".v_scales: the same memory as k_scales without v_in_k");
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
