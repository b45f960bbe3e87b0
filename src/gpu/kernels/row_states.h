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
  const int token = item.q_len == 1 ? 0 : packed / args.group;
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
  // A split a lane: its maximum and sum are loaded once, and handed out as its values are added.
  const auto sums_of = [&](int split, float& largest, float& sum) {
    const float* sums = args.partial_sums + 2 * (first + split * split_stride);
    const bool is_split = split < num_splits;
    largest = is_split ? load_shared_by_blocks(sums) : negative_infinity();
    sum = is_split ? load_shared_by_blocks(sums + 1) : 0.0F;
  };
  float largest;
  float sum_of_lane;
  sums_of(lane(), largest, sum_of_lane);
  float maximum = largest;
  QUIRE_NO_UNROLL
  for (int split = lane() + kTeam; split < num_splits; split += kTeam) {
    float other;
    float unused;
    sums_of(split, other, unused);
    maximum = max_of(maximum, other);
  }
  maximum = team_max(maximum);
  const float base = maximum == negative_infinity() ? 0.0F : maximum;
  constexpr int kInFlight = 16;
  const auto value_dim = static_cast<int>(args.output.out.shape[2]);
  const OutputRow to = output_row(args, item, row);
  float sum = 0.0F;
  float factor = 0.0F;
  QUIRE_NO_UNROLL
  for (int dim = 4 * lane(); dim - 4 * lane() < value_dim; dim += 4 * kTeam) {
    float total[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    float added = 0.0F;
    QUIRE_NO_UNROLL
    for (int begin = 0; begin < num_splits; begin += kTeam) {
      if (begin > 0 || dim >= 4 * kTeam) sums_of(begin + lane(), largest, sum_of_lane);
      added += exp2_fast(largest - base) * sum_of_lane;
      const int count = num_splits - begin < kTeam ? num_splits - begin : kTeam;
      QUIRE_NO_UNROLL
      for (int split = 0; split < count; split += kInFlight) {
        Float4 values[kInFlight];
        QUIRE_UNROLL
        for (int i = 0; i < kInFlight; ++i) {
          const std::int64_t at = first + (begin + split + i) * split_stride;
          const bool is_there = (split + i < count) & (dim < value_dim);
          values[i] = is_there ? load_shared_by_blocks(reinterpret_cast<const Float4*>(
                                     args.partial_values + at * args.value_stride + dim))
                               : Float4{0.0F, 0.0F, 0.0F, 0.0F};
        }
        QUIRE_UNROLL
        for (int i = 0; i < kInFlight; ++i) {
          const float top = shuffle(largest, (split + i) % kTeam);
          if (split + i >= count || top == negative_infinity()) continue;  // saw nothing
          const float of_split = exp2_fast(top - base);
          total[0] += of_split * values[i].x;
          total[1] += of_split * values[i].y;
          total[2] += of_split * values[i].z;
          total[3] += of_split * values[i].w;
        }
      }
    }
    if (dim < 4 * kTeam) {
      sum = team_sum(added);
      factor = finish_row(args, to, maximum, sum, lane() == 0);
    }
    for (int i = 0; i < 4 && dim + i < value_dim; ++i) {
      store_value(args.output.out, to, dim + i, total[i] * factor);
    }
  }
}

// Four threads bring an item to shared memory, a piece each; what the load returns is needed only
// when it is stored. Items up to the room of the list may be loaded.
QUIRE_DEVICE Sixteen load_item_piece(const AttendArgs& args, int index) {
  constexpr int kPieces = sizeof(Item) / sizeof(Sixteen);
  if (thread_index() >= kPieces) return {};
  return reinterpret_cast<const Sixteen*>(args.items + index)[thread_index()];
}
QUIRE_DEVICE void store_item_piece(Item* to, const Sixteen& piece) {
  constexpr int kPieces = sizeof(Item) / sizeof(Sixteen);
  if (thread_index() < kPieces) reinterpret_cast<Sixteen*>(to)[thread_index()] = piece;
}

// Counts a split of an item, if it is one, whose partial rows all threads of the block have written
// before the last barrier. Returns to thread 0 how many of the unit were there before.
QUIRE_DEVICE int count_split(const AttendArgs& args, const Item& item) {
  if (item.num_splits == 1 || thread_index() != 0) return 0;
  fence();
  return atomic_add(args.merge_counters + item.merge, 1);
}
// Thread 0: whether that was the unit's last, which makes the counter ready for the next layer.
QUIRE_DEVICE bool is_last_split(const AttendArgs& args, const Item& item, int splits_before) {
  if (item.num_splits == 1 || splits_before != item.num_splits - 1) return false;
  fence();
  args.merge_counters[item.merge] = 0;
  return true;
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
