// SPDX-License-Identifier: Apache-2.0
#include "layout/kv_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "layout/kv_extent.h"
#include "layout/kv_offset.h"
#include "layout/kv_rows.h"

namespace quire {
namespace {

// Elements move as bytes: their format does not matter, only their size.
void copy_bytes(std::byte* dst, const std::byte* src, std::int64_t size_bytes) noexcept {
  std::memcpy(dst, src, static_cast<std::size_t>(size_bytes));
}

// The tokens [first, last) of K or V of one block, all heads, in a source and in a destination.
struct Region {
  const std::byte* src;  // head 0, token 0 of the source block
  std::byte* dst;        // and of the destination block
  KvStrides from;        // elements
  KvStrides to;
  std::int64_t num_heads;
  std::int64_t dims;
  std::int64_t first;
  std::int64_t last;
  std::int64_t block_size;
  std::int64_t element_bytes;

  std::int64_t num_tokens() const { return last - first; }
  const std::byte* src_head(std::int64_t head) const {
    return src + head * from.head * element_bytes;
  }
  std::byte* dst_head(std::int64_t head) const { return dst + head * to.head * element_bytes; }
};

// Plain to plain: rows, joined into longer pieces along an axis that is dense on both sides.
void copy_plain(const Region& r) noexcept {
  const std::int64_t tokens = r.num_tokens();
  const auto dense = [](std::int64_t extent, std::int64_t a, std::int64_t b, std::int64_t inner) {
    return extent == 1 || (a == inner && b == inner);
  };
  std::int64_t piece = r.dims;
  std::int64_t num_heads = r.num_heads;
  std::int64_t num_tokens = tokens;
  if (dense(tokens, r.from.token, r.to.token, r.dims)) {
    piece *= tokens;
    num_tokens = 1;
    if (dense(r.num_heads, r.from.head, r.to.head, piece)) {
      piece *= r.num_heads;
      num_heads = 1;
    }
  } else if (dense(r.num_heads, r.from.head, r.to.head, r.dims)) {
    piece *= r.num_heads;
    num_heads = 1;
    if (dense(tokens, r.from.token, r.to.token, piece)) {
      piece *= tokens;
      num_tokens = 1;
    }
  }
  for (std::int64_t head = 0; head < num_heads; ++head) {
    for (std::int64_t t = r.first; t < r.first + num_tokens; ++t) {
      copy_bytes(r.dst_head(head) + t * r.to.token * r.element_bytes,
                 r.src_head(head) + t * r.from.token * r.element_bytes, piece * r.element_bytes);
    }
  }
}

// Tiled to tiled, part of a block: in a tile of K the tokens of one dim pair are consecutive.
void copy_tiled_k(const Region& r, std::int64_t head) noexcept {
  for (std::int64_t begin = r.first; begin < r.last;) {
    const std::int64_t end = std::min(r.last, (begin / kPairTile + 1) * kPairTile);
    for (std::int64_t dim = 0; dim < r.dims; dim += 2) {
      const std::int64_t offset = pair_tiled_k(r.dims, begin, dim) * r.element_bytes;
      copy_bytes(r.dst_head(head) + offset, r.src_head(head) + offset,
                 (end - begin) * 2 * r.element_bytes);
    }
    begin = end;
  }
}

// In a tile of V token pairs are consecutive; a token without its partner is every other element.
void copy_tiled_v(const Region& r, std::int64_t head) noexcept {
  const std::int64_t pairs_begin = (r.first + 1) / 2 * 2;
  const std::int64_t pairs_end = std::max(r.last / 2 * 2, pairs_begin);
  const std::byte* src = r.src_head(head);
  std::byte* dst = r.dst_head(head);
  const auto copy_single = [&](std::int64_t token, std::int64_t first_dim) {
    for (std::int64_t dim = first_dim; dim < first_dim + kPairTile; ++dim) {
      const std::int64_t offset = pair_tiled_v(r.block_size, token, dim) * r.element_bytes;
      copy_bytes(dst + offset, src + offset, r.element_bytes);
    }
  };
  for (std::int64_t dim = 0; dim < r.dims; dim += kPairTile) {
    if (r.first < pairs_begin) copy_single(r.first, dim);
    const std::int64_t offset = pair_tiled_v(r.block_size, pairs_begin, dim) * r.element_bytes;
    copy_bytes(dst + offset, src + offset, (pairs_end - pairs_begin) * kPairTile * r.element_bytes);
    if (pairs_end < r.last) copy_single(pairs_end, dim);
  }
}

void copy_tiled(const Region& r, bool is_k) noexcept {
  const std::int64_t head_bytes = r.block_size * r.dims * r.element_bytes;
  for (std::int64_t head = 0; head < r.num_heads; ++head) {
    if (r.num_tokens() == r.block_size) {
      copy_bytes(r.dst_head(head), r.src_head(head), head_bytes);
    } else if (is_k) {
      copy_tiled_k(r, head);
    } else {
      copy_tiled_v(r, head);
    }
  }
}

// The elements of a row in one of two layouts, as the other one groups them: runs of equal length.
struct Runs {
  std::int64_t stride;  // of elements in a run
  std::int64_t step;    // of runs
};

// REQUIRES: dims is a multiple of run, the length of a run of the tiled layout.
Runs runs_of(const RowShape& shape, std::int64_t run) {
  return {shape.stride, shape.run == run ? shape.run_stride : run};
}

// Between plain and tiled: row by row, run by run of the tiled side.
template <int kElementBytes, int kRun>
void convert(const KvCacheView& src, const KvCacheView& dst, KvTensor tensor,
             const BlockRegionCopy& copy) noexcept {
  const Runs from = runs_of(row_shape(src, tensor), kRun);
  const Runs to = runs_of(row_shape(dst, tensor), kRun);
  const auto* src_base = static_cast<const std::byte*>(tensor == KvTensor::kK ? src.k : src.v);
  auto* dst_base = static_cast<std::byte*>(tensor == KvTensor::kK ? dst.k : dst.v);
  const std::int64_t num_runs = row_dims(src, tensor) / kRun;
  const std::int64_t last = copy.first_token + copy.num_tokens;
  for (std::int64_t head = 0; head < src.num_kv_heads; ++head) {
    for (std::int64_t token = copy.first_token; token < last; ++token) {
      std::byte* to_run =
          dst_base + element_offset(dst, tensor, copy.blocks.dst, head, token, 0) * kElementBytes;
      const std::byte* from_run =
          src_base + element_offset(src, tensor, copy.blocks.src, head, token, 0) * kElementBytes;
      for (std::int64_t run = 0; run < num_runs; ++run) {
        for (std::int64_t i = 0; i < kRun; ++i) {
          std::memcpy(to_run + i * to.stride * kElementBytes,
                      from_run + i * from.stride * kElementBytes, kElementBytes);
        }
        to_run += to.step * kElementBytes;
        from_run += from.step * kElementBytes;
      }
    }
  }
}

template <int kElementBytes>
void convert(const KvCacheView& src, const KvCacheView& dst, KvTensor tensor,
             const BlockRegionCopy& copy) noexcept {
  return tensor == KvTensor::kK ? convert<kElementBytes, 2>(src, dst, tensor, copy)
                                : convert<kElementBytes, kPairTile>(src, dst, tensor, copy);
}

void copy_tensor(const KvCacheView& src, const KvCacheView& dst, KvTensor tensor,
                 const BlockRegionCopy& copy) noexcept {
  const bool is_k = tensor == KvTensor::kK;
  const std::int64_t element_bytes = dtype_bytes(src.format.dtype);
  if (src.format.layout != dst.format.layout) {
    if (element_bytes == 1) return convert<1>(src, dst, tensor, copy);
    if (element_bytes == 2) return convert<2>(src, dst, tensor, copy);
    return convert<4>(src, dst, tensor, copy);
  }
  const KvStrides& from = is_k ? src.k_strides : src.v_strides;
  const KvStrides& to = is_k ? dst.k_strides : dst.v_strides;
  const Region region = {
      .src = static_cast<const std::byte*>(is_k ? src.k : src.v) +
             copy.blocks.src * from.block * element_bytes,
      .dst = static_cast<std::byte*>(is_k ? dst.k : dst.v) +
             copy.blocks.dst * to.block * element_bytes,
      .from = from,
      .to = to,
      .num_heads = src.num_kv_heads,
      .dims = row_dims(src, tensor),
      .first = copy.first_token,
      .last = copy.first_token + copy.num_tokens,
      .block_size = src.format.block_size,
      .element_bytes = element_bytes,
  };
  return src.format.layout == KvLayoutId::kPlain ? copy_plain(region) : copy_tiled(region, is_k);
}

void copy_scales(const KvScales& src, const KvScales& dst, std::int64_t num_heads,
                 const BlockRegionCopy& copy) noexcept {
  const std::int64_t last = copy.first_token + copy.num_tokens;
  for (std::int64_t head = 0; head < num_heads; ++head) {
    for (std::int64_t token = copy.first_token; token < last; ++token) {
      dst.data[scale_offset(dst, copy.blocks.dst, head, token)] =
          src.data[scale_offset(src, copy.blocks.src, head, token)];
    }
  }
}

void copy_opaque(const KvCacheView& src, const KvCacheView& dst, const BlockCopy& copy) noexcept {
  copy_bytes(static_cast<std::byte*>(dst.k) + copy.dst * dst.k_strides.block,
             static_cast<const std::byte*>(src.k) + copy.src * src.k_strides.block,
             src.opaque_k_bytes);
  if (src.format.v_in_k || src.opaque_v_bytes == 0) return;
  copy_bytes(static_cast<std::byte*>(dst.v) + copy.dst * dst.v_strides.block,
             static_cast<const std::byte*>(src.v) + copy.src * src.v_strides.block,
             src.opaque_v_bytes);
}

void copy_layer(const KvCacheView& src, const KvCacheView& dst,
                const BlockRegionCopy& copy) noexcept {
  const bool has_v = !src.format.v_in_k;
  // An opaque block holds all that belongs to its tokens, scales included.
  if (is_opaque(src.format.layout)) return copy_opaque(src, dst, copy.blocks);
  copy_tensor(src, dst, KvTensor::kK, copy);
  if (has_v) copy_tensor(src, dst, KvTensor::kV, copy);
  if (src.format.scales != ScaleGranularity::kPerTokenHead) return;
  copy_scales(src.k_scales, dst.k_scales, src.num_kv_heads, copy);
  if (has_v) copy_scales(src.v_scales, dst.v_scales, src.num_kv_heads, copy);
}

}  // namespace

void copy_blocks_host(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy> copies) noexcept {
  for (std::size_t layer = 0; layer < src.size(); ++layer) {
    const int block_size = src[layer].format.block_size;
    for (const BlockCopy& copy : copies) {
      copy_layer(src[layer], dst[layer], {copy, 0, block_size});
    }
  }
}

void copy_region_host(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      const BlockRegionCopy& copy) noexcept {
  if (copy.num_tokens == 0) return;
  for (std::size_t layer = 0; layer < src.size(); ++layer) copy_layer(src[layer], dst[layer], copy);
}

}  // namespace quire
