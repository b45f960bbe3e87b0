// SPDX-License-Identifier: Apache-2.0
// Properties of the plan over random specs, parameters and lengths. Small parameters are drawn so
// that tiles, head ranges and splits of every kind occur within a few hundred keys.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "plan/plan.h"
#include "quire/attention_spec.h"
#include "quire/batch.h"

namespace quire {
namespace {

// Evenly from [begin, end) in every test: the library's own ranges grow only as a run goes on.
template <class T>
T number(T begin, T end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(begin, end));
}

struct Lengths {
  std::int32_t q_len = 0;
  std::int32_t kv_len = 0;
  bool has_tree = false;
};

// A batch of the given lengths, with random tree masks, and its plan.
struct PlannedBatch {
  PlannedBatch(const PlanSpec& spec_, const std::vector<Lengths>& lengths) : spec(spec_) {
    for (const Lengths& sequence : lengths) {
      const std::int32_t gap = number(0, 3);
      begins.push_back(ends.empty() ? gap : ends.back() + gap);
      ends.push_back(begins.back() + sequence.q_len);
      kv_lens.push_back(sequence.kv_len);
      tree_begins.push_back(sequence.has_tree ? static_cast<std::int64_t>(tree_bits.size()) : -1);
      if (!sequence.has_tree) continue;
      const auto bytes = static_cast<std::size_t>(tree_mask_bytes(sequence.q_len));
      const auto bits =
          *rc::gen::container<std::vector<std::uint8_t>>(bytes, rc::gen::arbitrary<std::uint8_t>());
      tree_bits.insert(tree_bits.end(), bits.begin(), bits.end());
    }
    const int num_rows = ends.empty() ? 0 : ends.back();
    for (int row = 0; row < num_rows; ++row) depths.push_back(number(0, 9));
    view.queries = {begins, ends};
    view.kv.lens = kv_lens;
    view.tree_mask = {tree_bits, tree_begins, depths};
    const auto max_sequences = static_cast<std::int64_t>(lengths.size());
    memory.resize(static_cast<std::size_t>(plan_bytes(max_sequences)) / sizeof(std::int64_t));
    plan = view_plan(memory.data(), max_sequences);
    plan_batch(spec, view, plan);
    totals = plan.offsets[plan.num_sequences];
  }

  std::vector<WorkItem> items_of(std::int64_t sequence) const {
    std::vector<WorkItem> items;
    for (std::int64_t i = plan.offsets[sequence].items; i < plan.offsets[sequence + 1].items; ++i) {
      items.push_back(item_at(spec, plan, i));
    }
    return items;
  }
  std::int64_t num_rows(std::int64_t s) const { return plan.sequences[s].q_len * spec.group; }

