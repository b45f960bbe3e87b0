// SPDX-License-Identifier: Apache-2.0
// The end of an item: rows that are whole are written out; states of rows over some of their keys
// go to the workspace, and whoever adds the last of a unit's splits merges all of them.
//
// The state of a row is a sum of values, the maximum of its scores in powers of two, and the sum of
// the weights 2^(score - maximum); -inf and 0 if it saw no key. States are folded in the order of
// the splits, one after another, by one rule: a thread block that attends to the first splits of a
// unit folds them as it goes, and gets the bits that a merge of them would give.
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
  const int token = divide(packed, args.by_group);
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

// Where values of 16 bits from `dim` on lie. REQUIRES: AttendArgs::out_in_sixteens.
QUIRE_DEVICE std::uint16_t* value_bits(const MutableTensorView& out, const OutputRow& to, int dim) {
  return static_cast<std::uint16_t*>(out.data) + to.token * out.strides[0] +
         to.head * out.strides[1] + dim;
}

// Four values from `dim` on, as far as the row has them, times `factor`.
QUIRE_DEVICE void store_four(const AttendArgs& args, const OutputRow& to, int dim,
                             const float (&values)[4], float factor) {
  const MutableTensorView& out = args.output.out;
  if (args.out_in_sixteens) {
    auto* at = reinterpret_cast<std::uint32_t*>(value_bits(out, to, dim));
    const bool is_bf16 = out.dtype == DType::kBF16;
    QUIRE_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const float low = values[i] * factor;
      const float high = values[i + 1] * factor;
      at[i / 2] = is_bf16 ? pack(low, high, BFloat16{}) : pack(low, high, Float16{});
    }
    return;
  }
  const auto value_dim = static_cast<int>(out.shape[2]);
  for (int i = 0; i < 4 && dim + i < value_dim; ++i) {
    store_value(out, to, dim + i, values[i] * factor);
  }
}

// What the states on either side of a fold are multiplied by.
struct FoldFactors {
  float kept;   // of what was folded so far
  float added;  // of the next split
};
QUIRE_DEVICE FoldFactors fold_factors(float maximum_before, float maximum, float maximum_after) {
  const float base = maximum_after == negative_infinity() ? 0.0F : maximum_after;
  return {exp2_fast(maximum_before - base), exp2_fast(maximum - base)};
}
// A factor of 0 leaves nothing, of infinity neither.
QUIRE_DEVICE float fold_value(const FoldFactors& factors, float before, float next) {
  const float kept = factors.kept == 0.0F ? 0.0F : before * factors.kept;
  return factors.added == 0.0F ? kept : fused(next, factors.added, kept);
}

// Shared memory in which a team merges states: four values a lane of each.
inline constexpr int kMergeStateBytes = kTeam * static_cast<int>(sizeof(Float4));
struct MergeSpace {
  unsigned char* states;  // the team's own
  int capacity;           // in states
};

