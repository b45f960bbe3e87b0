// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/sequence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "backends/dense/gather.h"
#include "backends/dense/mask_rows.h"
#include "base/float_rows.h"

namespace quire::torch_sdpa {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Of the mask of one part, beyond which a part gets fewer queries.
constexpr std::int64_t kMaxMaskElements = 4 << 20;
constexpr std::int64_t kMaxRows = 4096;

std::int64_t padded_dims(const AttentionSpec& spec) noexcept {
  return std::max(spec.head_dim, spec.value_dim);
}

// Heads that a mask of this spec may differ in.
std::int64_t max_mask_heads(const AttentionSpec& spec) noexcept {
  return spec.features.alibi || spec.features.bias ? spec.num_kv_heads : 1;
}

// Queries of one part of a sequence that sees so many keys.
std::int64_t part_queries(const AttentionSpec& spec, std::int64_t num_keys) noexcept {
  const std::int64_t group = spec.head_group();
  const std::int64_t query_elements =
      max_mask_heads(spec) * group * std::max<std::int64_t>(num_keys, 1);
  return std::max<std::int64_t>(1, std::min(kMaxRows / group, kMaxMaskElements / query_elements));
}

// Hands out parts of one allocation, or only counts.
struct Parts {
  char* memory = nullptr;
  std::int64_t used = 0;

