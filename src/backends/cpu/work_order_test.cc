// SPDX-License-Identifier: Apache-2.0
// Every item and every merge is taken once, head by head, whatever the batch and the threads.
#include "backends/cpu/work_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "conformance/random.h"
#include "quire/attention_spec.h"

namespace quire::cpu {
namespace {

using conformance::Random;
using Lengths = std::vector<std::pair<std::int32_t, std::int32_t>>;  // q_len, kv_len

PlanSpec make_spec(int num_q_heads, int num_kv_heads) {
  AttentionSpec spec;
  spec.num_q_heads = num_q_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.head_dim = 128;
  spec.value_dim = 128;
  PlanParams params;
  params.kv_heads_per_item = 1000;
  params.row_tile = 96;
  params.item_rows = 96;
  params.rows_per_key_read = 13;
  params.split.merge_keys = 8;
  return make_plan_spec(spec, params);
}

struct Ordered {
  // The first `shared_keys` of every sequence lie in the same blocks.
  Ordered(const PlanSpec& spec_, const Lengths& lengths, int num_threads,
          std::int64_t shared_keys = 0)
      : spec(spec_) {
    std::vector<std::int32_t> offsets = {0};
    std::vector<std::int32_t> kv_lens;
    for (const auto& [q_len, kv_len] : lengths) {
      offsets.push_back(offsets.back() + q_len);
      kv_lens.push_back(kv_len);
    }
    const std::int64_t n = std::ssize(lengths);
    plan_memory.resize(static_cast<std::size_t>(plan_bytes(n)) / 8 + 1);
    order_memory.resize(static_cast<std::size_t>(order_bytes(n)) / 8 + 1);
    plan = view_plan(plan_memory.data(), n);
    order = view_order(order_memory.data(), n);
    BatchView batch;
    batch.queries = QueryRanges::packed(offsets);
    batch.kv.lens = kv_lens;
    plan_batch(spec, batch, plan);
    constexpr std::int64_t kBlockSize = 16;
    std::int64_t num_blocks = 0;
    for (const std::int32_t kv_len : kv_lens) {
      num_blocks = std::max<std::int64_t>(num_blocks, ceil_div(kv_len, kBlockSize));
    }
    std::vector<std::int32_t> blocks;
    for (std::int64_t s = 0; s < n; ++s) {
      for (std::int64_t i = 0; i < num_blocks; ++i) {
        const bool shared = (i + 1) * kBlockSize <= shared_keys;
        blocks.push_back(static_cast<std::int32_t>(shared ? i : (s + 1) * num_blocks + i));
      }
    }
    const BlockTables tables = BlockTables::padded(blocks, num_blocks);
    const KeyPlaces places = {.tables = tables, .block_size = kBlockSize};
    order_work(spec, plan, num_threads, order, &places);
  }

