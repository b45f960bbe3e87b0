// SPDX-License-Identifier: Apache-2.0
// Dense attention by torch on the device that holds the cache: K and V gathered there by lists of
// indices, then one of torch's kernels.
//
//   flash      16-bit, dims up to 256; causality and windows need no mask; lists of lengths
//   SDPA       the same without lse, where torch may prefer cuDNN: many rows, no window
//   efficient  everything else: f32, long rows, ALiBi, biases, trees; masks are tensors
//   CPU        torch's kernel of the host with a mask: what tests without a device run
//
// Calls only enqueue. Torch allocates what it needs inside of them.
#pragma once

#include <vector>

#include "backends/torch/device_plan.h"
#include "backends/torch/tensors.h"
#include "quire/backend.h"

namespace quire::torch_sdpa {

// The lists of a plan where torch computes.
struct PlanTensors {
  at::Tensor key_blocks, key_tokens, key_positions;     // [keys of all calls], i64
  at::Tensor rows, row_positions;                       // [rows of all calls], i64
  at::Tensor range_begins, range_ends, row_first_keys;  // as the rows
  at::Tensor q_bounds, key_bounds;                      // i32
  at::Tensor patterns;                                  // u8
  at::Tensor new_rows, new_blocks, new_tokens;          // [new tokens], i64
};

// K and V of one call, [keys, num_kv_heads, padded dims]; V may be K itself.
//
// In a dense product 0 * NaN would reach rows that must not see a key. Where a call hides keys from
// rows, K and V that are not finite are zero here, and counted: rows that see one become NaN.
struct DenseKv {
  at::Tensor k;
  at::Tensor v;
  at::Tensor not_finite;  // [keys + 1, num_kv_heads], i64: how many of the keys before are not
};

// The format that torch computes in, and how long its rows are.
DType device_compute_type(const AttentionSpec& spec) noexcept;
std::int64_t device_dims(const AttentionSpec& spec) noexcept;
// Whether torch's flash kernels serve a spec, and with them ragged calls.
bool takes_flash(const AttentionSpec& spec, at::Device device) noexcept;

// Of K and of V of a call. Memory of it is zeroed once: dims past those of the cache stay 0.
std::vector<std::int64_t> dense_shape(const AttentionSpec& spec, const DeviceCall& call);
// Of the counts of a call, whose memory is zeroed once too; empty: it hides nothing.
std::vector<std::int64_t> count_shape(const AttentionSpec& spec, const DeviceCall& call);
// Fills K and V of a call; 8-bit values are multiplied by their scales.
void gather(const AttentionSpec& spec, const DeviceCall& call, const PlanTensors& plan,
            const KvCacheView& cache, DenseKv& kv);

struct DeviceProblem {
  const AttentionSpec& spec;
  const AttentionParams& params;
  const PlanTensors& plan;
  const TensorView& q;
  const AttentionOutput& output;
  at::Device device;
};

// Writes out and lse of the rows of a call.
void attend_call(const DeviceProblem& problem, const DeviceCall& call, const DenseKv& kv);

}  // namespace quire::torch_sdpa
