// SPDX-License-Identifier: Apache-2.0
// What is known before any batch: the spec, the bounds and the workspace.
#include <cstdint>
#include <limits>
#include <string>

#include "attention/slot_set.h"
#include "attention/validate.h"
#include "base/check.h"
#include "quire/attention_spec.h"
#include "quire/kv_cache.h"

namespace quire {
namespace {

// Positions are below 2^31 in magnitude; adding a window or a chunk must not overflow.
constexpr std::int64_t kWindowLimit = std::int64_t{1} << 62;

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

void validate_heads(const AttentionSpec& spec) {
  const auto in_range = [](const char* name, int value, int limit) {
    require(value >= 1 && value <= limit, "spec.", name, ": not in [1, ", limit, "]: ", value);
  };
  in_range("num_q_heads", spec.num_q_heads, kMaxHeads);
  in_range("num_kv_heads", spec.num_kv_heads, kMaxHeads);
  require(spec.num_q_heads % spec.num_kv_heads == 0,
          "spec.num_kv_heads: does not divide num_q_heads ", spec.num_q_heads, ": ",
          spec.num_kv_heads);
  in_range("head_dim", spec.head_dim, kMaxDim);
  in_range("value_dim", spec.value_dim, kMaxDim);
}

void validate_dtypes(const AttentionSpec& spec) {
  const DType q = spec.q_dtype;
  if (q != DType::kF32 && q != DType::kF16 && q != DType::kBF16) {
    fail(ErrorCode::kInvalidArgument, "spec.q_dtype: not f32, f16 or bf16: ", dtype_text(q));
  }
  if (spec.out_dtype != q && spec.out_dtype != DType::kF32) {
    fail(ErrorCode::kInvalidArgument, "spec.out_dtype: neither f32 nor the q_dtype ", dtype_text(q),
         ": ", dtype_text(spec.out_dtype));
  }
}

void validate_kv(const AttentionSpec& spec) {
  const KvFormat& kv = spec.kv;
  require(kv.dtype <= DType::kI8, "spec.kv.dtype: unknown: ", static_cast<int>(kv.dtype));
  require(kv.block_size >= 1, "spec.kv.block_size: not positive: ", kv.block_size);
  require(kv.scales <= ScaleGranularity::kPerTokenHead,
          "spec.kv.scales: unknown: ", static_cast<int>(kv.scales));
  require(is_quantized(kv.dtype) || kv.scales == ScaleGranularity::kNone, "spec.kv.scales: dtype ",
          dtype_name(kv.dtype), " takes none: ", scale_granularity_name(kv.scales));
  require(!is_quantized(kv.dtype) || kv.scales != ScaleGranularity::kNone, "spec.kv.scales: dtype ",
          dtype_name(kv.dtype), " needs them: ", scale_granularity_name(kv.scales));
  require(!kv.v_in_k || spec.value_dim <= spec.head_dim,
          "spec.kv.v_in_k: value_dim exceeds head_dim ", spec.head_dim, ": ", spec.value_dim);
}

void validate_layout(const AttentionSpec& spec) {
  const KvLayoutId layout = spec.kv.layout;
  require(layout == KvLayoutId::kPlain || layout == KvLayoutId::kPairTiled ||
              layout >= KvLayoutId::kFirstPrivate,
          "spec.kv.layout: unknown: ", static_cast<int>(layout));
  require(layout != KvLayoutId::kPairTiled || pair_tiled_layout_fits(spec),
          "spec.kv.layout: pair-tiled does not fit block_size, head_dim and value_dim: ",
          spec.kv.block_size, ", ", spec.head_dim, ", ", spec.value_dim);
}

void validate_mask(const AttentionSpec& spec) {
  const Mask& mask = spec.mask;
  const auto in_range = [](const char* name, std::int64_t value, std::int64_t lowest) {
    require(value >= lowest && value < kWindowLimit, "spec.mask.", name, ": not in [", lowest,
            ", 2^62): ", value);
  };
  in_range("window_left", mask.window_left, -1);
  in_range("window_right", mask.window_right, -1);
  in_range("chunk", mask.chunk, 0);
  require(spec.alignment <= Alignment::kUnaligned,
          "spec.alignment: unknown: ", static_cast<int>(spec.alignment));
  if (spec.alignment == Alignment::kUnaligned) {
    const auto has_no = [](bool given, const char* name) {
      require(!given, "spec.", name, ": unaligned attention has no positions");
    };
    has_no(mask.causal, "mask.causal");
    has_no(mask.window_left != -1, "mask.window_left");
    has_no(mask.window_right != -1, "mask.window_right");
    has_no(mask.chunk != 0, "mask.chunk");
    has_no(spec.features.alibi, "features.alibi");
    has_no(spec.features.tree_mask, "features.tree_mask");
  }
  require(!spec.features.tree_mask || mask.causal, "spec.features.tree_mask: needs mask.causal");
}

// Whether count * heads * dim f32 values have a 64-bit size.
bool size_fits(std::int64_t count, const AttentionSpec& spec) {
  const std::int64_t dim = spec.head_dim > spec.value_dim ? spec.head_dim : spec.value_dim;
  const std::int64_t each_bytes = spec.num_q_heads * dim * 4;  // < 2^31
  return count <= std::numeric_limits<std::int64_t>::max() / each_bytes;
}

}  // namespace

void validate(const AttentionSpec& spec) {
  validate_heads(spec);
  validate_dtypes(spec);
  validate_kv(spec);
  validate_mask(spec);
  validate_layout(spec);
}

void validate_bounds(const AttentionSpec& spec, const BatchBounds& bounds) {
  const auto in_range = [](const char* name, std::int64_t value) {
    require(value >= 0 && value <= kMaxInt32, "bounds.", name, ": not in [0, ", kMaxInt32,
            "]: ", value);
  };
  in_range("max_sequences", bounds.max_sequences);
  in_range("max_tokens", bounds.max_tokens);
  in_range("max_kv_len", bounds.max_kv_len);
  in_range("max_q_len", bounds.max_q_len);
  require(bounds.max_total_kv_len >= 0,
          "bounds.max_total_kv_len: negative: ", bounds.max_total_kv_len);
  require(bounds.max_sequences == 0 || bounds.max_total_kv_len >= bounds.max_kv_len,
          "bounds.max_total_kv_len: less than max_kv_len ", bounds.max_kv_len, ": ",
          bounds.max_total_kv_len);
  require(size_fits(bounds.max_total_kv_len, spec), "bounds.max_total_kv_len: f32 values of ",
          spec.num_q_heads, " heads do not fit 64-bit sizes: ", bounds.max_total_kv_len);
}

std::int64_t validation_scratch_bytes(const BatchBounds& bounds) noexcept {
  return SlotSet::scratch_bytes(bounds.max_tokens);
}

void validate_workspace(const Workspace& workspace, const WorkspaceSize& needed) {
  const auto validate_part = [](const char* name, const void* data, std::int64_t given_bytes,
                                std::int64_t needed_bytes) {
    if (needed_bytes == 0) return;
    require(data != nullptr, "workspace.", name, ": missing, needed bytes: ", needed_bytes);
    require(reinterpret_cast<std::uintptr_t>(data) % kWorkspaceAlignment == 0, "workspace.", name,
            ": not aligned to ", kWorkspaceAlignment, " bytes: ", data);
    require(given_bytes >= needed_bytes, "workspace.", name, ": needs ", needed_bytes,
            " bytes, has ", given_bytes);
  };
  validate_part("host", workspace.host, workspace.size.host_bytes, needed.host_bytes);
  validate_part("device", workspace.device, workspace.size.device_bytes, needed.device_bytes);
}

}  // namespace quire
