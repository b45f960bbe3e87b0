// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/device_attend.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "backends/torch/part.h"
#include "base/check.h"

namespace quire::torch_sdpa {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kMaxFlashDims = 256;
// From so many queries on torch may choose among its kernels: cuDNN makes a plan for every shape.
constexpr std::int64_t kManyQueries = 256;
// What the efficient kernel wants rows of a mask to be multiples of.
constexpr std::int64_t kMaskAlignment = 16;
// Of custom_mask_type of the efficient kernel.
constexpr std::int64_t kNoMask = 0;
constexpr std::int64_t kLowerRight = 2;

std::int64_t round_up(std::int64_t x, std::int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// What a kernel gives: out [rows, num_q_heads, dims] and lse [rows, num_q_heads], f32.
struct Result {
  at::Tensor out;
  at::Tensor lse;
  at::Tensor empty;       // [rows, num_q_heads or 1], bool: saw no key; or undefined
  at::Tensor not_finite;  // [rows, num_q_heads], bool: saw a key that is not; or undefined
};

class Call {
 public:
  Call(const DeviceProblem& problem, const DeviceCall& call, const DenseKv& kv)
      : p_(problem),
        call_(call),
        kv_(kv),
        spec_(problem.spec),
        size_(call.is_ragged ? 1 : std::ssize(call.sequences)),
        kv_heads_(spec_.num_kv_heads),
        group_(spec_.head_group()),
        dims_(device_dims(spec_)),
        type_(scalar_type_of(device_compute_type(spec_))) {}

  Result run() const {
    if (call_.hiding == Hiding::kAll) return nothing();
    if (takes_flash(spec_, p_.device) && call_.hiding <= Hiding::kBand) {
      Result result = flash();
      if (call_.has_empty_rows) result.empty = empty_ranges();
      if (kv_.not_finite.defined()) result.not_finite = sees_not_finite();
      return result;
    }
    return folded();
  }

  at::Tensor rows() const { return p_.plan.rows.narrow(0, call_.first_row, call_.num_rows); }
  bool needs_lse() const { return p_.output.lse.present() || !p_.params.sinks.empty(); }

 private:
  Result nothing() const {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(p_.device);
    return {.out = at::zeros({call_.num_rows, spec_.num_q_heads, spec_.value_dim}, options),
            .lse = at::full({call_.num_rows, spec_.num_q_heads}, kMinusInfinity, options),
            .empty = at::ones({call_.num_rows, 1}, options.dtype(at::kBool)),
            .not_finite = {}};
  }

  at::Tensor ranges(const at::Tensor& list) const {
    return list.narrow(0, call_.first_row, call_.num_rows);
  }
  at::Tensor empty_ranges() const {
    return ranges(p_.plan.range_begins).ge(ranges(p_.plan.range_ends)).unsqueeze(1);
  }

  // Rows by q head, of rows by kv head.
  at::Tensor by_q_head(const at::Tensor& rows) const {
    return rows.unsqueeze(2)
        .expand({call_.num_rows, kv_heads_, group_})
        .reshape({call_.num_rows, spec_.num_q_heads});
  }
  // Which rows see a key that is not finite, without a bias.
  at::Tensor sees_not_finite() const {
    if (call_.hiding == Hiding::kTree) {
      return by_q_head(visible().unsqueeze(2).logical_and(keys_not_finite()).any(1));
    }
    const at::Tensor first = ranges(p_.plan.row_first_keys);
    const at::Tensor before = kv_.not_finite.index_select(0, first + ranges(p_.plan.range_begins));
    const at::Tensor after = kv_.not_finite.index_select(0, first + ranges(p_.plan.range_ends));
    return by_q_head(after.gt(before));
  }
  // The same of what a mask shows, [sequences, num_q_heads, q_len, keys].
  at::Tensor sees_not_finite(const at::Tensor& added) const {
    const at::Tensor keys = keys_not_finite()
                                .view({size_, call_.num_keys, kv_heads_, 1})
                                .expand({size_, call_.num_keys, kv_heads_, group_})
                                .reshape({size_, call_.num_keys, spec_.num_q_heads})
                                .transpose(1, 2)
                                .unsqueeze(2);
    return added.ne(kMinusInfinity)
        .logical_and(keys)
        .any(3)
        .transpose(1, 2)
        .reshape({call_.num_rows, spec_.num_q_heads});
  }
  // [keys, num_kv_heads], bool.
  at::Tensor keys_not_finite() const {
    return kv_.not_finite.narrow(0, 1, call_.total_keys)
        .gt(kv_.not_finite.narrow(0, 0, call_.total_keys));
  }

  // [rows, num_q_heads, dims] in the format that is computed in.
  at::Tensor queries() const {
    const at::Tensor all = view_tensor(p_.q);
    at::Tensor q = call_.q_begin >= 0 ? all.narrow(0, call_.q_begin, call_.num_rows)
                                      : all.index_select(0, rows());
    q = q.to(type_);
    if (dims_ != spec_.head_dim) q = at::constant_pad_nd(q, {0, dims_ - spec_.head_dim});
    return is_aligned(q) ? q : q.clone(at::MemoryFormat::Contiguous);
  }

  // Kernels read 16 bytes at a time.
  static bool is_aligned(const at::Tensor& q) {
    const auto is_even = [&](std::int64_t elements) {
      return elements * static_cast<std::int64_t>(q.element_size()) % 16 == 0;
    };
    return reinterpret_cast<std::uintptr_t>(q.data_ptr()) % 16 == 0 && is_even(q.stride(0)) &&
           is_even(q.stride(1)) && q.stride(2) == 1;
  }

  // K or V as [sequences, keys, heads, dims].
  at::Tensor by_sequence(const at::Tensor& x) const {
    return x.view({size_, call_.num_keys, kv_heads_, dims_});
  }

  bool is_causal() const { return call_.hiding == Hiding::kBand && spec_.mask.causal; }
  std::optional<std::int64_t> window(std::int64_t keys) const {
    if (call_.hiding != Hiding::kBand || keys < 0) return std::nullopt;
    return keys;
  }

  Result flash() const {
    const bool has_window =
        call_.hiding == Hiding::kBand && (spec_.mask.window_left >= 0 || !spec_.mask.causal);
    const bool is_square = call_.q_len == call_.num_keys || call_.hiding == Hiding::kNothing;
    if (!call_.is_ragged && !has_window && is_square && call_.q_len >= kManyQueries &&
        !needs_lse()) {
      // Its choice may be switched off; then flash is called by its name, never the math path.
      if (const std::optional<Result> result = chosen_by_torch()) return *result;
    }
    const std::optional<std::int64_t> left = window(spec_.mask.window_left);
    const std::optional<std::int64_t> right =
        spec_.mask.causal ? std::nullopt : window(spec_.mask.window_right);
    at::Tensor q = queries();
    if (call_.is_ragged) {
      const std::int64_t num_bounds = std::ssize(call_.sequences) + 1;
      const auto forward = at::_flash_attention_forward(
          q, kv_.k, kv_.v, p_.plan.q_bounds.narrow(0, call_.first_bound, num_bounds),
          p_.plan.key_bounds.narrow(0, call_.first_bound, num_bounds), call_.q_len, call_.num_keys,
          0.0, is_causal(), false, scale(), left, right);
      return {.out = std::get<0>(forward),
              .lse = ragged_lse(std::get<1>(forward)),
              .empty = {},
              .not_finite = {}};
    }
    q = q.reshape({size_, call_.q_len, spec_.num_q_heads, dims_});
    const auto forward = at::_flash_attention_forward(
        q, by_sequence(kv_.k), by_sequence(kv_.v), std::nullopt, std::nullopt, call_.q_len,
        call_.num_keys, 0.0, is_causal(), false, scale(), left, right);
    return {
        .out = std::get<0>(forward).reshape({call_.num_rows, spec_.num_q_heads, dims_}),
        .lse = std::get<1>(forward).transpose(1, 2).reshape({call_.num_rows, spec_.num_q_heads}),
        .empty = {},
        .not_finite = {}};
  }

  at::Tensor ragged_lse(const at::Tensor& lse) const {
    const bool fits =
        lse.dim() == 2 && lse.size(0) == spec_.num_q_heads && lse.size(1) == call_.num_rows;
    if (fits) return lse.transpose(0, 1);
    if (!needs_lse()) return {};
    fail(ErrorCode::kUnsupported, "torch ", version(),
         " gives the log-sum-exp of a ragged batch in another shape");
  }

  // No mask, or a square causal one: what torch itself finds best. Nothing if that is its math
  // path, which rounds scores and is slow.
  std::optional<Result> chosen_by_torch() const {
    constexpr std::int64_t kMath = 0;
    const at::Tensor q =
        queries().reshape({size_, call_.q_len, spec_.num_q_heads, dims_}).transpose(1, 2);
    const at::Tensor k = by_sequence(kv_.k).transpose(1, 2);
    const at::Tensor v = by_sequence(kv_.v).transpose(1, 2);
    const bool enable_gqa = group_ > 1;
    const std::int64_t choice =
        at::_fused_sdp_choice(q, k, v, std::nullopt, 0.0, is_causal(), scale(), enable_gqa);
    if (choice == kMath) return std::nullopt;
    const at::Tensor out = at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, is_causal(),
                                                            scale(), enable_gqa);
    return Result{.out = out.transpose(1, 2).reshape({call_.num_rows, spec_.num_q_heads, dims_}),
                  .lse = {},
                  .empty = {},
                  .not_finite = {}};
  }

  double scale() const { return static_cast<double>(p_.params.scale); }

  // What is added to the scores: [sequences or 1, num_q_heads or 1, q_len, keys], f32.
  at::Tensor mask() const {
    at::Tensor mask =
        at::zeros({1, 1, 1, 1}, at::TensorOptions().dtype(at::kFloat).device(p_.device));
    if (!p_.params.alibi_slopes.empty()) mask = mask - alibi();
    if (p_.params.bias.present()) mask = mask + bias();
    return at::where(visible(), mask, kMinusInfinity).to(at::kFloat);
  }
  // [q_len, keys]
  at::Tensor visible() const {
    const std::int64_t q_len = call_.q_len;
    if (call_.hiding == Hiding::kTree) {
      return p_.plan.patterns.narrow(0, call_.first_pattern, q_len * call_.num_keys)
          .view({q_len, call_.num_keys})
          .to(at::kBool);
    }
    const at::Tensor keys =
        at::arange(call_.num_keys, at::TensorOptions().dtype(at::kLong).device(p_.device));
    const auto column = [&](const at::Tensor& list) {
      return list.narrow(0, call_.first_row, q_len).unsqueeze(1);
    };
    return keys.ge(column(p_.plan.range_begins)).logical_and(keys.lt(column(p_.plan.range_ends)));
  }
  // [num_q_heads, q_len, keys]; sequences of equal lengths have equal distances.
  at::Tensor alibi() const {
    const at::Tensor rows =
        p_.plan.row_positions.narrow(0, call_.first_row, call_.q_len).unsqueeze(1);
    const at::Tensor keys = p_.plan.key_positions.narrow(0, call_.first_key, call_.num_keys);
    const ArrayView<float>& slopes = p_.params.alibi_slopes;
    return view_list(slopes.data, slopes.size, at::kFloat, p_.device).view({-1, 1, 1}) *
           (rows - keys).abs().to(at::kFloat);
  }
  // [sequences, num_q_heads, q_len, keys]
  at::Tensor bias() const {
    const at::Tensor all = view_tensor(p_.params.bias);
    std::vector<at::Tensor> parts;
    for (const std::int64_t s : call_.sequences) {
      parts.push_back(all.select(0, s)
                          .narrow(1, 0, call_.q_len)
                          .narrow(2, call_.first_key_seen, call_.num_keys)
                          .to(at::kFloat));
    }
    return at::stack(parts);
  }

  // The query heads of a group as rows of their kv head, so that K and V are not copied per head.
  Result folded() const {
    const bool adds = !p_.params.alibi_slopes.empty() || p_.params.bias.present();
    const bool is_plain_band = call_.hiding == Hiding::kBand && spec_.mask.causal &&
                               spec_.mask.window_left < 0 && group_ == 1 && !p_.device.is_cpu();
    const DenseKv kv{.k = by_sequence(kv_.k), .v = by_sequence(kv_.v), .not_finite = {}};
    std::optional<at::Tensor> bias;
    at::Tensor empty;
    at::Tensor not_finite;
    if (adds || (call_.hiding != Hiding::kNothing && !is_plain_band)) {
      const at::Tensor added = mask();
      empty = added.eq(kMinusInfinity).all(3).expand({size_, spec_.num_q_heads, call_.q_len});
      empty = empty.transpose(1, 2).reshape({call_.num_rows, spec_.num_q_heads});
      bias = fold_mask(added);
      if (p_.params.bias.present() && kv_.not_finite.defined()) {
        not_finite = sees_not_finite(added);
      }
    } else if (call_.has_empty_rows) {
      empty = empty_ranges();
    }
    if (kv_.not_finite.defined() && !not_finite.defined()) not_finite = sees_not_finite();
    const at::Tensor q = queries()
                             .reshape({size_, call_.q_len, kv_heads_, group_, dims_})
                             .transpose(2, 3)
                             .reshape({size_, call_.q_len * group_, kv_heads_, dims_});
    Result result =
        p_.device.is_cpu() ? on_cpu(q, kv, bias) : efficient(q, kv, bias, !bias && is_plain_band);
    result.empty = empty;
    result.not_finite = not_finite;
    return result;
  }

  // [sequences, num_kv_heads, q_len * group, keys], rows aligned.
  at::Tensor fold_mask(const at::Tensor& added) const {
    const std::int64_t heads = added.size(1) == 1 ? 1 : kv_heads_;
    const at::Tensor split =
        added.size(1) == 1
            ? added.unsqueeze(2).expand({added.size(0), 1, group_, call_.q_len, call_.num_keys})
            : added.view({added.size(0), kv_heads_, group_, call_.q_len, call_.num_keys});
    const at::Tensor padded = at::empty(
        {added.size(0), heads, call_.q_len, group_, round_up(call_.num_keys, kMaskAlignment)},
        at::TensorOptions().dtype(type_).device(p_.device));
    padded.narrow(4, 0, call_.num_keys).copy_(split.transpose(2, 3));
    return padded.view({added.size(0), heads, call_.q_len * group_, -1})
        .narrow(3, 0, call_.num_keys)
        .expand({size_, kv_heads_, call_.q_len * group_, call_.num_keys});
  }

  // From [sequences, q_len * group, num_kv_heads, ...] to rows.
  at::Tensor unfold(const at::Tensor& x) const {
    std::vector<std::int64_t> shape = {size_, call_.q_len, group_, kv_heads_};
    std::vector<std::int64_t> rows = {call_.num_rows, spec_.num_q_heads};
    if (x.dim() == 4) {
      shape.push_back(x.size(3));
      rows.push_back(x.size(3));
    }
    return x.reshape(shape).transpose(2, 3).reshape(rows);
  }

  Result efficient(const at::Tensor& q, const DenseKv& kv, const std::optional<at::Tensor>& bias,
                   bool causal) const {
    const auto forward = at::_efficient_attention_forward(
        q, kv.k, kv.v, bias, std::nullopt, std::nullopt, std::nullopt, std::nullopt, 0.0,
        causal ? kLowerRight : kNoMask, /*compute_log_sumexp=*/needs_lse(), scale());
    Result result{.out = unfold(std::get<0>(forward)), .lse = {}, .empty = {}, .not_finite = {}};
    if (needs_lse()) {
      const at::Tensor lse = std::get<1>(forward).narrow(2, 0, q.size(1));  // its rows are padded
      result.lse = unfold(lse.transpose(1, 2));
    }
    return result;
  }

  Result on_cpu(const at::Tensor& q, const DenseKv& kv,
                const std::optional<at::Tensor>& bias) const {
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        q.transpose(1, 2), kv.k.transpose(1, 2), kv.v.transpose(1, 2), 0.0, false, bias, scale());
    return {.out = unfold(out.transpose(1, 2)),
            .lse = unfold(lse.transpose(1, 2)),
            .empty = {},
            .not_finite = {}};
  }