  PlanSpec spec;
  std::vector<std::int32_t> begins, ends, kv_lens, depths;
  std::vector<std::int64_t> tree_begins;
  std::vector<std::uint8_t> tree_bits;
  BatchView view;
  std::vector<std::int64_t> memory;
  BatchPlan plan;
  PlanOffsets totals;
};

template <class T>
T one_of(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}

Mask any_mask(std::int64_t longest) {
  Mask mask;
  mask.causal = *rc::gen::arbitrary<bool>();
  if (number(0, 2) == 0) mask.window_left = number<std::int64_t>(0, longest);
  if (number(0, 3) == 0) mask.window_right = number<std::int64_t>(0, longest);
  if (number(0, 3) == 0) mask.chunk = number<std::int64_t>(1, longest);
  return mask;
}

AttentionSpec any_spec(std::int64_t longest_window) {
  AttentionSpec spec;
  spec.num_kv_heads = number(1, 6);
  spec.num_q_heads = spec.num_kv_heads * number(1, 9);
  spec.head_dim = one_of({16, 64, 128, 192, 256, 576});
  spec.value_dim = one_of({16, 64, 128, 192, 256, 512});
  spec.kv.dtype = one_of({DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8});
  if (is_quantized(spec.kv.dtype)) {
    spec.kv.scales = one_of({ScaleGranularity::kPerTensor, ScaleGranularity::kPerTokenHead});
  }
  spec.kv.v_in_k = spec.value_dim <= spec.head_dim && number(0, 4) == 0;
  if (number(0, 5) == 0) {
    spec.alignment = Alignment::kUnaligned;
    spec.mask.causal = false;
  } else {
    spec.mask = any_mask(longest_window);
  }
  return spec;
}

PlanParams small_params() {
  PlanParams params;
  params.kv_heads_per_item = number(1, 7);
  params.row_tile = number(1, 33);
  params.key_tile = number(1, 17);
  params.item_rows = number(1, 65);
  params.split.min_keys = params.key_tile + number(0, 20);
  params.split.unsplit_keys = number(0, 60);
  params.split.merge_keys = number(1, 4);
  params.split.max_partial_percent = number(5, 2000);
  params.split.max_items = number(1, 400);
  params.split.max_partial_rows = number(1, 20000);
  return params;
}

// What a GPU and a CPU backend would use.
PlanParams real_params() {
  PlanParams params;
  params.row_tile = one_of<std::int64_t>({16, 64, 128});
  params.key_tile = one_of<std::int64_t>({16, 32, 64, 128});
  if (*rc::gen::arbitrary<bool>()) {
    params.kv_heads_per_item = 1000;
    params.item_rows = 128;
    params.split.min_keys = 1024;
    params.split.unsplit_keys = 2048;
    params.split.max_items = 128;
  }
  return params;
}

std::vector<Lengths> any_lengths(const AttentionSpec& spec, int max_q_len, int max_kv_len) {
  std::vector<Lengths> batch(number<std::size_t>(0, 5));
  const bool trees_fit = spec.alignment == Alignment::kAligned && spec.mask.causal;
  for (Lengths& sequence : batch) {
    sequence.q_len = number(0, 3) == 0 ? 1 : number(0, max_q_len + 1);
    sequence.kv_len = number(0, max_kv_len + 1);
    sequence.has_tree = trees_fit && sequence.q_len <= sequence.kv_len && number(0, 4) == 0;
  }
  return batch;
}

bool same_item(const WorkItem& a, const WorkItem& b) {
  const auto fields = [](const WorkItem& item) {
    return std::tuple(item.kv_heads.begin, item.kv_heads.end, item.rows.begin, item.rows.end,
                      item.keys.begin, item.keys.end, item.split, item.num_splits,
                      item.partials.head_stride, item.partials.split_stride);
  };
  return fields(a) == fields(b);
}

RC_GTEST_PROP(Plan, TilesEveryVisiblePairOnce, ()) {
  const AttentionSpec attention = any_spec(120);
  const PlannedBatch batch(make_plan_spec(attention, small_params()),
                           any_lengths(attention, 30, 300));
  for (std::int64_t s = 0; s < batch.plan.num_sequences; ++s) {
    const SequenceView sequence = sequence_view(batch.view, s);
    const std::int64_t num_rows = batch.num_rows(s);
    // How often item keys cover a key: a difference array per (kv head, row).
    const auto stride = static_cast<std::size_t>(sequence.kv_len + 1);
    std::vector<int> cover(static_cast<std::size_t>(num_rows * attention.num_kv_heads) * stride, 0);
    for (const WorkItem& item : batch.items_of(s)) {
      RC_ASSERT(item.sequence == s);
      RC_ASSERT(item.rows.size() > 0 && item.kv_heads.size() > 0 && item.keys.size() >= 0);
      RC_ASSERT(item.rows.size() <= batch.spec.params.row_tile && item.rows.end <= num_rows);
      RC_ASSERT(item.kv_heads.end <= attention.num_kv_heads);
      RC_ASSERT(item.keys.empty() || item.keys.end <= sequence.kv_len);
      const IndexRange tokens = token_range(batch.spec, item.rows);
      const KeyRange seen =
          keys_seen(attention.mask, attention.alignment, sequence, tokens.begin, tokens.end);
      RC_ASSERT(item.keys.empty() || (item.keys.begin >= seen.begin && item.keys.end <= seen.end));
      RC_ASSERT(item.num_splits == 1 || !item.keys.empty());
      if (item.keys.empty()) continue;
      for (std::int64_t head = item.kv_heads.begin; head < item.kv_heads.end; ++head) {
        for (std::int64_t row = item.rows.begin; row < item.rows.end; ++row) {
          int* keys = cover.data() + static_cast<std::size_t>(head * num_rows + row) * stride;
          ++keys[item.keys.begin];
          --keys[item.keys.end];
        }
      }
    }
    for (std::int64_t i = 0; i < num_rows * attention.num_kv_heads; ++i) {
      const std::int64_t token = i % num_rows / attention.head_group();
      int times = 0;
      for (std::int64_t key = 0; key < sequence.kv_len; ++key) {
        times += cover[static_cast<std::size_t>(i) * stride + static_cast<std::size_t>(key)];
        RC_ASSERT(times == 0 || times == 1);
        if (is_visible(attention.mask, attention.alignment, sequence, token, key)) {
          RC_ASSERT(times == 1);
        }
      }
    }
  }
}

// The items of a row tile read the keys that its rows see, and no more: with a window or a chunk
// the length of the context costs nothing.
RC_GTEST_PROP(Plan, CostsOnlyWhatIsSeen, ()) {
  AttentionSpec attention = any_spec(20000);
  attention.alignment = Alignment::kAligned;
  const Mask& mask = attention.mask;
  PlannedBatch batch(make_plan_spec(attention, real_params()),
                     any_lengths(attention, 500, 1000000));
  for (std::int64_t s = 0; s < batch.plan.num_sequences; ++s) {
    const SequenceView sequence = sequence_view(batch.view, s);
    std::int64_t keys = 0;
    for (const WorkItem& item : batch.items_of(s)) {
      keys = item.split == 0 ? item.keys.size() : keys + item.keys.size();
      if (item.split + 1 < item.num_splits) continue;
      const IndexRange tokens = token_range(batch.spec, item.rows);
      const KeyRange seen =
          keys_seen(mask, attention.alignment, sequence, tokens.begin, tokens.end);
      RC_ASSERT(keys == seen.size());
      const std::int64_t num_tokens =
          sequence.tree_bits != nullptr ? sequence.q_len : tokens.size();
      if (mask.window_left >= 0 && mask.causal) RC_ASSERT(keys <= mask.window_left + num_tokens);
      if (mask.window_left >= 0 && mask.window_right >= 0) {
        RC_ASSERT(keys <= mask.window_left + mask.window_right + num_tokens);
      }
      if (mask.chunk > 0) RC_ASSERT(keys <= 2 * (mask.chunk - 1) + num_tokens);
    }
  }
}

RC_GTEST_PROP(Plan, ASequenceIsPlannedTheSameInEveryBatch, ()) {
  const AttentionSpec attention = any_spec(3000);
  const PlanSpec spec =
      make_plan_spec(attention, number(0, 2) == 0 ? small_params() : real_params());
  const std::vector<Lengths> lengths = any_lengths(attention, 300, 100000);
  const PlannedBatch batch(spec, lengths);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const PlannedBatch alone(spec, {lengths[s]});
    const std::vector<WorkItem> items = batch.items_of(static_cast<std::int64_t>(s));
    const std::vector<WorkItem> expected = alone.items_of(0);
    RC_ASSERT(items.size() == expected.size());
    for (std::size_t i = 0; i < items.size(); ++i) RC_ASSERT(same_item(items[i], expected[i]));
  }
}

