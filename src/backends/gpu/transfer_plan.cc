// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/transfer_plan.h"

#include <algorithm>
#include <initializer_list>

#include "base/check.h"
#include "layout/kv_extent.h"

namespace quire::gpu {
namespace {

// Indices of kernels are 32-bit; a loop over a grid adds the size of the grid to them.
constexpr std::int64_t kMaxIndex = std::int64_t{1} << 30;
constexpr int kMaxLaneBits = 5;  // a team
constexpr int kMinLaneBits = 2;  // 64 bytes side by side
// Thread blocks that each processor should get before threads take several rows.
constexpr std::int64_t kItemsPerProcessor = 4;

bool are_multiples(std::initializer_list<std::int64_t> values, std::int64_t of) {
  return std::all_of(values.begin(), values.end(),
                     [of](std::int64_t value) { return value % of == 0; });
}

std::int64_t address_of(const void* data) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data));
}

// One of K and V; false if it cannot be taken in chunks.
bool plan_side(const TensorView& rows, const KvCacheView& cache, KvTensor tensor,
               AppendSide& side) {
  const bool is_k = tensor == KvTensor::kK;
  const int dims = is_k ? cache.head_dim : cache.value_dim;
  const KvStrides& strides = is_k ? cache.k_strides : cache.v_strides;
  const KvScales& scales = is_k ? cache.k_scales : cache.v_scales;
  const std::int64_t source_bytes = dtype_bytes(rows.dtype);
  const std::int64_t stored_bytes = dtype_bytes(cache.format.dtype);
  side.from = static_cast<const unsigned char*>(rows.data);
  side.from_token = rows.strides[0] * source_bytes;
  side.from_head = rows.strides[1] * source_bytes;
  side.to = static_cast<unsigned char*>(is_k ? cache.k : cache.v);
  side.to_block = strides.block * stored_bytes;
  side.to_head = strides.head * stored_bytes;
  side.to_token = strides.token * stored_bytes;
  side.scales = scales.data;
  side.scale_strides = scales.strides;
  side.num_chunks = dims / kAppendChunk;
  return dims % kAppendChunk == 0 && rows.strides[2] == 1 &&
         are_multiples({address_of(side.from), side.from_token, side.from_head},
                       kAppendChunk * source_bytes) &&
         are_multiples({address_of(side.to), side.to_block, side.to_head, side.to_token},
                       kAppendChunk * stored_bytes);
}

std::int32_t num_pieces(const AppendVectors& plan, const AppendSide& side, int lane_bits) {
  const int chunks = append_chunks(plan.sets_scales) << lane_bits;
  return (side.num_chunks + chunks - 1) / chunks;
}

// The lanes that share a row, so that few are without work: the most of those that are equally
// good, or as many as a whole row takes.
int choose_lane_bits(const AppendVectors& plan) {
  const auto lanes_taken = [&plan](int bits) {
    return (num_pieces(plan, plan.sides[0], bits) + num_pieces(plan, plan.sides[1], bits)) << bits;
  };
  if (plan.sets_scales) {
    int bits = kMinLaneBits;
    while (num_pieces(plan, plan.sides[0], bits) > 1 || num_pieces(plan, plan.sides[1], bits) > 1)
      ++bits;
    return bits;
  }
  int best = kMaxLaneBits;
  for (int bits = kMaxLaneBits - 1; bits >= kMinLaneBits; --bits) {
    if (lanes_taken(bits) < lanes_taken(best)) best = bits;
  }
  return best;
}

// Columns, passes and items from the sides.
void cut_append(AppendVectors& plan, std::int64_t num_heads, int num_processors) {
  plan.lane_bits = choose_lane_bits(plan);
  std::int64_t columns[2];
  for (int i = 0; i < 2; ++i) {
    AppendSide& side = plan.sides[i];
    columns[i] = num_heads * num_pieces(plan, side, plan.lane_bits);
    side.num_pieces = std::max(num_pieces(plan, side, plan.lane_bits), 1);
    side.by_pieces = make_divider(side.num_pieces);
  }
  plan.num_k_columns = static_cast<std::int32_t>(columns[0]);
  plan.num_columns = static_cast<std::int32_t>(columns[0] + columns[1]);
  const std::int32_t groups = kAppendThreads >> plan.lane_bits;
  plan.num_column_tiles = (plan.num_columns + groups - 1) / groups;
  plan.columns_per_pass = (plan.num_columns + plan.num_column_tiles - 1) / plan.num_column_tiles;
  plan.tokens_per_pass = groups / plan.columns_per_pass;
  plan.by_columns_per_pass = make_divider(plan.columns_per_pass);
  plan.by_column_tiles = make_divider(plan.num_column_tiles);
  const auto num_items = [&plan](std::int32_t rows) {
    return ceil_div(std::int64_t{plan.num_tokens}, std::int64_t{plan.tokens_per_pass} * rows) *
           plan.num_column_tiles;
  };
  plan.rows = append_rows_in_flight(plan.sets_scales);
  while (plan.rows > 1 && num_items(plan.rows) < kItemsPerProcessor * num_processors) {
    plan.rows /= 2;
  }
  plan.num_items = static_cast<std::int32_t>(num_items(plan.rows));
}