  const DeviceProblem& p_;
  const DeviceCall& call_;
  const DenseKv& kv_;
  const AttentionSpec& spec_;
  std::int64_t size_;  // sequences of the call
  std::int64_t kv_heads_;
  std::int64_t group_;
  std::int64_t dims_;
  at::ScalarType type_;
};

// K or V of the keys of a call, as [keys, num_kv_heads, dims of the cache].
void gather_one(const DeviceCall& call, const PlanTensors& plan, const KvCacheView& cache,
                KvTensor tensor, at::Tensor& target) {
  const at::Tensor blocks = plan.key_blocks.narrow(0, call.first_key, call.total_keys);
  const at::Tensor tokens = plan.key_tokens.narrow(0, call.first_key, call.total_keys);
  const c10::List<std::optional<at::Tensor>> where({blocks, tokens});
  const WideView wide = view_wide(cache, tensor);
  const at::ScalarType stored = scalar_type_of(cache.format.dtype);
  const std::int64_t dims = tensor == KvTensor::kK ? cache.head_dim : cache.value_dim;
  if (target.scalar_type() == stored && target.size(2) == dims) {
    at::Tensor out = target.view(wide.tensor.scalar_type());
    at::index_outf(wide.tensor, where, out);
    return;
  }
  at::Tensor rows = at::index(wide.tensor, where).view(stored);
  if (cache.format.scales != ScaleGranularity::kNone) {
    rows = rows.to(at::kFloat) * at::index(view_scales(cache, tensor), where);
  }
  target.narrow(2, 0, dims).copy_(rows);
}

