// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/device_store.h"

#include <limits>
#include <vector>

namespace quire::torch_sdpa {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double largest_of(DType dtype) {
  return dtype == DType::kI8 ? 127 : dtype == DType::kF8E4M3 ? 448 : 57344;
}

at::Tensor to_format(DType dtype, const at::Tensor& x) {
  if (dtype == DType::kI8) {
    return x.round().clamp(-128, 127).nan_to_num(0.0).to(at::kChar);
  }
  const double limit = largest_of(dtype);
  return x.clamp(-limit, limit).to(scalar_type_of(dtype));
}

// Scales per (token, head), [tokens, heads, 1]. A divisor that is a number of the host would be
// turned into a factor, which rounds otherwise: it is a tensor.
at::Tensor scales_of(DType dtype, const at::Tensor& x) {
  const at::Tensor largest =
      x.abs().masked_fill(x.isfinite().logical_not(), 0).amax(2, /*keepdim=*/true);
  const at::Tensor scales = largest / at::full_like(largest, largest_of(dtype));
  return at::where(largest.lt(0x1p-100), at::ones_like(scales), scales);
}

// As integers of their size: not every operation knows every format.
at::Tensor as_bits(const at::Tensor& x) {
  return x.view(x.element_size() == 1 ? at::kByte : x.element_size() == 2 ? at::kShort : at::kInt);
}

void store_one(const PlanTensors& plan, const TensorView& new_rows, const KvCacheView& cache,
               KvTensor tensor) {
  const at::Tensor x = view_tensor(new_rows).index_select(0, plan.new_rows);
  const DType dtype = cache.format.dtype;
  at::Tensor values;
  if (cache.format.scales == ScaleGranularity::kNone) {
    values = is_quantized(dtype) ? to_format(dtype, x.to(at::kFloat))
                                 : x.to(at::kFloat).to(scalar_type_of(dtype));
  } else {
    const at::Tensor wide = x.to(at::kFloat);
    at::Tensor scales = view_scales(cache, tensor);
    at::Tensor of_rows;
    if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
      of_rows = scales_of(dtype, wide);
      scales.index_put_({plan.new_blocks, plan.new_tokens}, of_rows);
    } else {
      of_rows = scales[0][0];  // [heads, 1]
    }
    values = to_format(dtype, wide / of_rows);
  }
  at::Tensor target = as_bits(view_cache(cache, tensor));
  target.index_put_({plan.new_blocks, plan.new_tokens}, as_bits(values.contiguous()));
}

struct BlockLists {
  at::Tensor src;
  at::Tensor dst;
};

void copy_between(const at::Tensor& src, const at::Tensor& dst, const BlockLists& blocks,
                  std::int64_t first_token, std::int64_t num_tokens) {
  const at::Tensor from = src.narrow(1, first_token, num_tokens);
  at::Tensor to = dst.narrow(1, first_token, num_tokens);
  to.index_put_({blocks.dst.to(to.device())},
                from.index_select(0, blocks.src.to(from.device())).to(to.device()));
}

}  // namespace

void store_new(const PlanTensors& plan, const NewKv& new_kv, const KvCacheView& cache) {
  if (plan.new_rows.numel() == 0) return;
  store_one(plan, new_kv.k, cache, KvTensor::kK);
  if (!cache.format.v_in_k) store_one(plan, new_kv.v, cache, KvTensor::kV);
}

void copy_tokens(const KvCacheView& src, const KvCacheView& dst, std::span<const BlockCopy> copies,
                 std::int64_t first_token, std::int64_t num_tokens) {
  if (copies.empty() || num_tokens == 0) return;
  std::vector<std::int64_t> from;
  std::vector<std::int64_t> to;
  for (const BlockCopy& copy : copies) {
    from.push_back(copy.src);
    to.push_back(copy.dst);
  }
  const BlockLists blocks{.src = at::tensor(from, at::kLong), .dst = at::tensor(to, at::kLong)};
  for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
    if (tensor == KvTensor::kV && src.format.v_in_k) break;
    copy_between(as_bits(view_cache(src, tensor)), as_bits(view_cache(dst, tensor)), blocks,
                 first_token, num_tokens);
    if (src.format.scales != ScaleGranularity::kPerTokenHead) continue;
    copy_between(view_scales(src, tensor), view_scales(dst, tensor), blocks, first_token,
                 num_tokens);
  }
}

void merge_on_device(std::span<const Partial> partials, ArrayView<float> sinks,
                     const AttentionOutput& output, at::Device device) {
  std::vector<at::Tensor> lses;
  for (const Partial& part : partials) lses.push_back(view_tensor(part.lse));
  const at::Tensor all = at::stack(lses);  // [partials, rows, heads]
  const at::Tensor largest = all.amax(0);  // NaN wins
  const at::Tensor is_empty = largest.eq(kMinusInfinity);
  const at::Tensor base = largest.masked_fill(is_empty, 0);
  const at::Tensor weights = (all - base).exp();  // 0 of what saw nothing
  const at::Tensor sum = weights.sum(0);
  const at::Tensor lse = (base + sum.log()).masked_fill(is_empty, kMinusInfinity);
  at::Tensor factor = sum.reciprocal();
  if (!sinks.empty()) {
    factor = factor / ((view_list(sinks.data, sinks.size, at::kFloat, device) - lse).exp() + 1);
  }
  factor = factor.masked_fill(is_empty, 0);
  at::Tensor out = at::zeros({output.out.shape[0], output.out.shape[1], output.out.shape[2]},
                             at::TensorOptions().dtype(at::kFloat).device(device));
  for (std::size_t i = 0; i < partials.size(); ++i) {
    const at::Tensor skipped = lses[i].eq(kMinusInfinity).unsqueeze(2);
    const at::Tensor values = view_tensor(partials[i].out).to(at::kFloat).masked_fill(skipped, 0);
    out += weights[static_cast<std::int64_t>(i)].unsqueeze(2) * values;
  }
  view_mutable(output.out).copy_(out * factor.unsqueeze(2));
  if (output.lse.present()) view_mutable(output.lse).copy_(lse);
}

}  // namespace quire::torch_sdpa
