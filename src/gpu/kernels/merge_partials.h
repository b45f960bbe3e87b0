// SPDX-License-Identifier: Apache-2.0
// Attention over the union of the keys of several partial results; a team for each row and head.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernel_args.h"

namespace quire::gpu {

inline constexpr int kMergeThreads = 128;

QUIRE_DEVICE void merge_partials(const MergeArgs& args) {
  constexpr int kTeams = kMergeThreads / kTeam;
  const MutableTensorView& out = args.output.out;
  const PartialView* partials = args.many != nullptr ? args.many : args.few;
  const std::int64_t num_heads = out.shape[1];
  const std::int64_t num_rows = out.shape[0] * num_heads;
  for (std::int64_t i = static_cast<std::int64_t>(block_index()) * kTeams + team(); i < num_rows;
       i += static_cast<std::int64_t>(num_blocks()) * kTeams) {
    const std::int64_t row = i / num_heads;
    const std::int64_t head = i - row * num_heads;
    const auto lse_of = [&](const PartialView& part) {
      return part.lse[row * part.lse_strides[0] + head * part.lse_strides[1]];
    };
    float maximum = negative_infinity();
    for (int p = 0; p < args.num_partials; ++p) maximum = max_of(maximum, lse_of(partials[p]));
    const float base = maximum == negative_infinity() ? 0.0F : maximum;
    float sum = 0.0F;
    bool saw = false;
    for (int p = 0; p < args.num_partials; ++p) {
      const float lse = lse_of(partials[p]);
      if (lse == negative_infinity()) continue;  // saw no key: its values may be anything
      saw = true;
      sum += exp_exact(lse - base);
    }
    const float lse = saw ? base + log_exact(sum) : negative_infinity();
    const MutableTensorView& out_lse = args.output.lse;
    if (lane() == 0 && out_lse.rank != 0) {
      static_cast<float*>(out_lse.data)[row * out_lse.strides[0] + head * out_lse.strides[1]] = lse;
    }
    float factor = saw ? 1.0F / sum : 0.0F;
    if (saw && args.sinks.size != 0) {
      factor = factor / (1.0F + exp_exact(args.sinks.data[head] - lse));
    }
    for (std::int64_t dim = lane(); dim < out.shape[2]; dim += kTeam) {
      float total = 0.0F;
      for (int p = 0; p < args.num_partials; ++p) {
        const PartialView& part = partials[p];
        const float part_lse = lse_of(part);
        if (part_lse == negative_infinity()) continue;
        const std::int64_t at =
            row * part.out_strides[0] + head * part.out_strides[1] + dim * part.out_strides[2];
        total += exp_exact(part_lse - base) * load_float(part.dtype, part.out, at);
      }
      store_float(out.dtype, out.data,
                  row * out.strides[0] + head * out.strides[1] + dim * out.strides[2],
                  total * factor);
    }
  }
}

}  // namespace quire::gpu
