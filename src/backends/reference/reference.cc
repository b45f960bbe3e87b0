// SPDX-License-Identifier: Apache-2.0
// The contract, in the order in which it happens: a score, the softmax of a row, the rows that read
// one kv head; then storing new K and V, and merging partial results.
//
// Inputs are widened to double exactly, all arithmetic is in double, and every result is rounded
// once. A key that a row may not see has the score -inf and is skipped: its bytes never matter.
#include "backends/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/mask.h"
#include "backends/host_backend.h"
#include "backends/reference/kv_row.h"
#include "base/number_formats.h"
#include "base/tensor_element.h"
#include "layout/kv_offset.h"
#include "quire/version.h"

namespace quire {
namespace {

using Index = std::int64_t;
constexpr double kInfinity = HUGE_VAL;

// One call of attend, and its doubles.
struct Attention {
  const PreparedBatch& prepared;
  const AttentionParams& params;
  const TensorView& q;
  const AttentionOutput& output;
  const AttentionSpec& spec = prepared.spec();
  const BatchView& batch = prepared.batch();
  Index max_kv_len = prepared.bounds().max_kv_len;
  double* k = static_cast<double*>(prepared.workspace().host);  // [max_kv_len, head_dim]
  double* v = k + max_kv_len * spec.head_dim;                   // [max_kv_len, value_dim]
  double* scores = v + max_kv_len * spec.value_dim;             // [max_kv_len], of one row
  double* q_row = scores + max_kv_len;                          // [head_dim]
  double* out_row = q_row + spec.head_dim;                      // [value_dim]
};

// S of query i and key j of sequence s, -inf where the query may not see the key.
double score(const Attention& a, const SequenceView& sequence, Index s, Index head, Index i,
             Index j) {
  if (!is_visible(a.spec.mask, a.spec.alignment, sequence, i, j)) return -kInfinity;
  const double bias = a.params.bias.present() ? load_element(a.params.bias, s, head, i, j) : 0.0;
  if (bias == -kInfinity) return -kInfinity;  // whatever the key holds
  const double* k = a.k + j * a.spec.head_dim;
  double x = a.params.scale * std::inner_product(k, k + a.spec.head_dim, a.q_row, 0.0);
  if (a.params.softcap > 0) x = a.params.softcap * std::tanh(x / a.params.softcap);
  if (!a.params.alibi_slopes.empty()) {
    const Index distance = query_position(sequence, i) - key_position(sequence, j);
    x -= a.params.alibi_slopes[head] * std::abs(static_cast<double>(distance));
  }
  return x + bias;
}

// Ends a row whose values were summed with the weights exp(S - max), which add up to `sum`: stores
// its lse, and returns what the summed values are to be multiplied by.
double finish_row(const AttentionOutput& output, ArrayView<float> sinks, Index row, Index head,
                  double max, double sum) {
  const double lse = max + std::log(sum);  // no key: -inf
  if (output.lse.present()) store_element(output.lse, lse, row, head);
  if (sum == 0) return 0;
  return (sinks.empty() ? 1 : 1 / (1 + std::exp(sinks[head] - lse))) / sum;
}

void attend_row(const Attention& a, const SequenceView& sequence, Index s, Index head, Index i) {
  const Index row = a.batch.queries.begins[s] + i;
  const Index value_dim = a.spec.value_dim;
  for (Index d = 0; d < a.spec.head_dim; ++d) a.q_row[d] = load_element(a.q, row, head, d);
  double max = -kInfinity;
  for (Index j = 0; j < sequence.kv_len; ++j) {
    a.scores[j] = score(a, sequence, s, head, i, j);
    max = std::max(max, a.scores[j]);
  }
  double sum = 0;
  std::fill_n(a.out_row, value_dim, 0.0);
  for (Index j = 0; j < sequence.kv_len; ++j) {
    if (a.scores[j] == -kInfinity) continue;  // not even 0 * v: v may be NaN
    const double weight = std::exp(a.scores[j] - max);
    sum += weight;
    for (Index d = 0; d < value_dim; ++d) a.out_row[d] += weight * a.v[j * value_dim + d];
  }
  const double factor = finish_row(a.output, a.params.sinks, row, head, max, sum);
  for (Index d = 0; d < value_dim; ++d) {
    store_element(a.output.out, a.out_row[d] * factor, row, head, d);
  }
}

// A key or value is stored * scale.
void load_row(const KvRow& row, double* values) {
  const double scale = row.has_scale() ? row.scale() : 1.0;
  for (Index d = 0; d < row.num_dims(); ++d) {
    values[d] = load_float(row.cache.format.dtype, row.data(), row.offset(d)) * scale;
  }
}

// stored = saturate(round(x / scale)), where a scale per (token, head) follows from x.
void store_row(const KvRow& row, const TensorView& new_rows, Index i) {
  const DType dtype = row.cache.format.dtype;
  if (row.cache.format.scales == ScaleGranularity::kPerTokenHead) {
    float amax = 0;
    for (Index d = 0; d < row.num_dims(); ++d) {
      amax = std::max(amax, finite_magnitude(load_element(new_rows, i, row.head, d)));
    }
    row.scale() = token_head_scale(dtype, amax);
  }
  const float scale = row.has_scale() ? row.scale() : 1.0F;
  for (Index d = 0; d < row.num_dims(); ++d) {
    store_float(dtype, row.data(), row.offset(d), load_element(new_rows, i, row.head, d) / scale);
  }
}

// The rows of sequence s, for the query heads that read this kv head.
void attend_group(const Attention& a, const KvCacheView& cache, Index s, Index kv_head) {
  const SequenceView sequence = sequence_view(a.batch, s);
  for (Index j = 0; j < sequence.kv_len; ++j) {
    if (!is_seen(a.spec.mask, a.spec.alignment, sequence, j)) continue;  // may lie nowhere
    const Index slot = key_slot(a.batch.kv.blocks, cache.format.block_size, s, j);
    load_row({cache, KvTensor::kK, slot, kv_head}, a.k + j * a.spec.head_dim);
    load_row({cache, KvTensor::kV, slot, kv_head}, a.v + j * a.spec.value_dim);
  }
  const Index group = a.spec.head_group();
  for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (Index i = 0; i < sequence.q_len; ++i) attend_row(a, sequence, s, head, i);
  }
}

// Partials are to their union what keys are to a row: their scores are lse, their values out.
void merge_row(std::span<const Partial> partials, ArrayView<float> sinks,
               const AttentionOutput& output, Index row, Index head) {
  const auto lse = [&](const Partial& p) { return double{load_element(p.lse, row, head)}; };
  double max = -kInfinity;
  for (const Partial& p : partials) max = std::max(max, lse(p));
  const auto weighted_sum = [&](auto value) {
    double sum = 0;  // over the partials that saw a key; others may hold anything
    for (const Partial& p : partials) {
      if (lse(p) != -kInfinity) sum += std::exp(lse(p) - max) * value(p);
    }
    return sum;
  };
  const double sum = weighted_sum([](const Partial&) { return 1.0; });
  const double factor = finish_row(output, sinks, row, head, max, sum);
  for (Index d = 0; d < output.out.shape[2]; ++d) {
    const auto value = [&](const Partial& p) { return load_element(p.out, row, head, d); };
    store_element(output.out, weighted_sum(value) * factor, row, head, d);
  }
}

class ReferenceBackend final : public HostBackend {
 public:
  BackendInfo info() const override { return {"reference", version(), "", {}, true}; }

 protected:
  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    const Index num_dims = spec.head_dim + spec.value_dim;
    return {Index{sizeof(double)} * (bounds.max_kv_len * (num_dims + 1) + num_dims), 0};
  }

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream) override {
    const ArrayView<std::int64_t> slots = prepared.batch().kv.slots;
    for (Index i = 0; i < slots.size; ++i) {
      for (Index head = 0; slots[i] >= 0 && head < cache.num_kv_heads; ++head) {
        store_row({cache, KvTensor::kK, slots[i], head}, new_kv.k, i);
        if (!cache.format.v_in_k) store_row({cache, KvTensor::kV, slots[i], head}, new_kv.v, i);
      }
    }
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream) override {
    const Attention a{prepared, params, q, output};
    for (Index s = 0; s < a.batch.num_sequences(); ++s) {
      for (Index head = 0; head < a.spec.num_kv_heads; ++head)
        attend_group(a, source.cache, s, head);
    }
  }

  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream) override {
    for (Index row = 0; row < output.out.shape[0]; ++row) {
      for (Index head = 0; head < output.out.shape[1]; ++head) {
        merge_row(partials, sinks, output, row, head);
      }
    }
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_reference_backend(const BackendOptions&) {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace quire
