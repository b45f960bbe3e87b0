// SPDX-License-Identifier: Apache-2.0
// Storing, copying and merging by torch's operations, where the tensors lie. Bits of stored K and V
// are those of every other backend.
#pragma once

#include <span>

#include "backends/torch/device_attend.h"
#include "quire/backend.h"

namespace quire::torch_sdpa {

// The new tokens of a plan to their slots.
void store_new(const PlanTensors& plan, const NewKv& new_kv, const KvCacheView& cache);

// Tokens [first_token, first_token + num_tokens) of blocks, one layer; either end may be the host.
// REQUIRES: plain layouts.
void copy_tokens(const KvCacheView& src, const KvCacheView& dst, std::span<const BlockCopy> copies,
                 std::int64_t first_token, std::int64_t num_tokens);

void merge_on_device(std::span<const Partial> partials, ArrayView<float> sinks,
                     const AttentionOutput& output, at::Device device);

}  // namespace quire::torch_sdpa