  template <class T>
  void take(T*& part, std::int64_t size_bytes) noexcept {
    if (memory != nullptr) part = reinterpret_cast<T*>(memory + used);
    used += (size_bytes + 63) / 64 * 64;
  }
};

SequenceScratch take_scratch(Parts& parts, const AttentionSpec& spec,
                             const BatchBounds& bounds) noexcept {
  constexpr std::int64_t kFloat = sizeof(float);
  const std::int64_t heads = spec.num_kv_heads;
  const std::int64_t dims = padded_dims(spec);
  const std::int64_t keys = std::max<std::int64_t>(bounds.max_kv_len, 1);
  const std::int64_t queries =
      std::min(part_queries(spec, 1), std::max<std::int64_t>(bounds.max_tokens, 1));
  const std::int64_t rows = queries * spec.head_group();
  const std::int64_t mask_elements =
      std::min(max_mask_heads(spec) * rows * keys,
               std::max(kMaxMaskElements, max_mask_heads(spec) * spec.head_group() * keys));
  const std::int64_t kv_bytes = heads * keys * dims * dtype_bytes(compute_type(spec));
  SequenceScratch scratch;
  parts.take(scratch.q, heads * rows * dims * dtype_bytes(compute_type(spec)));
  parts.take(scratch.k, kv_bytes);
  parts.take(scratch.v, kv_bytes);
  parts.take(scratch.mask, mask_elements * kFloat);
  parts.take(scratch.out, heads * rows * dims * kFloat);
  parts.take(scratch.lse, heads * rows * kFloat);
  parts.take(scratch.not_finite, 2 * heads * keys * std::int64_t{sizeof(std::int32_t)});
  parts.take(scratch.num_found, 2 * heads * std::int64_t{sizeof(std::int64_t)});
  parts.take(scratch.q_row, dims * kFloat);
  parts.take(scratch.kv_row, dims * kFloat);
  return scratch;
}

template <class F>
void run_parallel(std::int64_t count, F&& f) {
  using Function = std::remove_reference_t<F>;
  parallel_for(
      count, [](void* context, std::int64_t i) { (*static_cast<Function*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

// One sequence in progress.
struct Sequence {
  const SequenceCall& call;
  std::int64_t s;
  const SequenceScratch& scratch;

  const AttentionSpec& spec = call.spec;
  std::int64_t group = spec.head_group();
  std::int64_t heads = spec.num_kv_heads;
  std::int64_t dims = padded_dims(spec);
  DType compute = compute_type(spec);
  dense::GatherSource source = dense::gather_source(call.cache, call.batch, spec, s);
  KeyRange keys = seen_by(0, source.sequence.q_len);  // those that were gathered

  KeyRange seen_by(std::int64_t first, std::int64_t last) const {
    KeyRange seen = keys_seen(spec.mask, spec.alignment, source.sequence, first, last);
    seen.end = std::min(seen.end, source.sequence.kv_len);
    return seen.empty() ? KeyRange{} : seen;
  }
  std::int64_t token(std::int64_t query) const { return call.batch.queries.begins[s] + query; }

  struct Found {
    const std::int32_t* rows;  // [count] from keys.begin on
    std::int64_t count;
  };
  Found found(KvTensor tensor, std::int64_t head) const {
    const std::int64_t list = (tensor == KvTensor::kK ? 0 : heads) + head;
    return {scratch.not_finite + list * keys.size(), scratch.num_found[list]};
  }
  bool any_found(KvTensor tensor) const {
    for (std::int64_t head = 0; head < heads; ++head) {
      if (found(tensor, head).count > 0) return true;
    }
    return false;
  }
};

// K and V of all heads.
void gather(const Sequence& q) {
  run_parallel(2 * q.heads, [&](std::int64_t list) {
    const KvTensor tensor = list < q.heads ? KvTensor::kK : KvTensor::kV;
    const std::int64_t head = list % q.heads;
    void* all = tensor == KvTensor::kK ? q.scratch.k : q.scratch.v;
    const std::int64_t head_bytes = q.keys.size() * q.dims * dtype_bytes(q.compute);
    const dense::DenseRows rows{.dtype = q.compute,
                                .data = static_cast<char*>(all) + head * head_bytes,
                                .num_rows = q.keys.size(),
                                .stride = q.dims};
    q.scratch.num_found[list] = dense::gather_rows(q.source, tensor, head, q.keys, rows,
                                                   q.scratch.not_finite + list * q.keys.size());
  });
}

// Some queries of the sequence, for some of its kv heads.
struct Part {
  const Sequence& sequence;
  std::int64_t first_query;
  std::int64_t last_query;
  std::int64_t first_head;
  std::int64_t num_heads;

  KeyRange keys = sequence.seen_by(first_query, last_query);
  std::int64_t num_rows = (last_query - first_query) * sequence.group;
  dense::MaskRows masks = {.mask = sequence.spec.mask,
                           .alignment = sequence.spec.alignment,
                           .params = sequence.call.params,
                           .sequence = sequence.source.sequence,
                           .s = sequence.s};
  std::int64_t mask_heads = masks.is_shared_by_heads() ? 1 : num_heads;
  bool masked = needs_mask();

  std::int64_t query(std::int64_t row) const { return first_query + row / sequence.group; }
  std::int64_t q_head(std::int64_t head, std::int64_t row) const {
    return (first_head + head) * sequence.group + row % sequence.group;
  }
  float* mask_row(std::int64_t head, std::int64_t row) const {
    return sequence.scratch.mask + ((mask_heads == 1 ? 0 : head) * num_rows + row) * keys.size();
  }
  bool needs_mask() const {
    if (!masks.is_range() || sequence.any_found(KvTensor::kK)) return true;
    for (std::int64_t i = first_query; i < last_query; ++i) {
      if (dense::row_range(masks, i, keys).size() != keys.size()) return true;
    }
    return false;
  }
};

// Q of the part, [num_heads, num_rows, dims].
void load_queries(const Part& part) {
  const Sequence& sequence = part.sequence;
  const TensorView& q = sequence.call.q;
  const std::int64_t size = dtype_bytes(sequence.compute);
  const std::int64_t used = sequence.spec.head_dim;
  run_parallel(part.num_heads * part.num_rows, [&](std::int64_t index) {
    const std::int64_t row = index % part.num_rows;
    const std::int64_t head = part.q_head(index / part.num_rows, row);
    const std::int64_t offset =
        sequence.token(part.query(row)) * q.strides[0] + head * q.strides[1];
    char* out = static_cast<char*>(sequence.scratch.q) + index * sequence.dims * size;
    if (q.dtype == sequence.compute) {
      std::memcpy(out, static_cast<const char*>(q.data) + offset * size,
                  static_cast<std::size_t>(used * size));
    } else {
      load_floats(q.dtype, q.data, offset, used, reinterpret_cast<float*>(out));
    }
    std::memset(out + used * size, 0, static_cast<std::size_t>((sequence.dims - used) * size));
  });
}

void fill_masks(const Part& part) {
  const std::int64_t group = part.sequence.group;
  const std::int64_t num_queries = part.last_query - part.first_query;
  run_parallel(part.mask_heads * num_queries, [&](std::int64_t index) {
    const std::int64_t head = index / num_queries;
    const std::int64_t first_row = index % num_queries * group;
    const std::int64_t i = part.query(first_row);
    for (std::int64_t row = first_row; row < first_row + group; ++row) {
      float* out = part.mask_row(head, row);
      if (row > first_row && part.masks.is_shared_by_heads()) {
        std::copy_n(part.mask_row(head, first_row), part.keys.size(), out);
      } else {
        dense::fill_mask_row(part.masks, part.q_head(head, row), i, part.keys, out);
      }
    }
  });
}

// A key that is not finite was left out: its scores, computed here, join the mask.
void add_scores_not_finite(const Part& part) {
  const Sequence& sequence = part.sequence;
  const TensorView& q = sequence.call.q;
  const std::int64_t dims = sequence.spec.head_dim;
  const auto found = sequence.found(KvTensor::kK, part.first_head);
  for (std::int64_t n = 0; n < found.count; ++n) {
    const std::int64_t j = sequence.keys.begin + found.rows[n];
    if (j < part.keys.begin || j >= part.keys.end) continue;
    dense::load_key(sequence.source, KvTensor::kK, part.first_head, j, sequence.scratch.kv_row);
    for (std::int64_t row = 0; row < part.num_rows; ++row) {
      float& mask = part.mask_row(0, row)[j - part.keys.begin];
      if (mask == -kInfinity) continue;
      const std::int64_t offset =
          sequence.token(part.query(row)) * q.strides[0] + part.q_head(0, row) * q.strides[1];
      load_floats(q.dtype, q.data, offset, dims, sequence.scratch.q_row);
      mask += sequence.call.params.scale * std::inner_product(sequence.scratch.q_row,
                                                              sequence.scratch.q_row + dims,
                                                              sequence.scratch.kv_row, 0.0F);
    }
  }
}

Problem problem_of(const Part& part) {
  const Sequence& sequence = part.sequence;
  const std::int64_t size = dtype_bytes(sequence.compute);
  const std::int64_t head_stride = sequence.keys.size() * sequence.dims;
  const std::int64_t first =
      part.first_head * head_stride + (part.keys.begin - sequence.keys.begin) * sequence.dims;
  return {.dtype = sequence.compute,
          .heads = part.num_heads,
          .rows = part.num_rows,
          .keys = part.keys.size(),
          .dims = sequence.dims,
          .q = sequence.scratch.q,
          .k = static_cast<const char*>(sequence.scratch.k) + first * size,
          .v = static_cast<const char*>(sequence.scratch.v) + first * size,
          .kv_head_stride = head_stride,
          .mask = part.masked ? sequence.scratch.mask : nullptr,
          .mask_heads = part.mask_heads,
          .scale = sequence.call.params.scale,
          .where = sequence.call.where};
}

// Adds the values of one head that are not finite to the rows whose weight for them is not 0. The
// weights come from torch too: attention over columns that are 1 at one key and 0 elsewhere.
void add_values_not_finite(const Part& part, std::int64_t head) {
  const Sequence& sequence = part.sequence;
  const std::int64_t dims = sequence.dims;
  const auto found = sequence.found(KvTensor::kV, part.first_head + head);
  std::vector<std::int64_t> keys;
  for (std::int64_t n = 0; n < found.count; ++n) {
    const std::int64_t j = sequence.keys.begin + found.rows[n];
    if (j >= part.keys.begin && j < part.keys.end) keys.push_back(j);
  }
  Problem problem = problem_of(part);
  const std::int64_t size = dtype_bytes(problem.dtype);
  problem.q = static_cast<const char*>(problem.q) + head * part.num_rows * dims * size;
  problem.k = static_cast<const char*>(problem.k) + head * problem.kv_head_stride * size;
  if (part.mask_heads > 1) problem.mask = part.mask_row(head, 0);
  problem.heads = problem.mask_heads = 1;
  std::vector<float> weights(static_cast<std::size_t>(part.num_rows * dims));
  float* out = sequence.scratch.out + head * part.num_rows * dims;
  const std::int64_t num_keys = std::ssize(keys);
  for (std::int64_t begin = 0; begin < num_keys; begin += dims) {
    const std::int64_t count = std::min(dims, num_keys - begin);
    std::vector<char> columns(static_cast<std::size_t>(part.keys.size() * dims * size));
    for (std::int64_t c = 0; c < count; ++c) {
      const std::int64_t row = keys[static_cast<std::size_t>(begin + c)] - part.keys.begin;
      store_float(problem.dtype, columns.data(), row * dims + c, 1.0F);
    }
    problem.v = columns.data();
    run(problem, weights.data(), nullptr);
    for (std::int64_t c = 0; c < count; ++c) {
      dense::load_key(sequence.source, KvTensor::kV, part.first_head + head,
                      keys[static_cast<std::size_t>(begin + c)], sequence.scratch.kv_row);
      for (std::int64_t row = 0; row < part.num_rows; ++row) {
        const float weight = weights[static_cast<std::size_t>(row * dims + c)];
        for (std::int64_t d = 0; weight != 0 && d < sequence.spec.value_dim; ++d) {
          out[row * dims + d] += weight * sequence.scratch.kv_row[d];
        }
      }
    }
  }
}

bool sees_a_key(const Part& part, std::int64_t head, std::int64_t row) {
  if (!part.masked) return !part.keys.empty();
  const float* mask = part.mask_row(head, row);
  return std::any_of(mask, mask + part.keys.size(), [](float m) { return m != -kInfinity; });
}

// Sinks, one rounding, and out; rows that see no key are 0, lse -inf.
void store_rows(const Part& part, bool has_lse) {
  const Sequence& sequence = part.sequence;
  const AttentionOutput& output = sequence.call.output;
  const ArrayView<float> sinks = sequence.call.params.sinks;
  const std::int64_t dims = sequence.spec.value_dim;
  run_parallel(part.num_heads * part.num_rows, [&](std::int64_t index) {
    const std::int64_t row = index % part.num_rows;
    const std::int64_t head = index / part.num_rows;
    const std::int64_t q_head = part.q_head(head, row);
    const std::int64_t token = sequence.token(part.query(row));
    float* out = sequence.scratch.out + index * sequence.dims;
    float lse = has_lse ? sequence.scratch.lse[index] : 0.0F;
    if (!sees_a_key(part, head, row)) {
      std::fill_n(out, dims, 0.0F);
      lse = -kInfinity;
    } else if (!sinks.empty()) {
      const float factor = 1.0F / (1.0F + std::exp(sinks[q_head] - lse));
      for (std::int64_t d = 0; d < dims; ++d) out[d] *= factor;
    }
    store_floats(output.out.dtype, output.out.data,
                 token * output.out.strides[0] + q_head * output.out.strides[1], dims, out);
    if (output.lse.present()) {
      static_cast<float*>(
          output.lse.data)[token * output.lse.strides[0] + q_head * output.lse.strides[1]] = lse;
    }
  });
}

void attend_part(const Part& part) {
  const Sequence& sequence = part.sequence;
  const bool needs_lse = sequence.call.output.lse.present() || !sequence.call.params.sinks.empty();
  if (!part.keys.empty()) {
    load_queries(part);
    if (part.masked) fill_masks(part);
    if (sequence.any_found(KvTensor::kK)) add_scores_not_finite(part);
    run(problem_of(part), sequence.scratch.out, needs_lse ? sequence.scratch.lse : nullptr);
    for (std::int64_t head = 0; head < part.num_heads; ++head) add_values_not_finite(part, head);
  }
  store_rows(part, needs_lse);
}

}  // namespace

DType compute_type(const AttentionSpec& spec) noexcept {
  // A sink scales what torch gives, which would be rounded twice.
  const bool rounded_by_torch = spec.out_dtype == spec.q_dtype && !spec.features.sinks;
  return spec.kv.dtype == spec.q_dtype && rounded_by_torch ? spec.q_dtype : DType::kF32;
}

std::int64_t scratch_bytes(const AttentionSpec& spec, const BatchBounds& bounds) noexcept {
  Parts parts;
  take_scratch(parts, spec, bounds);
  return parts.used;
}

SequenceScratch scratch_at(void* memory, const AttentionSpec& spec,
                           const BatchBounds& bounds) noexcept {
  Parts parts{.memory = static_cast<char*>(memory)};
  return take_scratch(parts, spec, bounds);
}

void attend_sequence(const SequenceCall& call, std::int64_t s, const SequenceScratch& scratch) {
  const Sequence sequence{.call = call, .s = s, .scratch = scratch};
  const std::int64_t q_len = sequence.source.sequence.q_len;
  if (!sequence.keys.empty()) gather(sequence);
  // Keys that are not finite have scores of their own for every head.
  const bool one_by_one = !sequence.keys.empty() && sequence.any_found(KvTensor::kK);
  const std::int64_t head_step = one_by_one ? 1 : sequence.heads;
  const std::int64_t step = part_queries(call.spec, sequence.keys.size());
  for (std::int64_t i = 0; i < q_len; i += step) {
    for (std::int64_t head = 0; head < sequence.heads; head += head_step) {
      attend_part({.sequence = sequence,
                   .first_query = i,
                   .last_query = std::min(i + step, q_len),
                   .first_head = head,
                   .num_heads = head_step});
    }
  }
}

}  // namespace quire::torch_sdpa