  PlanSpec spec;
  std::vector<std::int64_t> plan_memory;
  std::vector<std::int64_t> order_memory;
  BatchPlan plan;
  WorkOrder order;
};

// Each (sequence, split, kv head, rows), as often as it comes: rows together in items, which are
// only cut by heads, and one by one in merges.
using Visits = std::vector<std::array<std::int64_t, 5>>;

void visit_item(Visits& visits, const WorkItem& item) {
  for (std::int64_t head = item.kv_heads.begin; head < item.kv_heads.end; ++head) {
    visits.push_back({item.sequence, item.split, head, item.rows.begin, item.rows.end});
  }
}

void visit_merge(Visits& visits, const Merge& merge) {
  for (std::int64_t head = merge.kv_heads.begin; head < merge.kv_heads.end; ++head) {
    for (std::int64_t row = merge.rows.begin; row < merge.rows.end; ++row) {
      visits.push_back({merge.sequence, 0, head, row, row + 1});
    }
  }
}

void expect_equal(Visits got, Visits want) {
  std::sort(got.begin(), got.end());
  std::sort(want.begin(), want.end());
  EXPECT_TRUE(got == want) << got.size() << " visits, expected " << want.size();
}

void expect_complete(const Ordered& x) {
  Visits want;
  Visits got;
  std::map<std::int64_t, std::int64_t> feeders;
  const PlanOffsets totals = x.plan.offsets[x.plan.num_sequences];
  for (std::int64_t i = 0; i < totals.items; ++i) {
    visit_item(want, item_at(x.spec, x.plan, i));
  }
  for (std::int64_t i = 0; i < x.order.num_parts; ++i) {
    WorkItem parts[kMaxGroup];
    const int count = item_parts_at(x.spec, x.plan, x.order, i, parts);
    for (int j = 0; j < count; ++j) {
      visit_item(got, parts[j]);
      if (parts[j].num_splits > 1) ++feeders[parts[j].merge];
      EXPECT_EQ(parts[j].keys.begin, parts[0].keys.begin);
      EXPECT_EQ(parts[j].keys.end, parts[0].keys.end);
      EXPECT_EQ(parts[j].kv_heads.size(), parts[0].kv_heads.size());
    }
  }
  expect_equal(std::move(got), std::move(want));

  Visits want_merges;
  Visits got_merges;
  for (std::int64_t i = 0; i < totals.merges; ++i) {
    visit_merge(want_merges, merge_at(x.spec, x.plan, i));
  }
  for (std::int64_t i = 0; i < x.order.num_merges; ++i) {
    const MergePart part = merge_part_at(x.spec, x.plan, x.order, i);
    visit_merge(got_merges, part.merge);
    EXPECT_LE(part.merge.kv_heads.size(), 1);
    EXPECT_EQ(part.num_feeders, feeders[part.index]);
  }
  expect_equal(std::move(got_merges), std::move(want_merges));
}

TEST(WorkOrder, RandomBatchesAreComplete) {
  Random random(1);
  const std::pair<int, int> heads[] = {{32, 8}, {8, 8}, {6, 3}, {64, 1}, {40, 5}, {256, 128}};
  for (int round = 0; round < 60; ++round) {
    const auto& [num_q, num_kv] = heads[random.below(6)];
    Lengths lengths;
    for (std::int64_t n = random.below(12); n >= 0; --n) {
      const std::int64_t q_len = random.below(4) == 0 ? random.below(200) : 1;
      lengths.emplace_back(q_len, q_len + random.below(random.below(3) == 0 ? 20000 : 600));
    }
    expect_complete(Ordered(make_spec(num_q, num_kv), lengths,
                            static_cast<int>(1 + random.below(40)), random.below(3) * 2000));
  }
}

TEST(WorkOrder, SequencesWithTheSameBlocksGoTogether) {
  const PlanSpec spec = make_spec(32, 8);
  const Lengths lengths(10, {1, 4096});
  const std::int64_t num_splits = Ordered(spec, lengths, 1).order.num_parts / 10;
  ASSERT_GT(num_splits, 1);
  // Eight of them, then two, in all splits but the last.
  const Ordered most(spec, lengths, 1, 4095);
  EXPECT_EQ(most.order.num_parts, 2 * (num_splits - 1) + 10);
  WorkItem items[kMaxGroup];
  EXPECT_EQ(item_parts_at(spec, most.plan, most.order, 0, items), 8);
  EXPECT_EQ(items[7].sequence, 7);
  expect_complete(most);
  EXPECT_EQ(Ordered(spec, lengths, 1, 100).order.num_parts, 10 * num_splits);
  // Many threads are not left without work.
  const Ordered many(spec, lengths, 64, 4095);
  EXPECT_GE(many.order.num_parts, 64);
  expect_complete(many);
  // One kv head cannot be cut: each has its own items where threads would wait.
  const PlanSpec one_head = make_spec(8, 1);
  EXPECT_EQ(Ordered(one_head, lengths, 32, 4095).order.num_parts,
            Ordered(one_head, lengths, 32).order.num_parts);
  EXPECT_LT(Ordered(one_head, lengths, 2, 4095).order.num_parts,
            Ordered(one_head, lengths, 2).order.num_parts);
  // Many rows wait for arithmetic.
  EXPECT_EQ(Ordered(spec, Lengths(2, {5, 4096}), 1, 4095).order.num_parts,
            Ordered(spec, Lengths(2, {5, 4096}), 1).order.num_parts);
}

TEST(WorkOrder, FewItemsAreCutByHeads) {
  const PlanSpec spec = make_spec(32, 8);
  EXPECT_EQ(Ordered(spec, {{1, 1024}}, 1).order.num_parts, 1);
  EXPECT_FALSE(Ordered(spec, {{1, 1024}}, 1).order.one_each());
  EXPECT_EQ(Ordered(spec, {{1, 1024}}, 2).order.num_parts, 2);
  EXPECT_TRUE(Ordered(spec, {{1, 1024}}, 2).order.one_each());
  EXPECT_EQ(Ordered(spec, {{1, 1024}}, 16).order.num_parts, 8);
  EXPECT_TRUE(Ordered(spec, {{1, 1024}}, 16).order.one_each());
  // Several may be of unequal length.
  EXPECT_EQ(Ordered(spec, {{1, 1024}, {1, 700}}, 2).order.num_parts, 4);
  EXPECT_FALSE(Ordered(spec, {{1, 1024}, {1, 700}}, 2).order.one_each());
  // 64 splits are enough for 16 threads.
  const Ordered long_one(spec, {{1, 32768}}, 16);
  EXPECT_EQ(long_one.order.max_cut, 1);
  EXPECT_EQ(long_one.order.num_merges, 16);
  EXPECT_EQ(Ordered(spec, {{1, 32768}}, 1000).order.num_merges, 32);  // of one row each
  EXPECT_FALSE(Ordered(spec, {{1, 32768}}, 1000).order.one_each());   // merges wait for others
}

TEST(WorkOrder, TheLastItemsAreCutFinely) {
  const PlanSpec spec = make_spec(32, 8);
  const Ordered x(spec, {{1, 32768}}, 16);
  EXPECT_EQ(x.order.num_parts, 48 + 16 * 4);
  EXPECT_EQ(item_part_at(spec, x.plan, x.order, 47).kv_heads.size(), 8);
  EXPECT_EQ(item_part_at(spec, x.plan, x.order, 48).kv_heads.size(), 2);
  EXPECT_EQ(item_part_at(spec, x.plan, x.order, 48 + 63).kv_heads.end, 8);
  expect_complete(x);
  // Not by one thread, nor where short items come last.
  EXPECT_EQ(Ordered(spec, {{1, 32768}}, 1).order.num_parts, 64);
  EXPECT_EQ(Ordered(spec, {{1, 32768}, {1, 64}}, 16).order.num_parts, 65);
  // Padding, which costs nothing, is not what comes last.
  const Ordered padded(spec, {{1, 32768}, {1, 0}, {0, 0}}, 16);
  ASSERT_GT(padded.order.num_parts, 48 + 16 * 4);
  EXPECT_EQ(item_part_at(spec, padded.plan, padded.order, 47).kv_heads.size(), 8);
  EXPECT_EQ(item_part_at(spec, padded.plan, padded.order, 48).kv_heads.size(), 2);
  EXPECT_EQ(item_part_at(spec, padded.plan, padded.order, 48 + 63).kv_heads.end, 8);
  expect_complete(padded);
}

TEST(WorkOrder, TinyWorkStaysOnOneThread) {
  const Ordered tiny(make_spec(8, 2), {{1, 3}, {0, 0}, {1, 9}}, 64);
  EXPECT_EQ(tiny.order.num_threads, 1);
  EXPECT_EQ(tiny.order.num_parts, 2);
  const Ordered nothing(make_spec(8, 2), {{0, 0}}, 64);
  EXPECT_EQ(nothing.order.num_parts, 0);
  EXPECT_EQ(Ordered(make_spec(8, 2), {}, 64).order.num_parts, 0);
}

// A thread more for every kMinPartCost: 7.5 keys of 8 heads with groups of 4.
TEST(WorkOrder, ShortWorkTakesFewThreads) {
  const PlanSpec spec = make_spec(32, 8);
  EXPECT_EQ(Ordered(spec, {{1, 8}}, 16).order.num_threads, 1);
  EXPECT_EQ(Ordered(spec, {{1, 16}}, 16).order.num_threads, 2);
  const Ordered few(spec, {{1, 32}}, 16);
  EXPECT_EQ(few.order.num_threads, 4);
  EXPECT_EQ(few.order.num_parts, 4);
  EXPECT_TRUE(few.order.one_each());
  EXPECT_EQ(few.order.num_worth_waking, 1);
  EXPECT_EQ(Ordered(spec, {{1, 32}}, 3).order.num_threads, 3);
  // A part for each head, not for each thread.
  EXPECT_EQ(Ordered(spec, {{1, 128}}, 16).order.num_parts, 8);
}

// Of a prefill too, so that no thread begins a long one when the others end; one thread alone takes
// all of a head before the next.
TEST(WorkOrder, LongRowTilesOfAllHeadsComeFirst) {
  const PlanSpec spec = make_spec(32, 8);
  const auto items_of = [&](int num_threads) {
    const Ordered x(spec, {{2048, 2048}}, num_threads);
    expect_complete(x);
    std::vector<WorkItem> items;
    for (std::int64_t i = 0; i < x.order.num_parts; ++i) {
      items.push_back(item_part_at(spec, x.plan, x.order, i));
    }
    return items;
  };
  const std::vector<WorkItem> many = items_of(16);
  const std::vector<WorkItem> one = items_of(1);
  ASSERT_EQ(many.size(), one.size());
  ASSERT_GT(many.size(), 8U * 16U);
  const auto is_longer = [](const WorkItem& a, const WorkItem& b) {
    return a.keys.size() > b.keys.size();
  };
  EXPECT_TRUE(std::is_sorted(many.begin(), many.end(), is_longer));
  EXPECT_TRUE(std::is_sorted(one.begin(), one.end(), [](const WorkItem& a, const WorkItem& b) {
    return a.kv_heads.begin < b.kv_heads.begin;
  }));
}

TEST(WorkOrder, CostlyItemsComeFirst) {
  const Ordered x(make_spec(32, 8), {{1, 100}, {1, 1000}, {1, 90}, {512, 4096}, {1, 1000}}, 1);
  const std::vector<std::int32_t> order(x.order.sequences, x.order.sequences + 5);
  EXPECT_EQ(order, (std::vector<std::int32_t>{3, 1, 4, 0, 2}));
}

}  // namespace
}  // namespace quire::cpu
