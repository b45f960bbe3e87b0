// SPDX-License-Identifier: Apache-2.0
// The tensors and values of append, attend and merge. What depends on the batch is checked against
// its facts, in constant time.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "attention/validate.h"
#include "attention/validate_apart.h"
#include "base/check.h"
#include "layout/stride_check.h"

namespace quire {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

void require_device(const FieldName& name, Device has, Device device) {
  if (has == device) return;
  fail(ErrorCode::kInvalidArgument, name, ": on ", device_text(has),
       ", but the backend computes on ", device_text(device));
}

// An extent that a tensor needs, or needs at least.
struct Extent {
  std::int64_t value = 0;
  bool at_least = false;
};

std::string shape_text(std::span<const Extent> shape) {
  std::string text;
  for (const Extent& extent : shape) {
    text += concat(text.empty() ? "[" : ", ", extent.at_least ? ">= " : "", extent.value);
  }
  return text + "]";
}

std::string list_text(const std::array<std::int64_t, kMaxRank>& values, int rank) {
  std::string text;
  for (int i = 0; i < rank; ++i) {
    text += concat(i == 0 ? "[" : ", ", values[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

std::array<StridedAxis, kMaxRank> axes_of(const TensorView& tensor) {
  std::array<StridedAxis, kMaxRank> axes{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.rank); ++i) {
    axes[i] = {tensor.shape[i], tensor.strides[i]};
  }
  return axes;
}

void validate_shape(const FieldName& name, const TensorView& tensor,
                    std::initializer_list<Extent> shape) {
  const int rank = static_cast<int>(shape.size());
  require(tensor.rank == rank, name, ": needs rank ", rank, ", has ", tensor.rank);
  std::size_t i = 0;
  for (const Extent& extent : shape) {
    const std::int64_t has = tensor.shape[i++];
    if (extent.at_least ? has < extent.value : has != extent.value) {
      fail(ErrorCode::kInvalidArgument, name, ": needs shape ",
           shape_text({shape.begin(), shape.size()}), ", has ", list_text(tensor.shape, rank));
    }
  }
}

void validate_dtype(const FieldName& name, DType has, DType needs) {
  if (has == needs) return;
  fail(ErrorCode::kInvalidArgument, name, ": needs ", dtype_text(needs), ", has ", dtype_text(has));
}

// REQUIRES: a valid dtype, shape and rank.
void validate_memory(const FieldName& name, const TensorView& tensor, Device device) {
  require_device(name, tensor.device, device);
  bool is_empty = false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.rank); ++i) {
    is_empty = is_empty || tensor.shape[i] == 0;
  }
  if (is_empty) return;
  require(tensor.data != nullptr, name, ": null");
  const std::int64_t bytes = dtype_bytes(tensor.dtype);
  require(reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(bytes) == 0,
          name, ": not aligned to ", bytes, " bytes: ", tensor.data);
  if (!offsets_fit(axes_of(tensor))) {
    fail(ErrorCode::kInvalidArgument, name,
         ": offsets exceed 64 bits, strides: ", list_text(tensor.strides, tensor.rank));
  }
}

// The elements of one row and head are contiguous.
void validate_last_stride(const FieldName& name, const TensorView& tensor) {
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  require(tensor.shape[last] <= 1 || tensor.strides[last] == 1, name,
          ": needs stride 1 in the last axis, has ", tensor.strides[last]);
}

// What is written must not overlap itself.
void validate_disjoint(const FieldName& name, const TensorView& tensor) {
  if (strides_are_disjoint(axes_of(tensor))) return;
  fail(ErrorCode::kInvalidArgument, name,
       ": elements overlap, strides: ", list_text(tensor.strides, tensor.rank));
}

void validate_new_tensor(const FieldName& name, const TensorView& tensor, Extent rows, Extent heads,
                         Extent dim, Device device) {
  validate_shape(name, tensor, {rows, heads, dim});
  if (!is_float(tensor.dtype)) {
    fail(ErrorCode::kInvalidArgument, name, ": needs f32, f16 or bf16, has ",
         dtype_text(tensor.dtype));
  }
  validate_memory(name, tensor, device);
  validate_last_stride(name, tensor);
}

void validate_new_kv(const AttentionSpec& spec, const BatchFacts& facts, const NewKv& new_kv,
                     Device device) {
  const Extent rows{facts.num_new_kv};
  const Extent heads{spec.num_kv_heads};
  validate_new_tensor("new_kv.k", new_kv.k, rows, heads, {spec.head_dim}, device);
  if (spec.kv.v_in_k) {
    require(!new_kv.v.present(), "new_kv.v: given, but V is a part of K with v_in_k");
    return;
  }
  validate_new_tensor("new_kv.v", new_kv.v, rows, heads, {spec.value_dim}, device);
  validate_dtype("new_kv.v", new_kv.v.dtype, new_kv.k.dtype);
}

void validate_slot_limit(const BatchFacts& facts, const KvCacheView& cache) {
  const std::int64_t num_slots = cache.num_blocks * cache.format.block_size;
  require(facts.largest_slot.value < num_slots, "kv.slots: index ", facts.largest_slot.index,
          " holds slot ", facts.largest_slot.value,
          ", not below the slots of the cache: ", num_slots);
}

void validate_block_limit(const BatchFacts& facts, const KvCacheView& cache) {
  const BatchFacts::Largest& block = facts.largest_block;
  require(block.value < cache.num_blocks, "kv.blocks: sequence ", block.sequence, ", table entry ",
          block.index, " holds block ", block.value,
          ", not below the blocks of the cache: ", cache.num_blocks);
  const BatchFacts::Largest& row = facts.largest_row;
  require(row.value <= cache.num_blocks, "kv.blocks.rows: sequence ", row.sequence, " ends at row ",
          row.value, ", more than the rows of K and V: ", cache.num_blocks);
}

// An optional array with one value per query head. `is_valid` is asked for values on the host.
template <class IsValid>
void validate_head_values(const FieldName& name, const ArrayView<float>& values,
                          std::int64_t num_heads, Device device, const char* rule,
                          IsValid is_valid) {
  if (values.size == 0) return;
  require(values.size == num_heads, name, ": needs ", num_heads, " heads, has ", values.size);
  require_device(name, values.device, device);
  require(values.data != nullptr, name, ": null");
  if (!device.is_host()) return;
  for (std::int64_t head = 0; head < num_heads; ++head) {
    require(is_valid(values[head]), name, ": head ", head, " is ", rule, ": ", values[head]);
  }
}

void validate_sinks(const FieldName& name, const ArrayView<float>& sinks, std::int64_t num_heads,
                    Device device) {
  validate_head_values(name, sinks, num_heads, device, "not a number",
                       [](float sink) { return !std::isnan(sink); });
}

void validate_bias(const AttentionSpec& spec, const BatchFacts& facts, const TensorView& bias,
                   Device device) {
  if (!bias.present()) return;
  require(spec.features.bias, "params.bias: the spec does not declare it");
  validate_shape("params.bias", bias,
                 {{facts.num_sequences, true},
                  {spec.num_q_heads},
                  {facts.max_q_len, true},
                  {facts.max_kv_len, true}});
  if (bias.dtype != DType::kF32) validate_dtype("params.bias", bias.dtype, spec.q_dtype);
  validate_memory("params.bias", bias, device);
}

void validate_params(const AttentionSpec& spec, const BatchFacts& facts,
                     const AttentionParams& params, Device device) {
  const Features& features = spec.features;
  require(std::isfinite(params.scale), "params.scale: not finite: ", params.scale);
  require(std::isfinite(params.softcap) && params.softcap >= 0.0F,
          "params.softcap: not finite and non-negative: ", params.softcap);
  require(features.softcap || params.softcap == 0.0F,
          "params.softcap: the spec does not declare it: ", params.softcap);
  require(features.alibi || params.alibi_slopes.empty(),
          "params.alibi_slopes: the spec does not declare them");
  validate_head_values("params.alibi_slopes", params.alibi_slopes, spec.num_q_heads, device,
                       "not finite", [](float slope) { return std::isfinite(slope); });
  require(features.sinks || params.sinks.empty(), "params.sinks: the spec does not declare them");
  validate_sinks("params.sinks", params.sinks, spec.num_q_heads, device);
  validate_bias(spec, facts, params.bias, device);
}

void validate_lse(const FieldName& name, const TensorView& lse, Extent rows, Extent heads,
                  Device device) {
  validate_shape(name, lse, {rows, heads});
  validate_dtype(name, lse.dtype, DType::kF32);
  validate_memory(name, lse, device);
}

void validate_output(const AttentionSpec& spec, const BatchFacts& facts,
                     const AttentionOutput& output, Device device) {
  const Extent rows{facts.num_rows, true};
  const Extent heads{spec.num_q_heads};
  validate_shape("out", output.out, {rows, heads, {spec.value_dim}});
  validate_dtype("out", output.out.dtype, spec.out_dtype);
  validate_memory("out", output.out, device);
  validate_last_stride("out", output.out);
  validate_disjoint("out", output.out);
  if (!output.lse.present()) return;
  require(spec.features.lse, "lse: the spec does not declare it");
  validate_lse("lse", output.lse, rows, heads, device);
  validate_disjoint("lse", output.lse);
}

void validate_partial(std::size_t index, const Partial& partial, const AttentionOutput& output,
                      DType dtype, Device device) {
  const auto position = static_cast<std::int64_t>(index);
  const FieldName out_name("partials", position, ".out");
  const FieldName lse_name("partials", position, ".lse");
  const auto& shape = output.out.shape;
  validate_new_tensor(out_name, partial.out, {shape[0]}, {shape[1]}, {shape[2]}, device);
  validate_dtype(out_name, partial.out.dtype, dtype);
  validate_lse(lse_name, partial.lse, {shape[0]}, {shape[1]}, device);
}

}  // namespace

void validate_append(const AttentionSpec& spec, const BatchFacts& facts, const NewKv& new_kv,
                     const KvCacheView& cache, Device device) {
  validate_new_kv(spec, facts, new_kv, device);
  validate_cache(spec, cache, device, CacheUse::kWrite);
  validate_slot_limit(facts, cache);
}

void validate_attend(const AttentionSpec& spec, const BatchFacts& facts, const BatchView& batch,
                     const AttentionParams& params, const TensorView& q, const KvSource& source,
                     const AttentionOutput& output, Device device) {
  validate_params(spec, facts, params, device);
  validate_shape("q", q, {{facts.num_rows, true}, {spec.num_q_heads}, {spec.head_dim}});
  validate_dtype("q", q.dtype, spec.q_dtype);
  validate_memory("q", q, device);
  validate_last_stride("q", q);
  if (source.new_kv.k.present()) {
    validate_append(spec, facts, source.new_kv, source.cache, device);
  } else {
    require(!source.new_kv.v.present(), "new_kv.v: given without new_kv.k");
    validate_cache(spec, source.cache, device, CacheUse::kRead);
  }
  validate_block_limit(facts, source.cache);
  validate_output(spec, facts, output, device);
  validate_attend_apart(facts, batch, params, q, source, output);
}

void validate_merge(std::span<const Partial> partials, const ArrayView<float>& sinks,
                    const AttentionOutput& output, Device device) {
  const TensorView out = output.out;
  require(out.rank == 3, "out: needs rank 3, has ", out.rank);
  validate_new_tensor("out", out, {0, true}, {1, true}, {1, true}, device);
  validate_disjoint("out", out);
  if (output.lse.present()) {
    validate_lse("lse", output.lse, {out.shape[0]}, {out.shape[1]}, device);
    validate_disjoint("lse", output.lse);
  }
  for (std::size_t i = 0; i < partials.size(); ++i) {
    validate_partial(i, partials[i], output, partials[0].out.dtype, device);
  }
  validate_sinks("sinks", sinks, out.shape[1], device);
  validate_merge_apart(partials, sinks, output);
}

}  // namespace quire