// Zeroes rows of K or V that are not finite; returns which were, [keys, num_kv_heads].
at::Tensor clear_not_finite(at::Tensor& rows) {
  // The largest magnitude is not finite where any is not.
  const at::Tensor largest =
      at::linalg_vector_norm(rows, std::numeric_limits<double>::infinity(), at::IntArrayRef{2});
  at::Tensor found = largest.isfinite().logical_not();
  rows.masked_fill_(found.unsqueeze(2), 0);
  return found;
}

}  // namespace

DType device_compute_type(const AttentionSpec& spec) noexcept {
  // Kernels take masks in the format of the queries, which would round what is added.
  return spec.features.alibi || spec.features.bias ? DType::kF32 : compute_type(spec);
}

std::int64_t device_dims(const AttentionSpec& spec) noexcept {
  return round_up(std::max(spec.head_dim, spec.value_dim), 8);
}

bool takes_flash(const AttentionSpec& spec, at::Device device) noexcept {
  return !device.is_cpu() && device_compute_type(spec) != DType::kF32 &&
         device_dims(spec) <= kMaxFlashDims;
}

std::vector<std::int64_t> dense_shape(const AttentionSpec& spec, const DeviceCall& call) {
  return {call.total_keys, spec.num_kv_heads, device_dims(spec)};
}