RC_GTEST_PROP(Plan, PartialsStayUnderFivePercentOfTheBytesRead, ()) {
  const AttentionSpec attention = any_spec(100000);  // groups up to 8
  const PlannedBatch batch(make_plan_spec(attention, real_params()),
                           any_lengths(attention, 300, 1000000));
  for (std::int64_t s = 0; s < batch.plan.num_sequences; ++s) {
    std::int64_t read_bytes = 0;
    for (const WorkItem& item : batch.items_of(s)) {
      read_bytes += item.keys.size() * item.kv_heads.size() * batch.spec.key_bytes;
    }
    const std::int64_t rows =
        batch.plan.offsets[s + 1].partial_rows - batch.plan.offsets[s].partial_rows;
    const std::int64_t partial_bytes = rows * (attention.value_dim * 4 + 8);  // written, read again
    RC_ASSERT(2 * partial_bytes * 20 <= read_bytes);
  }
  RC_CLASSIFY(batch.totals.partial_rows > 0, "some sequence is split");
}

// Every unit of a split sequence is merged once, from partial rows that no other item writes.
RC_GTEST_PROP(Plan, MergesCoverThePartialsOfTheirItems, ()) {
  const AttentionSpec attention = any_spec(200);
  const PlannedBatch batch(make_plan_spec(attention, small_params()),
                           any_lengths(attention, 20, 400));
  std::vector<int> written(static_cast<std::size_t>(batch.totals.partial_rows), 0);
  std::vector<std::int64_t> splits_of(static_cast<std::size_t>(batch.totals.merges), 0);
  for (std::int64_t i = 0; i < batch.totals.items; ++i) {
    const WorkItem item = item_at(batch.spec, batch.plan, i);
    if (item.num_splits == 1) continue;
    const Merge merge = merge_at(batch.spec, batch.plan, item.merge);
    RC_ASSERT(merge.sequence == item.sequence && merge.num_splits == item.num_splits);
    RC_ASSERT(merge.rows.begin == item.rows.begin && merge.rows.end == item.rows.end);
    RC_ASSERT(merge.kv_heads.begin == item.kv_heads.begin);
    RC_ASSERT(merge.kv_heads.end == item.kv_heads.end);
    RC_ASSERT(splits_of[static_cast<std::size_t>(item.merge)]++ == item.split);
    for (std::int64_t head = item.kv_heads.begin; head < item.kv_heads.end; ++head) {
      for (std::int64_t row = item.rows.begin; row < item.rows.end; ++row) {
        const std::int64_t at = item.partials.at(item.split, head, row);
        RC_ASSERT(at == merge.partials.at(item.split, head, row));
        RC_ASSERT(at >= 0 && at < batch.totals.partial_rows);
        ++written[static_cast<std::size_t>(at)];
      }
    }
  }
  for (const int times : written) RC_ASSERT(times == 1);
  for (std::int64_t i = 0; i < batch.totals.merges; ++i) {
    RC_ASSERT(splits_of[static_cast<std::size_t>(i)] ==
              merge_at(batch.spec, batch.plan, i).num_splits);
  }
}

