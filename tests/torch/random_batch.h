// SPDX-License-Identifier: Apache-2.0
// Random batches as PyTorch tensors, and the same batches as quire sees them: K and V scattered
// over shuffled blocks, with the metadata that finds them. Blocks, slots and codes are made by
// tensor operations, not by quire.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "quire/backend.h"

namespace quire {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Scenario {
  AttentionSpec spec;
  float scale = 0.3F;
  float softcap = 0.0F;
  bool ragged = false;
  unsigned seed = 0;
};

// K or V as a cache holds it.
struct Stored {
  at::Tensor codes;   // [tokens, num_kv_heads, dim]
  at::Tensor scales;  // [tokens, num_kv_heads, 1], f32

  at::Tensor values() const { return codes.to(at::kDouble) * scales.to(at::kDouble); }
};

// Quantisation in PyTorch's words. `caller_scales` is [num_kv_heads, 1], for per tensor and per
// head. REQUIRES: no NaN in x, which is [tokens, num_kv_heads, dim], f32.
Stored quantize(const KvFormat& format, const at::Tensor& x, const at::Tensor& caller_scales);
// [num_kv_heads, 1], small enough to saturate an element now and then.
at::Tensor random_scales(ScaleGranularity granularity, int num_kv_heads);

struct TestSequence {
  std::int64_t first_row = 0;
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  Stored k;           // [kv_len, num_kv_heads, head_dim]
  Stored v;           // [kv_len, num_kv_heads, value_dim]
  at::Tensor tree;    // [q_len, q_len], bool, or undefined
  at::Tensor depths;  // [q_len], i64, or undefined
};

struct TestBatch {
  std::vector<TestSequence> sequences;
  at::Tensor q;         // [num_rows, num_q_heads, head_dim], f32, rows apart
  at::Tensor bias;      // [num_sequences, num_q_heads, longest q_len, longest kv_len], f32
  at::Tensor slopes;    // [num_q_heads], f32
  at::Tensor sinks;     // [num_q_heads], f32
  at::Tensor k_scales;  // the caller's, [num_kv_heads, 1], equal if per tensor
  at::Tensor v_scales;
  std::int64_t max_q_len = 0;
  std::int64_t max_kv_len = 0;
};

TestBatch random_batch(const Scenario& scenario);

// The sequences scattered over the blocks of one cache, and the metadata that finds them.
struct PagedBatch {
  at::Tensor k;         // bytes of [num_slots, num_kv_heads, head_dim]
  at::Tensor v;         // bytes of [num_slots, num_kv_heads, value_dim]
  at::Tensor k_scales;  // [num_slots, num_kv_heads], f32, per (token, head)
  at::Tensor v_scales;
  std::vector<std::int32_t> q_begins;
  std::vector<std::int32_t> q_ends;
  std::vector<std::int32_t> kv_lens;
  std::vector<std::int32_t> table;  // [num_sequences, blocks_per_sequence]
  std::int64_t blocks_per_sequence = 0;
  std::int64_t num_blocks = 0;
  std::vector<std::int64_t> ragged_rows;
  std::vector<std::uint8_t> tree_bits;
  std::vector<std::int64_t> tree_begins;
  std::vector<std::int32_t> depths;  // [num_rows]
};

PagedBatch scatter_batch(const Scenario& scenario, const TestBatch& batch);

// Views of what the arguments own.
KvCacheView view_cache(const AttentionSpec& spec, const TestBatch& batch, PagedBatch& paged);
BatchView view_batch(const Scenario& scenario, const PagedBatch& paged);
MutableTensorView view_tensor(const at::Tensor& tensor);  // f32
ArrayView<float> view_array(const at::Tensor& tensor);

}  // namespace quire