// Bytes of one block's tensor if its elements leave no gap, else 0.
std::int64_t dense_bytes(const KvCacheView& cache, KvTensor tensor) {
  const std::int64_t dims = tensor == KvTensor::kK ? cache.head_dim : cache.value_dim;
  const std::int64_t count = std::int64_t{cache.num_kv_heads} * cache.format.block_size * dims;
  KvCacheView block = cache;
  block.num_blocks = 1;
  const ElementRange range = element_range(block, tensor);
  const bool dense = range.begin == 0 && range.end == count;
  return dense ? count * dtype_bytes(cache.format.dtype) : 0;
}

bool same_inside(const KvStrides& a, const KvStrides& b) {
  return a.head == b.head && a.token == b.token;
}

// The same for the scales of (token, head).
std::int64_t dense_scale_bytes(const KvCacheView& cache, const KvScales& scales) {
  const std::int64_t heads = cache.num_kv_heads;
  const std::int64_t tokens = cache.format.block_size;
  const std::int64_t last = (heads - 1) * scales.strides.head + (tokens - 1) * scales.strides.token;
  // They do not overlap.
  const bool dense = (heads == 1 || scales.strides.head > 0) &&
                     (tokens == 1 || scales.strides.token > 0) && last == heads * tokens - 1;
  return dense ? heads * tokens * std::int64_t{sizeof(float)} : 0;
}

// Parts of one layer; false if a block has gaps, or another order on the other side.
bool add_parts(const LayerPair& layer, std::vector<CopyPart>& parts) {
  const KvCacheView& src = layer.src;
  const KvCacheView& dst = layer.dst;
  if (src.format.layout != dst.format.layout) return false;
  const auto add_tensor = [&](KvTensor tensor) {
    const bool is_k = tensor == KvTensor::kK;
    const KvStrides& from = is_k ? src.k_strides : src.v_strides;
    const KvStrides& to = is_k ? dst.k_strides : dst.v_strides;
    const std::int64_t size = dtype_bytes(src.format.dtype);
    parts.push_back({.from = static_cast<const unsigned char*>(is_k ? src.k : src.v),
                     .to = static_cast<unsigned char*>(is_k ? dst.k : dst.v),
                     .from_block = from.block * size,
                     .to_block = to.block * size,
                     .size_bytes = dense_bytes(src, tensor)});
    return same_inside(from, to) && parts.back().size_bytes > 0;
  };
  const auto add_scales = [&](const KvScales& from, const KvScales& to) {
    parts.push_back({.from = reinterpret_cast<const unsigned char*>(from.data),
                     .to = reinterpret_cast<unsigned char*>(to.data),
                     .from_block = from.strides.block * std::int64_t{sizeof(float)},
                     .to_block = to.strides.block * std::int64_t{sizeof(float)},
                     .size_bytes = dense_scale_bytes(src, from)});
    return same_inside(from.strides, to.strides) && parts.back().size_bytes > 0;
  };
  const bool has_scales = src.format.scales == ScaleGranularity::kPerTokenHead;
  if (!add_tensor(KvTensor::kK)) return false;
  if (has_scales && !add_scales(src.k_scales, dst.k_scales)) return false;
  if (src.format.v_in_k) return true;
  if (!add_tensor(KvTensor::kV)) return false;
  return !has_scales || add_scales(src.v_scales, dst.v_scales);
}

// Whether `b` lies right behind `a` in every block, on both sides.
bool follows(const CopyPart& a, const CopyPart& b) {
  return b.from == a.from + a.size_bytes && b.to == a.to + a.size_bytes &&
         a.from_block == b.from_block && a.to_block == b.to_block;
}

}  // namespace

AppendVectors plan_append(const NewKv& new_kv, const KvCacheView& cache,
                          ArrayView<std::int64_t> slots, int num_processors) {
  const KvFormat& format = cache.format;
  const DType source = new_kv.k.dtype;
  const bool sets_scales = format.scales == ScaleGranularity::kPerTokenHead;
  const int dims = std::max(cache.head_dim, format.v_in_k ? 0 : cache.value_dim);
  const bool fits = dtype_bytes(source) == 2 &&
                    (format.dtype == source || dtype_bytes(format.dtype) == 1) &&
                    format.layout == KvLayoutId::kPlain &&
                    (!sets_scales || dims <= kAppendChunk * append_chunks(true) << kMaxLaneBits) &&
                    cache.num_blocks * format.block_size < kMaxIndex &&
                    slots.size * cache.num_kv_heads * dims < kMaxIndex;
  AppendVectors plan;
  if (!fits || !plan_side(new_kv.k, cache, KvTensor::kK, plan.sides[0]) ||
      (!format.v_in_k && !plan_side(new_kv.v, cache, KvTensor::kV, plan.sides[1]))) {
    return {};
  }
  plan.num_tokens = static_cast<std::int32_t>(slots.size);
  plan.sets_scales = sets_scales;
  plan.block_size = format.block_size;
  plan.by_block_size = make_divider(plan.block_size);
  cut_append(plan, cache.num_kv_heads, num_processors);
  return plan;
}

std::vector<CopyPart> plan_copy(std::span<const LayerPair> layers) {
  std::vector<CopyPart> parts;
  for (const LayerPair& layer : layers) {
    std::vector<CopyPart> mine;
    if (!add_parts(layer, mine)) return {};
    for (const CopyPart& part : mine) {
      if (!parts.empty() && follows(parts.back(), part)) {
        parts.back().size_bytes += part.size_bytes;
      } else {
        parts.push_back(part);
      }
    }
  }
  return parts;
}

}  // namespace quire::gpu