// One team: the state of one row from its splits, to the output. Partial `first` holds the state of
// all splits up to it. Few thread blocks merge, and rarely, so that this code is far away when it
// is needed: it is short, and waits for memory once for as many states as there is space for.
QUIRE_DEVICE void merge_row(const AttendArgs& args, const Item& item, int row, int first,
                            const MergeSpace& space) {
  const std::int64_t split_stride =
      static_cast<std::int64_t>(item.q_len) * args.group * args.num_kv_heads;
  const std::int64_t first_row = item.partial_row - (item.split - first) * split_stride + row;
  const int num_states = item.num_splits - first;
  const auto value_dim = static_cast<int>(args.output.out.shape[2]);
  const OutputRow to = output_row(args, item, row);
  Float4* own_values = reinterpret_cast<Float4*>(space.states) + lane();
  QUIRE_NO_UNROLL
  for (int dim = 4 * lane(); dim - 4 * lane() < value_dim; dim += 4 * kTeam) {
    float total[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    float sum = 0.0F;
    float maximum = negative_infinity();
    QUIRE_NO_UNROLL
    for (int begin = 0; begin < num_states; begin += space.capacity) {
      const int num_left = num_states - begin;
      const int count = num_left < space.capacity ? num_left : space.capacity;
      const std::int64_t begin_row = first_row + begin * split_stride;
      sync_team();  // what was read there before has been
      const float* values = args.partial_values + begin_row * args.value_stride + dim;
      QUIRE_NO_UNROLL
      for (int i = 0; i < count; ++i) {
        async_copy16(own_values + i * kTeam, values, dim < value_dim);
        values += split_stride * args.value_stride;
      }
      async_commit();
      QUIRE_NO_UNROLL
      for (int part = 0; part < count; part += kTeam) {
        // A state a lane: its maximum and sum are loaded once, and its factors handed out as its
        // values are folded.
        const bool is_state = part + lane() < count;
        const float* sums = args.partial_sums + 2 * (begin_row + (part + lane()) * split_stride);
        const float of_state = is_state ? load_shared_by_blocks(sums) : negative_infinity();
        const float sum_of_state = is_state ? load_shared_by_blocks(sums + 1) : 0.0F;
        float after = max_of(maximum, of_state);
        QUIRE_UNROLL
        for (int step = 1; step < kTeam; step *= 2) {
          const float other = shuffle(after, lane() >= step ? lane() - step : lane());
          after = max_of(after, other);
        }
        const float last = shuffle(after, lane() > 0 ? lane() - 1 : 0);
        const FoldFactors own = fold_factors(lane() > 0 ? last : maximum, of_state, after);
        async_wait<0>();  // what a lane reads it has copied itself
        const int num_lanes = count - part < kTeam ? count - part : kTeam;
        QUIRE_UNROLL_4
        for (int i = 0; i < num_lanes; ++i) {
          const FoldFactors factors{shuffle(own.kept, i), shuffle(own.added, i)};
          const Float4 next = own_values[(part + i) * kTeam];
          sum = fold_value(factors, sum, shuffle(sum_of_state, i));
          total[0] = fold_value(factors, total[0], next.x);
          total[1] = fold_value(factors, total[1], next.y);
          total[2] = fold_value(factors, total[2], next.z);
          total[3] = fold_value(factors, total[3], next.w);
        }
        maximum = shuffle(after, kTeam - 1);
      }
    }
    const float factor = finish_row(args, to, maximum, sum, lane() == 0 && dim == 0);
    if (dim < value_dim) store_four(args, to, dim, total, factor);
  }
}

// Four threads bring an item to shared memory, a piece each: through registers, where what the load
// returns is needed only when it is stored, or asynchronously, with the copies of their teams' next
// groups.
inline constexpr int kItemPieces = sizeof(Item) / sizeof(Sixteen);
QUIRE_DEVICE Sixteen load_item_piece(const Item* item) {
  if (thread_index() >= kItemPieces) return {};
  return reinterpret_cast<const Sixteen*>(item)[thread_index()];
}
QUIRE_DEVICE void store_item_piece(Item* to, const Sixteen& piece) {
  if (thread_index() < kItemPieces) reinterpret_cast<Sixteen*>(to)[thread_index()] = piece;
}
// The same for the start of a run, through registers.
QUIRE_DEVICE Sixteen load_start_piece(const RunStart* start) {
  constexpr int kPieces = sizeof(RunStart) / sizeof(Sixteen);
  if (thread_index() >= kPieces) return {};
  return reinterpret_cast<const Sixteen*>(start)[thread_index()];
}
QUIRE_DEVICE void store_start_piece(Item* item, std::int32_t* ids, const Sixteen& piece) {
  store_item_piece(item, piece);
  constexpr int kPieces = kFirstIds * 4 / static_cast<int>(sizeof(Sixteen));
  const int i = thread_index() - kItemPieces;
  if (i >= 0 && i < kPieces) reinterpret_cast<Sixteen*>(ids)[i] = piece;
}
QUIRE_DEVICE void copy_item_piece(Item* to, const Item* item) {
  if (thread_index() >= kItemPieces) return;
  async_copy16(reinterpret_cast<Sixteen*>(to) + thread_index(),
               reinterpret_cast<const Sixteen*>(item) + thread_index(), true);
}

// Counts splits of a unit whose states all threads of the block have written before the last
// barrier: `count` of them, up to that of the item; `folded` says that they are the first ones, and
// in one state. Thread 0 gets the partial that a merge begins with if these were the last splits
// missing, which makes the counter ready for the next layer, else -1.
QUIRE_DEVICE int add_splits(const AttendArgs& args, const Item& item, int count, bool folded) {
  constexpr int kFolded = 1 << 16;  // times the number of splits in the first state
  if (thread_index() != 0) return -1;
  const int added = count + (folded ? count * kFolded : 0);
  const int all = atomic_add_ordered(args.merge_counters + item.merge, added) + added;
  if (all % kFolded != item.num_splits) return -1;
  args.merge_counters[item.merge] = 0;
  return all < kFolded ? 0 : all / kFolded - 1;
}

// All threads of the block: the rows of a unit whose splits are all there.
QUIRE_DEVICE void merge_rows(const AttendArgs& args, const Item& item, int first,
                             const MergeSpace& space) {
  QUIRE_NO_UNROLL
  for (int row = team(); row < item.num_rows; row += num_threads() / kTeam) {
    merge_row(args, item, row, first, space);
  }
}

// Thread blocks of kernels without runs take items one by one. Those of the first grid begin with
// that of their number, and may all run; those of a second one, which may come late, with what is
// left. `slot` is in shared memory.
QUIRE_DEVICE int take_item(const AttendArgs& args) {
  return args.num_first_blocks + atomic_add(args.next_item, 1);
}
QUIRE_DEVICE int first_item_taken(const AttendArgs& args, int* slot) {
  if (args.is_first_grid) return block_index();
  if (thread_index() == 0) *slot = take_item(args);
  sync_block();
  const int index = *slot;
  sync_block();
  return index;
}

// The last thread block of all that share the list makes the counters ready for the next layer.
QUIRE_DEVICE void finish_items(const AttendArgs& args) {
  if (thread_index() != 0) return;
  fence();
  if (atomic_add(args.done, 1) != args.num_blocks - 1) return;
  fence();  // after the last atomics of all others
  *args.next_item = 0;
  *args.done = 0;
}

}  // namespace quire::gpu
