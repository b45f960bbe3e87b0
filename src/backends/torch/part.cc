// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/part.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "backends/dense/gather.h"
#include "backends/dense/mask_rows.h"
#include "base/float_rows.h"

namespace quire::torch_sdpa {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows beside which the gathering of keys is small.
constexpr std::int64_t kMaxRows = 512;
// Of the mask of a part, beyond which it gets fewer rows.
constexpr std::int64_t kMaxMaskElements = 1 << 20;

std::int64_t padded_dims(const AttentionSpec& spec) noexcept {
  return std::max(spec.head_dim, spec.value_dim);
}

// Hands out parts of one allocation, or only counts.
struct Pieces {
  char* memory = nullptr;
  std::int64_t used = 0;

  template <class T>
  void take(T*& piece, std::int64_t size_bytes) noexcept {
    if (memory != nullptr) piece = reinterpret_cast<T*>(memory + used);
    used += (size_bytes + 63) / 64 * 64;
  }
};

PartScratch take_scratch(Pieces& pieces, const AttentionSpec& spec,
                         const BatchBounds& bounds) noexcept {
  constexpr std::int64_t kFloat = sizeof(float);
  const std::int64_t size = dtype_bytes(compute_type(spec));
  const std::int64_t dims = padded_dims(spec);
  const std::int64_t keys = std::max<std::int64_t>(bounds.max_kv_len, 1);
  const std::int64_t group = spec.head_group();
  const std::int64_t rows =
      group * std::min(part_queries(spec, 1), std::max<std::int64_t>(bounds.max_tokens, 1));
  PartScratch scratch;
  pieces.take(scratch.q, rows * dims * size);
  pieces.take(scratch.k, keys * dims * size);
  pieces.take(scratch.v, keys * dims * size);
  pieces.take(scratch.mask,
              std::min(rows * keys, std::max(kMaxMaskElements, group * keys)) * kFloat);
  pieces.take(scratch.out, rows * dims * kFloat);
  pieces.take(scratch.lse, rows * kFloat);
  pieces.take(scratch.keys_not_finite, keys * std::int64_t{sizeof(std::int32_t)});
  pieces.take(scratch.values_not_finite, keys * std::int64_t{sizeof(std::int32_t)});
  pieces.take(scratch.q_row, dims * kFloat);
  pieces.take(scratch.kv_row, dims * kFloat);
  return scratch;
}

// One part in progress.
struct Part {
  const PartCall& call;
  const dense::QueryPart& queries;
  std::int64_t kv_head;
  const PartScratch& scratch;

  const AttentionSpec& spec = call.spec;
  std::int64_t group = spec.head_group();
  std::int64_t dims = padded_dims(spec);
  DType compute = compute_type(spec);
  std::int64_t num_rows = queries.size() * group;
  dense::GatherSource source = dense::gather_source(call.cache, call.batch, spec, queries.sequence);
  KeyRange keys = seen();
  dense::MaskRows masks = {.mask = spec.mask,
                           .alignment = spec.alignment,
                           .params = call.params,
                           .sequence = source.sequence,
                           .s = queries.sequence};

