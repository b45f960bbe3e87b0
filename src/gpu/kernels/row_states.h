// SPDX-License-Identifier: Apache-2.0
// The end of an item: rows that are whole are written out; rows of a split go to the workspace, and
// whoever finishes a unit's last split merges all of them, in the order of the splits.
//
// The state of a row is a sum of values, the maximum of its scores in powers of two, and the sum of
// the weights 2^(score - maximum); -inf and 0 if it saw no key.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernel_args.h"

namespace quire::gpu {

inline constexpr double kLog2EExact = 1.44269504088896340736;
inline constexpr float kLog2E = static_cast<float>(kLog2EExact);
inline constexpr float kLn2 = 0.69314718055994530942F;

// Where the results of packed row `row` of an item go.
struct OutputRow {
  std::int64_t token;  // row of Q and out
  std::int64_t head;   // of the queries
};
QUIRE_DEVICE OutputRow output_row(const AttendArgs& args, const Item& item, int row) {
  const int packed = item.first_row + row;
  const int token = packed / args.group;
  return {item.q_begin + static_cast<std::int64_t>(token),
          static_cast<std::int64_t>(item.kv_head) * args.group + (packed - token * args.group)};
}

// Stores the row's lse and returns what its sum of values is to be multiplied by.
QUIRE_DEVICE float finish_row(const AttendArgs& args, const OutputRow& to, float maximum, float sum,
                              bool stores_lse) {
  const bool saw = sum != 0.0F;  // NaN saw something
  const float lse = saw ? maximum * kLn2 + log_exact(sum) : negative_infinity();
  const MutableTensorView& out_lse = args.output.lse;
  if (stores_lse && out_lse.rank != 0) {
    static_cast<float*>(
        out_lse.data)[to.token * out_lse.strides[0] + to.head * out_lse.strides[1]] = lse;
  }
  if (!saw) return 0.0F;
  float factor = 1.0F / sum;
  if (args.params.sinks.size != 0) {
    factor = factor / (1.0F + exp_exact(args.params.sinks.data[to.head] - lse));
  }
  return factor;
}

QUIRE_DEVICE void store_value(const MutableTensorView& out, const OutputRow& to, std::int64_t dim,
                              float x) {
  store_float(out.dtype, out.data,
              to.token * out.strides[0] + to.head * out.strides[1] + dim * out.strides[2], x);
}

// One team: the state of one row from its splits, to the output.
QUIRE_DEVICE void merge_row(const AttendArgs& args, const Item& item, int row) {
  const std::int64_t split_stride =
      static_cast<std::int64_t>(item.q_len) * args.group * args.num_kv_heads;
  const std::int64_t first = item.partial_row - item.split * split_stride + row;
  const int num_splits = item.num_splits;
  float maximum = negative_infinity();
  for (int split = lane(); split < num_splits; split += kTeam) {
    maximum = max_of(maximum,
                     load_shared_by_blocks(args.partial_sums + 2 * (first + split * split_stride)));
  }
  maximum = team_max(maximum);
  const float base = maximum == negative_infinity() ? 0.0F : maximum;
  float sum = 0.0F;
  for (int split = 0; split < num_splits; ++split) {
    const float* sums = args.partial_sums + 2 * (first + split * split_stride);
    sum += exp2_fast(load_shared_by_blocks(sums) - base) * load_shared_by_blocks(sums + 1);
  }
  const OutputRow to = output_row(args, item, row);
  const float factor = finish_row(args, to, maximum, sum, lane() == 0);
  const auto value_dim = static_cast<int>(args.output.out.shape[2]);
  for (int dim = 4 * lane(); dim < value_dim; dim += 4 * kTeam) {
    float total[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    constexpr int kInFlight = 8;
    for (int split = 0; split < num_splits; split += kInFlight) {
      Float4 values[kInFlight];
      float weights[kInFlight];
      QUIRE_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        const std::int64_t at = first + (split + i) * split_stride;
        const bool is_split = split + i < num_splits;
        weights[i] =
            is_split ? load_shared_by_blocks(args.partial_sums + 2 * at) : negative_infinity();
        values[i] = is_split ? load_shared_by_blocks(reinterpret_cast<const Float4*>(
                                   args.partial_values + at * args.value_stride + dim))
                             : Float4{0.0F, 0.0F, 0.0F, 0.0F};
      }
      QUIRE_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        if (weights[i] == negative_infinity()) continue;  // saw nothing, or no such split
        const float weight = exp2_fast(weights[i] - base);
        total[0] += weight * values[i].x;
        total[1] += weight * values[i].y;
        total[2] += weight * values[i].z;
        total[3] += weight * values[i].w;
      }
    }
    for (int i = 0; i < 4 && dim + i < value_dim; ++i) {
      store_value(args.output.out, to, dim + i, total[i] * factor);
    }
  }
}

// Four threads: an item to shared memory.
QUIRE_DEVICE void fetch_item(const AttendArgs& args, int index, Item* to) {
  constexpr int kPieces = sizeof(Item) / sizeof(Sixteen);
  if (thread_index() >= kPieces) return;
  reinterpret_cast<Sixteen*>(to)[thread_index()] =
      reinterpret_cast<const Sixteen*>(args.items + index)[thread_index()];
}

// Counts a split whose partial rows all threads of the block have written and fenced; the flag, in
// shared memory, says after the next barrier whether it was the unit's last.
QUIRE_DEVICE void count_split(const AttendArgs& args, const Item& item, int* flag) {
  if (thread_index() != 0) return;
  const bool last = atomic_add(args.merge_counters + item.merge, 1) == item.num_splits - 1;
  if (last) {
    fence();
    args.merge_counters[item.merge] = 0;  // for the next layer
  }
  *flag = last ? 1 : 0;
}

// All threads of the block: the rows of a unit whose splits are all there.
QUIRE_DEVICE void merge_rows(const AttendArgs& args, const Item& item) {
  fence();
  for (int row = team(); row < item.num_rows; row += num_threads() / kTeam) {
    merge_row(args, item, row);
  }
}

// The last thread block makes the counters ready for the next layer.
QUIRE_DEVICE void finish_items(const AttendArgs& args) {
  if (thread_index() != 0) return;
  fence();
  if (atomic_add(args.done, 1) != num_blocks() - 1) return;
  fence();  // after the last atomics of all others
  *args.next_item = 0;
  *args.done = 0;
}

}  // namespace quire::gpu
