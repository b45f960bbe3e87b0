// SPDX-License-Identifier: Apache-2.0
// New K and V into the cache: any strides, any layout that is not opaque, rounded once to the
// format of the cache, with the scale of a (token, head) where the cache keeps those. What
// append_vectors.h does not take comes here: a team stores one row of K and V of one head; lanes
// take four neighbouring dims at a time.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernels/plan_items.h"
#include "gpu/transfer_args.h"
#include "layout/kv_offset.h"

namespace quire::gpu {

struct alignas(8) Four16 {
  std::uint16_t x[4];
};
struct alignas(16) Four32 {
  float x[4];
};
struct alignas(4) Four8 {
  std::uint8_t x[4];
};

QUIRE_DEVICE bool is_aligned(const void* data, std::uint64_t bytes) {
  return reinterpret_cast<std::uint64_t>(data) % bytes == 0;
}

// Elements [dim, dim + count) of a row of the caller as f32; count <= 4.
QUIRE_DEVICE void load_four(const TensorView& rows, std::int64_t row, std::int64_t head, int dim,
                            int count, float (&x)[4]) {
  const std::int64_t at = row * rows.strides[0] + head * rows.strides[1] + dim * rows.strides[2];
  if (count == 4 && rows.strides[2] == 1) {
    if (rows.dtype == DType::kF32) {
      const float* from = static_cast<const float*>(rows.data) + at;
      if (is_aligned(from, sizeof(Four32))) {
        const Four32 four = *reinterpret_cast<const Four32*>(from);
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) x[i] = four.x[i];
        return;
      }
    } else {
      const std::uint16_t* from = static_cast<const std::uint16_t*>(rows.data) + at;
      if (is_aligned(from, sizeof(Four16))) {
        const Four16 four = *reinterpret_cast<const Four16*>(from);
        const bool bf16 = rows.dtype == DType::kBF16;
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          x[i] = bf16 ? to_float(BFloat16{four.x[i]}) : to_float(Float16{four.x[i]});
        }
        return;
      }
    }
  }
  for (int i = 0; i < count; ++i)
    x[i] = load_float(rows.dtype, rows.data, at + i * rows.strides[2]);
}

// Rounds and stores four; x is already divided by the scale.
QUIRE_DEVICE void store_four(const KvCacheView& cache, KvTensor tensor, void* data,
                             std::int64_t block, int head, std::int64_t token, int dim, int count,
                             const float (&x)[4]) {
  const DType dtype = cache.format.dtype;
  const std::int64_t at = element_offset(cache, tensor, block, head, token, dim);
  if (count == 4 && cache.format.layout == KvLayoutId::kPlain) {
    if (dtype == DType::kBF16 || dtype == DType::kF16) {
      std::uint16_t* to = static_cast<std::uint16_t*>(data) + at;
      if (is_aligned(to, sizeof(Four16))) {
        Four16 four;
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          four.x[i] = dtype == DType::kBF16 ? from_float<BFloat16>(x[i]).bits
                                            : from_float<Float16>(x[i]).bits;
        }
        *reinterpret_cast<Four16*>(to) = four;
        return;
      }
    } else if (dtype != DType::kF32) {
      std::uint8_t* to = static_cast<std::uint8_t*>(data) + at;
      if (is_aligned(to, sizeof(Four8))) {
        Four8 four;
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          four.x[i] = dtype == DType::kF8E4M3 ? from_float<Float8E4M3>(x[i]).bits
                      : dtype == DType::kF8E5M2
                          ? from_float<Float8E5M2>(x[i]).bits
                          : static_cast<std::uint8_t>(from_float<std::int8_t>(x[i]));
        }
        *reinterpret_cast<Four8*>(to) = four;
        return;
      }
    }
  }
  for (int i = 0; i < count; ++i) {
    store_float(dtype, data, element_offset(cache, tensor, block, head, token, dim + i), x[i]);
  }
}

// One team: one row of K or V.
QUIRE_DEVICE void append_row(const AppendArgs& args, KvTensor tensor, std::int64_t row,
                             std::int64_t slot, int head) {
  const KvCacheView& cache = args.cache;
  const bool is_k = tensor == KvTensor::kK;
  const TensorView& rows = is_k ? args.new_kv.k : args.new_kv.v;
  const KvScales& scales = is_k ? cache.k_scales : cache.v_scales;
  const int num_dims = is_k ? cache.head_dim : cache.value_dim;
  const std::int64_t block = slot / cache.format.block_size;
  const std::int64_t token = slot - block * cache.format.block_size;
  const auto count_at = [num_dims](int dim) { return num_dims - dim < 4 ? num_dims - dim : 4; };

  float scale = 1.0F;
  if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
    float largest = 0.0F;
    for (int dim = 4 * lane(); dim < num_dims; dim += 4 * kTeam) {
      float x[4];
      load_four(rows, row, head, dim, count_at(dim), x);
      for (int i = 0; i < count_at(dim); ++i) largest = max_of(largest, finite_magnitude(x[i]));
    }
    scale = token_head_scale(cache.format.dtype, team_max(largest));
    if (lane() == 0) scales.data[scale_offset(scales, block, head, token)] = scale;
  } else if (scales.data != nullptr) {
    scale = scales.data[scale_offset(scales, block, head, token)];
  }
  const bool is_scaled = scales.data != nullptr;
  for (int dim = 4 * lane(); dim < num_dims; dim += 4 * kTeam) {
    float x[4];
    load_four(rows, row, head, dim, count_at(dim), x);
    if (is_scaled) {
      for (int i = 0; i < count_at(dim); ++i) {
        x[i] = number_formats_internal::ieee_divide(x[i], scale);
      }
    }
    store_four(cache, tensor, is_k ? cache.k : cache.v, block, head, token, dim, count_at(dim), x);
  }
}

QUIRE_DEVICE void append_rows(const AppendArgs& args) {
  constexpr int kTeams = kAppendThreads / kTeam;
  const std::int64_t num_rows = args.slots.size * args.cache.num_kv_heads;
  for (std::int64_t i = static_cast<std::int64_t>(block_index()) * kTeams + team(); i < num_rows;
       i += static_cast<std::int64_t>(num_blocks()) * kTeams) {
    const std::int64_t row = i / args.cache.num_kv_heads;
    const int head = static_cast<int>(i - row * args.cache.num_kv_heads);
    const std::int64_t slot = args.slots.data[row];
    if (slot < 0) continue;
    if (slot >= args.num_slots) {  // only metadata that came on the device can be wrong here
      if (lane() == 0) {
        report_fault(args.counts, args.host_fault, fault_code(Fault::kSlot, 0, row));
      }
      continue;
    }
    append_row(args, KvTensor::kK, row, slot, head);
    if (!args.cache.format.v_in_k) append_row(args, KvTensor::kV, row, slot, head);
  }
}

}  // namespace quire::gpu