  KeyRange seen() const {
    KeyRange range =
        keys_seen(spec.mask, spec.alignment, source.sequence, queries.begin, queries.end);
    range.end = std::min(range.end, source.sequence.kv_len);
    return range.empty() ? KeyRange{} : range;
  }
  std::int64_t query(std::int64_t row) const { return queries.begin + row / group; }
  std::int64_t q_head(std::int64_t row) const { return kv_head * group + row % group; }
  std::int64_t token(std::int64_t row) const {
    return call.batch.queries.begins[queries.sequence] + query(row);
  }
  std::int64_t q_offset(std::int64_t row) const {
    return token(row) * call.q.strides[0] + q_head(row) * call.q.strides[1];
  }
  float* mask_row(std::int64_t row) const { return scratch.mask + row * keys.size(); }
  bool needs_lse() const { return call.output.lse.present() || !call.params.sinks.empty(); }
};

void load_queries(const Part& part) {
  const TensorView& q = part.call.q;
  const std::int64_t size = dtype_bytes(part.compute);
  const std::int64_t used = part.spec.head_dim;
  for (std::int64_t row = 0; row < part.num_rows; ++row) {
    char* out = static_cast<char*>(part.scratch.q) + row * part.dims * size;
    if (q.dtype == part.compute) {
      std::memcpy(out, static_cast<const char*>(q.data) + part.q_offset(row) * size,
                  static_cast<std::size_t>(used * size));
    } else {
      load_floats(q.dtype, q.data, part.q_offset(row), used, reinterpret_cast<float*>(out));
    }
    std::memset(out + used * size, 0, static_cast<std::size_t>((part.dims - used) * size));
  }
}

// Fills K or V; returns the rows that are not finite.
std::span<const std::int32_t> gather(const Part& part, KvTensor tensor) {
  const bool is_k = tensor == KvTensor::kK;
  std::int32_t* found = is_k ? part.scratch.keys_not_finite : part.scratch.values_not_finite;
  const dense::DenseRows rows{.dtype = part.compute,
                              .data = is_k ? part.scratch.k : part.scratch.v,
                              .num_rows = part.keys.size(),
                              .stride = part.dims};
  const dense::GatherTimer timer(part.scratch.gather_seconds);
  const std::int64_t count =
      dense::gather_rows(part.source, tensor, part.kv_head, part.keys, rows, found);
  return {found, static_cast<std::size_t>(count)};
}

// Not every row sees every key.
bool needs_mask(const Part& part) {
  if (!part.masks.is_range()) return true;
  for (std::int64_t i = part.queries.begin; i < part.queries.end; ++i) {
    if (dense::row_range(part.masks, i, part.keys).size() != part.keys.size()) return true;
  }
  return false;
}

void fill_mask(const Part& part) {
  for (std::int64_t row = 0; row < part.num_rows; ++row) {
    if (row % part.group > 0 && part.masks.is_shared_by_heads()) {
      std::copy_n(part.mask_row(row - 1), part.keys.size(), part.mask_row(row));
    } else {
      dense::fill_mask_row(part.masks, part.q_head(row), part.query(row), part.keys,
                           part.mask_row(row));
    }
  }
}

// Keys that are not finite were left out: their scores, computed here, join the mask.
void add_scores(const Part& part, std::span<const std::int32_t> not_finite) {
  const std::int64_t dims = part.spec.head_dim;
  float* q = part.scratch.q_row;
  for (const std::int32_t key : not_finite) {
    dense::load_key(part.source, KvTensor::kK, part.kv_head, part.keys.begin + key,
                    part.scratch.kv_row);
    for (std::int64_t row = 0; row < part.num_rows; ++row) {
      float& mask = part.mask_row(row)[key];
      if (mask == -kInfinity) continue;
      load_floats(part.call.q.dtype, part.call.q.data, part.q_offset(row), dims, q);
      mask += part.call.params.scale * std::inner_product(q, q + dims, part.scratch.kv_row, 0.0F);
    }
  }
}

// Adds the values that were left out to the rows whose weight for them is not 0. The weights come
// from torch too: attention over columns that are 1 at one key and 0 elsewhere.
void add_values(const Part& part, Problem problem, std::span<const std::int32_t> not_finite) {
  const auto dims = static_cast<std::size_t>(part.dims);
  std::vector<float> weights(static_cast<std::size_t>(part.num_rows) * dims);
  for (; !not_finite.empty(); not_finite = not_finite.subspan(std::min(dims, not_finite.size()))) {
    const std::span<const std::int32_t> some = not_finite.first(std::min(dims, not_finite.size()));
    std::vector<float> columns(static_cast<std::size_t>(part.keys.size()) * dims);  // or 16-bit
    for (std::size_t c = 0; c < some.size(); ++c) {
      const auto element = static_cast<std::int64_t>(static_cast<std::size_t>(some[c]) * dims + c);
      store_float(problem.dtype, columns.data(), element, 1.0F);
    }
    problem.v = columns.data();
    run(problem, weights.data(), nullptr);
    for (std::size_t c = 0; c < some.size(); ++c) {
      dense::load_key(part.source, KvTensor::kV, part.kv_head, part.keys.begin + some[c],
                      part.scratch.kv_row);
      for (std::int64_t row = 0; row < part.num_rows; ++row) {
        const float weight = weights[static_cast<std::size_t>(row) * dims + c];
        float* out = part.scratch.out + row * part.dims;
        for (std::int64_t d = 0; weight != 0 && d < part.spec.value_dim; ++d) {
          out[d] += weight * part.scratch.kv_row[d];
        }
      }
    }
  }
}

// Whether a row that has a mask sees a key.
bool sees_a_key(const Part& part, std::int64_t row) {
  const float* mask = part.mask_row(row);
  return std::any_of(mask, mask + part.keys.size(), [](float m) { return m != -kInfinity; });
}

// Sinks, one rounding, and out; rows that see no key are 0, lse -inf.
void store_rows(const Part& part, bool masked) {
  const AttentionOutput& output = part.call.output;
  const ArrayView<float> sinks = part.call.params.sinks;
  const std::int64_t dims = part.spec.value_dim;
  for (std::int64_t row = 0; row < part.num_rows; ++row) {
    const std::int64_t head = part.q_head(row);
    float* out = part.scratch.out + row * part.dims;
    float& lse = part.scratch.lse[row];
    if (part.keys.empty() || (masked && !sees_a_key(part, row))) {
      std::fill_n(out, dims, 0.0F);
      lse = -kInfinity;
    } else if (!sinks.empty()) {
      const float factor = 1.0F / (1.0F + std::exp(sinks[head] - lse));
      for (std::int64_t d = 0; d < dims; ++d) out[d] *= factor;
    }
    const MutableTensorView& to = output.out;
    store_floats(to.dtype, to.data, part.token(row) * to.strides[0] + head * to.strides[1], dims,
                 out);
    if (!output.lse.present()) continue;
    static_cast<float*>(
        output.lse.data)[part.token(row) * output.lse.strides[0] + head * output.lse.strides[1]] =
        lse;
  }
}

}  // namespace