std::vector<std::int64_t> count_shape(const AttentionSpec& spec, const DeviceCall& call) {
  const bool hides = call.hiding == Hiding::kBand || call.hiding == Hiding::kRanges ||
                     call.hiding == Hiding::kTree || spec.features.bias;
  if (!hides || call.total_keys == 0) return {};
  return {call.total_keys + 1, spec.num_kv_heads};
}

void gather(const AttentionSpec& spec, const DeviceCall& call, const PlanTensors& plan,
            const KvCacheView& cache, DenseKv& kv) {
  if (call.total_keys == 0) return;
  gather_one(call, plan, cache, KvTensor::kK, kv.k);
  if (!spec.kv.v_in_k) gather_one(call, plan, cache, KvTensor::kV, kv.v);
  if (!kv.not_finite.defined()) return;
  at::Tensor found = clear_not_finite(kv.k);
  if (!spec.kv.v_in_k) found = found.logical_or(clear_not_finite(kv.v));
  // Along rows of memory: down few columns torch goes key by key.
  at::Tensor counts = kv.not_finite.narrow(0, 1, call.total_keys);
  counts.copy_(found.t().contiguous().cumsum(1, at::kLong).t());
}

void attend_call(const DeviceProblem& p, const DeviceCall& call, const DenseKv& kv) {
  const Call attention(p, call, kv);
  Result result = attention.run();
  at::Tensor out = result.out.narrow(2, 0, p.spec.value_dim);
  if (!p.params.sinks.empty()) {
    const at::Tensor sinks =
        view_list(p.params.sinks.data, p.params.sinks.size, at::kFloat, p.device);
    out = out.to(at::kFloat) / ((sinks - result.lse).exp() + 1).unsqueeze(2);
  }
  if (result.empty.defined()) {
    out = out.masked_fill(result.empty.unsqueeze(2), 0);
    if (result.lse.defined()) result.lse = result.lse.masked_fill(result.empty, kMinusInfinity);
  }
  // Rows of which `is_nan`, which may be undefined, says that they are; in the pass that copies.
  const auto store = [&](const MutableTensorView& view, const at::Tensor& values,
                         const at::Tensor& is_nan) {
    at::Tensor target = view_mutable(view);
    const bool is_whole = call.q_begin >= 0;
    if (is_whole) target = target.narrow(0, call.q_begin, call.num_rows);
    if (is_whole && is_nan.defined() && values.scalar_type() == target.scalar_type()) {
      at::where_out(target, is_nan, at::scalar_tensor(kNaN, values.options()), values);
      return;
    }
    const at::Tensor rows = is_nan.defined() ? values.masked_fill(is_nan, kNaN) : values;
    if (is_whole) {
      target.copy_(rows);
    } else {
      target.index_put_({attention.rows()}, rows.to(target.scalar_type()));
    }
  };
  const at::Tensor& is_nan = result.not_finite;
  store(p.output.out, out, is_nan.defined() ? is_nan.unsqueeze(2) : at::Tensor());
  if (p.output.lse.present()) store(p.output.lse, result.lse, is_nan);
}

}  // namespace quire::torch_sdpa
