// SPDX-License-Identifier: Apache-2.0
// Attention small enough for pen and paper, for the tests of the reference. The trick of every
// case: q is 1 and a key is ln(w), so that the key has the weight w; then out = sum(w v) / sum(w)
// and lse = ln(sum(w)).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "backends/reference/reference.h"
#include "quire/backend.h"
#include "quire/kv_cache.h"

namespace quire {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline const float kLn2 = std::log(2.0F);
inline const float kLn3 = std::log(3.0F);
inline const float kLn4 = std::log(4.0F);
inline const float kLn5 = std::log(5.0F);
inline const float kLn7 = std::log(7.0F);
inline const float kLn8 = std::log(8.0F);

struct Result {
  std::vector<float> out;  // [num_rows, num_q_heads, value_dim]
  std::vector<float> lse;  // [num_rows, num_q_heads]
};

inline void expect_values(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isfinite(expected[i])) {
      EXPECT_NEAR(actual[i], expected[i], 2e-6F * std::fmax(1.0F, std::fabs(expected[i]))) << i;
    } else {
      EXPECT_EQ(actual[i], expected[i]) << i;
    }
  }
}

// A reference backend with a batch that holds every case here.
struct TinyBackend {
  static constexpr BatchBounds kBounds{
      .max_sequences = 8, .max_tokens = 16, .max_kv_len = 16, .max_total_kv_len = 64};

  std::unique_ptr<AttentionBackend> backend = make_reference_backend({});
  WorkspaceBuffer workspace;
  std::unique_ptr<PreparedBatch> prepared;

  explicit TinyBackend(const AttentionSpec& spec)
      : workspace(backend->memory(), backend->workspace(spec, kBounds)),
        prepared(backend->make_prepared(spec, kBounds, workspace.view())) {}
  AttentionBackend* operator->() const { return backend.get(); }
};

// One call of attend: f32, one head of dim 1, and one sequence, unless a case says otherwise.
struct Problem {
  AttentionSpec spec;
  AttentionParams params;
  std::vector<float> q;  // [num_rows, num_q_heads, head_dim]
  std::vector<float> k;  // [num_slots, num_kv_heads, head_dim]
  std::vector<float> v;  // [num_slots, num_kv_heads, value_dim]
  std::vector<std::int32_t> q_begins{0};
  std::vector<std::int32_t> q_ends;
  std::vector<std::int32_t> kv_lens;
  std::vector<std::int32_t> blocks{0, 1, 2, 3};  // [num_sequences, blocks_per_sequence]
  std::int64_t blocks_per_sequence = 4;
  std::vector<std::int64_t> ragged_rows;  // instead of blocks
  std::vector<std::uint8_t> tree_bits;
  std::vector<std::int64_t> tree_begins;
  std::vector<std::int32_t> tree_depths;

  Problem() {
    spec.num_q_heads = 1;
    spec.num_kv_heads = 1;
    spec.head_dim = 1;
    spec.value_dim = 1;
    spec.q_dtype = DType::kF32;
    spec.out_dtype = DType::kF32;
    spec.kv.dtype = DType::kF32;
    spec.kv.block_size = 2;
    spec.features.lse = true;
  }

  // Keys of the weights 1, 2, 5 and values 8, 4, 1, padded to two blocks with garbage.
  static Problem three_keys(std::int32_t q_len) {
    Problem problem;
    problem.k = {0, kLn2, kLn5, kNaN};
    problem.v = {8, 4, 1, kNaN};
    problem.kv_lens = {3};
    problem.q_ends = {q_len};
    problem.q.assign(static_cast<std::size_t>(q_len), 1.0F);
    return problem;
  }

  BatchView batch() const {
    BatchView view;
    view.queries = {q_begins, q_ends};
    view.kv.lens = kv_lens;
    view.kv.blocks = ragged_rows.empty() ? BlockTables::padded(blocks, blocks_per_sequence)
                                         : BlockTables::ragged(ragged_rows);
    view.tree_mask = {tree_bits, tree_begins, tree_depths};
    return view;
  }

  KvCacheView cache() {
    const std::int64_t num_slots =
        static_cast<std::int64_t>(k.size()) / spec.num_kv_heads / spec.head_dim;
    const std::int64_t num_blocks = num_slots / spec.kv.block_size;
    const MutableTensorView k_view(
        k.data(), DType::kF32, {num_blocks, spec.kv.block_size, spec.num_kv_heads, spec.head_dim});
    const MutableTensorView v_view(
        v.data(), DType::kF32, {num_blocks, spec.kv.block_size, spec.num_kv_heads, spec.value_dim});
    return view_kv(spec, KvOrder::kBlockTokenHeadDim, k_view, v_view);
  }

  Result attend() {
    const std::int64_t num_rows =
        static_cast<std::int64_t>(q.size()) / spec.num_q_heads / spec.head_dim;
    Result result;
    result.out.assign(static_cast<std::size_t>(num_rows * spec.num_q_heads * spec.value_dim), kNaN);
    result.lse.assign(static_cast<std::size_t>(num_rows * spec.num_q_heads), kNaN);
    attend(TensorView(q.data(), DType::kF32, {num_rows, spec.num_q_heads, spec.head_dim}),
           {.out = {result.out.data(), DType::kF32, {num_rows, spec.num_q_heads, spec.value_dim}},
            .lse = {result.lse.data(), DType::kF32, {num_rows, spec.num_q_heads}}});
    return result;
  }

  void attend(const TensorView& q_view, const AttentionOutput& output) {
    const TinyBackend backend(spec);
    backend->prepare(*backend.prepared, batch());
    backend->attend(*backend.prepared, params, q_view, cache(), output);
  }
};

}  // namespace quire