// Splits follow each other, their inner borders lie on key tiles, they are as even as tiles allow
// and, on average, no shorter than the rule's least.
RC_GTEST_PROP(Plan, SplitsAreEvenAndAligned, ()) {
  const AttentionSpec attention = any_spec(3000);
  const PlannedBatch batch(make_plan_spec(attention, small_params()),
                           any_lengths(attention, 60, 3000));
  const std::int64_t key_tile = batch.spec.params.key_tile;
  for (std::int64_t s = 0; s < batch.plan.num_sequences; ++s) {
    std::int64_t end = 0;
    std::int64_t keys = 0;  // of the splits of one unit so far
    std::int64_t fewest = 0;
    std::int64_t most = 0;
    for (const WorkItem& item : batch.items_of(s)) {
      const std::int64_t tiles = ceil_div(item.keys.end, key_tile) - item.keys.begin / key_tile;
      if (item.split == 0) {
        fewest = most = tiles;
      } else {
        RC_ASSERT(item.keys.begin == end && end % key_tile == 0);
        fewest = std::min(fewest, tiles);
        most = std::max(most, tiles);
      }
      end = item.keys.end;
      RC_ASSERT(most <= fewest + 1);
      keys = item.split == 0 ? item.keys.size() : keys + item.keys.size();
      if (item.num_splits > 1 && item.split + 1 == item.num_splits) {
        RC_ASSERT(keys >= item.num_splits * batch.spec.params.split.min_keys);
      }
    }
  }
}

// The bounds are what the batch itself is, so nothing is left over to hide behind.
RC_GTEST_PROP(Plan, BoundsHold, ()) {
  const AttentionSpec attention = any_spec(100000);
  const bool small = *rc::gen::arbitrary<bool>();
  const PlanSpec spec = make_plan_spec(attention, small ? small_params() : real_params());
  std::vector<Lengths> lengths = any_lengths(attention, small ? 30 : 600, small ? 500 : 200000);
  if (!lengths.empty()) lengths.resize(lengths.size() + number<std::size_t>(0, 30), lengths[0]);
  const PlannedBatch batch(spec, lengths);
  BatchBounds bounds;
  bounds.max_sequences = batch.plan.num_sequences;
  for (std::int64_t s = 0; s < batch.plan.num_sequences; ++s) {
    bounds.max_tokens += batch.plan.sequences[s].q_len;
    bounds.max_kv_len = std::max<std::int64_t>(bounds.max_kv_len, batch.plan.sequences[s].kv_len);
    bounds.max_total_kv_len += batch.plan.sequences[s].kv_len;
  }
  const PlanBounds bound = plan_bounds(spec, bounds);
  RC_ASSERT(batch.totals.items <= bound.items);
  RC_ASSERT(batch.totals.merges <= bound.merges);
  RC_ASSERT(batch.totals.partial_rows <= bound.partial_rows);
}

// A captured decode step pays for what it needs: the bounds of a batch that fills them are its own.
// Not so at the border of a window, where two queries of one sequence see one key more than one.
RC_GTEST_PROP(Plan, BoundsOfUniformDecodeAreTight, ()) {
  AttentionSpec attention = any_spec(100000);
  attention.mask = {.causal = attention.mask.causal};
  const PlanSpec spec = make_plan_spec(attention, real_params());
  const std::int32_t kv_len = number(1, 200000);
  const auto num_sequences = number<std::int64_t>(1, 50);
  const PlannedBatch batch(spec, std::vector<Lengths>(static_cast<std::size_t>(num_sequences),
                                                      Lengths{1, kv_len, false}));
  const PlanBounds bound =
      plan_bounds(spec, {num_sequences, num_sequences, kv_len, num_sequences * kv_len});
  RC_ASSERT(bound.partial_rows == batch.totals.partial_rows);
  RC_ASSERT(bound.items <= 2 * batch.totals.items);
  RC_ASSERT(bound.merges <= 2 * batch.totals.merges);
}

}  // namespace
}  // namespace quire
