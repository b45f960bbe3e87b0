// SPDX-License-Identifier: Apache-2.0
// A whole backend, as small as it gets: docs/adding_a_backend.md walks through it. It computes one
// row at a time in f32, refuses what it does not do, and runs the conformance suite on itself.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

#include "attention/mask.h"
#include "backends/host_backend.h"
#include "base/tensor_element.h"
#include "conformance/case_list.h"
#include "conformance/run.h"
#include "layout/kv_offset.h"
#include "layout/kv_rows.h"

namespace {

using namespace quire;

class MinimalBackend final : public HostBackend {
 public:
  BackendInfo info() const override {
    return {.name = "minimal", .version = "1", .isa = "", .device = {}, .batch_invariant = true};
  }

 protected:
  // Every reason, not only the first: the caller sees all that stands in the way.
  void collect_reasons(const AttentionSpec& spec, Support& support) const override {
    HostBackend::collect_reasons(spec, support);
    if (spec.features.alibi) support.reasons.emplace_back("ALiBi is not implemented");
    if (spec.features.bias) support.reasons.emplace_back("bias is not implemented");
  }

  // One K or V row, one output row and the scores of one query: nothing is allocated in a step.
  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    const std::int64_t floats = bounds.max_kv_len + 2 * std::max(spec.head_dim, spec.value_dim);
    return {.host_bytes = floats * static_cast<std::int64_t>(sizeof(float)), .device_bytes = 0};
  }

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream) override {
    float* row = static_cast<float*>(prepared.workspace().host);
    const ArrayView<std::int64_t> slots = prepared.batch().kv.slots;
    for (std::int64_t i = 0; i < slots.size; ++i) {
      if (slots[i] < 0) continue;
      for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
        if (tensor == KvTensor::kV && cache.format.v_in_k) continue;
        const TensorView& source = tensor == KvTensor::kK ? new_kv.k : new_kv.v;
        for (std::int64_t head = 0; head < cache.num_kv_heads; ++head) {
          for (std::int64_t d = 0; d < row_dims(cache, tensor); ++d) {
            row[d] = load_element(source, i, head, d);
          }
          store_row(cache, tensor, slots[i] / cache.format.block_size, head,
                    slots[i] % cache.format.block_size, row);
        }
      }
    }
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream) override {
    const BatchView& batch = prepared.batch();
    for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
      const SequenceView sequence = sequence_view(batch, s);
      for (std::int64_t i = 0; i < sequence.q_len; ++i) {
        for (std::int64_t head = 0; head < prepared.spec().num_q_heads; ++head) {
          attend_row(prepared, params, q, source.cache, output, {s, i, head});
        }
      }
    }
  }

  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream) override {
    for (std::int64_t row = 0; row < output.out.shape[0]; ++row) {
      for (std::int64_t head = 0; head < output.out.shape[1]; ++head) {
        double max = -std::numeric_limits<double>::infinity();
        for (const Partial& p : partials) {
          max = std::max(max, double{load_element(p.lse, row, head)});
        }
        const auto weight = [&](const Partial& p) {
          const double lse = load_element(p.lse, row, head);
          return std::isinf(lse) ? 0 : std::exp(lse - max);
        };
        double sum = 0;
        for (const Partial& p : partials) sum += weight(p);
        const double lse = max + std::log(sum);
        if (output.lse.present()) store_element(output.lse, lse, row, head);
        const double sink = sinks.empty() ? 1 : 1 / (1 + std::exp(sinks[head] - lse));
        for (std::int64_t d = 0; d < output.out.shape[2]; ++d) {
          double value = 0;
          for (const Partial& p : partials) {
            if (weight(p) > 0) value += weight(p) * load_element(p.out, row, head, d);
          }
          store_element(output.out, sum > 0 ? value / sum * sink : 0, row, head, d);
        }
      }
    }
  }

 private:
  struct Row {
    std::int64_t sequence, query, head;
  };

  // softmax(scale q.K^T) V of one row: scores first, then the weighted sum of the visible values.
  static void attend_row(const PreparedBatch& prepared, const AttentionParams& params,
                         const TensorView& q, const KvCacheView& cache,
                         const AttentionOutput& output, const Row& row) {
    const AttentionSpec& spec = prepared.spec();
    const SequenceView sequence = sequence_view(prepared.batch(), row.sequence);
    const std::int64_t token = prepared.batch().queries.begins[row.sequence] + row.query;
    const std::int64_t kv_head = row.head / spec.head_group();
    float* scores = static_cast<float*>(prepared.workspace().host);
    float* kv = scores + prepared.bounds().max_kv_len;
    float* out = kv + std::max(spec.head_dim, spec.value_dim);
    const auto load = [&](KvTensor tensor, std::int64_t j) {
      const std::int64_t slot =
          key_slot(prepared.batch().kv.blocks, cache.format.block_size, row.sequence, j);
      load_row(cache, tensor, slot / cache.format.block_size, kv_head,
               slot % cache.format.block_size, kv);
    };
    const auto visible = [&](std::int64_t j) {
      return is_visible(spec.mask, spec.alignment, sequence, row.query, j);
    };
    float max = -std::numeric_limits<float>::infinity();
    for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
      if (!visible(j)) continue;
      load(KvTensor::kK, j);
      float dot = 0;
      for (int d = 0; d < spec.head_dim; ++d) dot += load_element(q, token, row.head, d) * kv[d];
      scores[j] = params.scale * dot;
      if (params.softcap > 0) scores[j] = params.softcap * std::tanh(scores[j] / params.softcap);
      max = std::max(max, scores[j]);
    }
    std::fill_n(out, spec.value_dim, 0.0F);
    double sum = 0;
    for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
      if (!visible(j)) continue;
      load(KvTensor::kV, j);
      const float weight = std::exp(scores[j] - max);
      sum += weight;
      for (int d = 0; d < spec.value_dim; ++d) out[d] += weight * kv[d];
    }
    const double lse = max + std::log(sum);
    const double sink = params.sinks.empty() ? 1 : 1 / (1 + std::exp(params.sinks[row.head] - lse));
    for (int d = 0; d < spec.value_dim; ++d) {
      store_element(output.out, sum > 0 ? out[d] / sum * sink : 0, token, row.head, d);
    }
    if (output.lse.present()) store_element(output.lse, lse, token, row.head);
  }
};

}  // namespace

int main() {
  MinimalBackend backend;
  conformance::RunSummary summary;
  for (const conformance::Case& c :
       conformance::select(conformance::all_cases(), conformance::Suite::kSmoke)) {
    const conformance::CaseResult result = conformance::run_case(backend, c);
    summary.add(result);
    if (!result.reason.empty()) std::printf("%s: %s\n", c.name.c_str(), result.reason.c_str());
  }
  std::printf(
      "%lld passed, %lld failed, %lld skipped\n", static_cast<long long>(summary.num_passed),
      static_cast<long long>(summary.num_failed), static_cast<long long>(summary.num_skipped));
  return summary.num_failed == 0 ? 0 : 1;
}