DType compute_type(const AttentionSpec& spec) noexcept {
  // A sink scales what torch gives, which would be rounded twice.
  const bool rounded_by_torch = spec.out_dtype == spec.q_dtype && !spec.features.sinks;
  return spec.kv.dtype == spec.q_dtype && rounded_by_torch ? spec.q_dtype : DType::kF32;
}

std::int64_t part_queries(const AttentionSpec& spec, std::int64_t kv_len) noexcept {
  const std::int64_t rows =
      std::min(kMaxRows, kMaxMaskElements / std::max<std::int64_t>(kv_len, 1));
  return std::max<std::int64_t>(1, rows / spec.head_group());
}

std::int64_t part_scratch_bytes(const AttentionSpec& spec, const BatchBounds& bounds) noexcept {
  Pieces pieces;
  take_scratch(pieces, spec, bounds);
  return pieces.used;
}

PartScratch part_scratch_at(void* memory, const AttentionSpec& spec,
                            const BatchBounds& bounds) noexcept {
  Pieces pieces{.memory = static_cast<char*>(memory)};
  return take_scratch(pieces, spec, bounds);
}

void attend_part(const PartCall& call, const dense::QueryPart& queries, std::int64_t kv_head,
                 const PartScratch& scratch) {
  const Part part{.call = call, .queries = queries, .kv_head = kv_head, .scratch = scratch};
  bool masked = false;
  if (!part.keys.empty()) {
    load_queries(part);
    const std::span<const std::int32_t> keys_not_finite = gather(part, KvTensor::kK);
    const std::span<const std::int32_t> values_not_finite = gather(part, KvTensor::kV);
    masked = needs_mask(part) || !keys_not_finite.empty();
    if (masked) fill_mask(part);
    add_scores(part, keys_not_finite);
    const Problem problem{.dtype = part.compute,
                          .rows = part.num_rows,
                          .keys = part.keys.size(),
                          .dims = part.dims,
                          .q = scratch.q,
                          .k = scratch.k,
                          .v = scratch.v,
                          .mask = masked ? scratch.mask : nullptr,
                          .scale = call.params.scale};
    run(problem, scratch.out, part.needs_lse() ? scratch.lse : nullptr);
    add_values(part, problem, values_not_finite);
  }
  store_rows(part, masked);
}

}  // namespace quire::torch_sdpa
