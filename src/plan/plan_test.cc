// SPDX-License-Identifier: Apache-2.0
// Plans of known sequences, number by number. tests/property/plan_property_test.cc holds what is
// true of every plan.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

static_assert(std::is_trivially_copyable_v<PlanSpec>);
static_assert(std::is_trivially_copyable_v<SequencePlan>);
static_assert(std::is_trivially_copyable_v<BatchPlan>);

AttentionSpec bf16_spec(int num_q_heads = 32, int num_kv_heads = 8, int dim = 128) {
  AttentionSpec spec;
  spec.num_q_heads = num_q_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.head_dim = dim;
  spec.value_dim = dim;
  return spec;
}

// An item walks all kv heads of a block while they fit its rows.
PlanParams cpu_params() {
  PlanParams params;
  params.kv_heads_per_item = 1000;
  params.row_tile = 64;
  params.key_tile = 32;
  params.item_rows = 64;
  params.split.min_keys = 1024;
  params.split.unsplit_keys = 2047;
  params.split.max_items = 128;
  return params;
}

SequencePlan plan_of(const PlanSpec& spec, std::int64_t q_len, std::int64_t kv_len) {
  SequenceView sequence;
  sequence.q_len = q_len;
  sequence.kv_len = kv_len;
  return plan_sequence(spec, sequence);
}

// A batch of (q_len, kv_len) without tree masks, and its plan.
struct Planned {
  Planned(const PlanSpec& spec_, const std::vector<std::pair<int, int>>& lengths) : spec(spec_) {
    offsets.push_back(0);
    for (const auto& [q_len, kv_len] : lengths) {
      offsets.push_back(offsets.back() + q_len);
      kv_lens.push_back(kv_len);
    }
    view.queries = QueryRanges::packed(offsets);
    view.kv.lens = kv_lens;
    const auto count = static_cast<std::int64_t>(lengths.size());
    memory.resize(static_cast<std::size_t>(plan_bytes(count)) / sizeof(std::int64_t));
    plan = view_plan(memory.data(), count);
    plan_batch(spec, view, plan);
    totals = plan.offsets[count];
  }
  WorkItem item(std::int64_t index) const { return item_at(spec, plan, index); }

  PlanSpec spec;
  std::vector<std::int32_t> offsets, kv_lens;
  BatchView view;
  std::vector<std::int64_t> memory;
  BatchPlan plan;
  PlanOffsets totals;
};

TEST(FloorSqrt, IsExactAroundEverySquare) {
  for (std::int64_t root = 1; root < 65536; ++root) {
    ASSERT_EQ(floor_sqrt(root * root - 1), root - 1);
    ASSERT_EQ(floor_sqrt(root * root), root);
  }
  EXPECT_EQ(floor_sqrt(0), 0);
  EXPECT_EQ(floor_sqrt((std::int64_t{1} << 32) - 1), 65535);
}

TEST(PlanSpecOf, CountsTheBytesOfAKeyAndOfAPartialRow) {
  AttentionSpec spec = bf16_spec();
  EXPECT_EQ(make_plan_spec(spec, {}).key_bytes, 2 * 128 * 2);
  EXPECT_EQ(make_plan_spec(spec, {}).partial_row_bytes, 128 * 4 + 8);
  spec.kv.dtype = DType::kI8;
  spec.kv.scales = ScaleGranularity::kPerTensor;
  EXPECT_EQ(make_plan_spec(spec, {}).key_bytes, 2 * 128);
  spec.kv.scales = ScaleGranularity::kPerTokenHead;
  EXPECT_EQ(make_plan_spec(spec, {}).key_bytes, 2 * (128 + 4));
  spec.head_dim = 576;
  spec.value_dim = 512;
  spec.kv.v_in_k = true;
  EXPECT_EQ(make_plan_spec(spec, {}).key_bytes, 576 + 4);
  EXPECT_EQ(make_plan_spec(spec, {}).partial_row_bytes, 512 * 4 + 8);
}

TEST(PlanSpecOf, RefusesParametersThatCannotPlan) {
  const AttentionSpec spec = bf16_spec();
  PlanParams params;
  params.row_tile = 0;
  EXPECT_THROW(make_plan_spec(spec, params), Error);
  params = {};
  params.split.max_items = 0;
  EXPECT_THROW(make_plan_spec(spec, params), Error);
  params = {};
  params.split.unsplit_keys = -1;
  EXPECT_THROW(make_plan_spec(spec, params), Error);
  params = {};
  params.split.min_keys = 63;
  try {
    make_plan_spec(spec, params);
    FAIL() << "min_keys below key_tile was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("63"), std::string::npos) << error.what();
  }
}

// The lengths of prototypes that were measured on an H200: 512 at 8k, none at 1k.
TEST(Splits, GrowWithTheContextOfADecode) {
  const PlanSpec spec = make_plan_spec(bf16_spec(), {});
  EXPECT_EQ(plan_of(spec, 1, 1).num_splits, 1);
  EXPECT_EQ(plan_of(spec, 1, 1024).num_splits, 1);
  EXPECT_EQ(plan_of(spec, 1, 1025).num_splits, 2);
  EXPECT_EQ(plan_of(spec, 1, 4096).num_splits, 8);
  EXPECT_EQ(plan_of(spec, 1, 8192).num_splits, 16);
  EXPECT_EQ(plan_of(spec, 1, 32768).num_splits, 32);
  EXPECT_EQ(plan_of(spec, 1, 131072).num_splits, 64);
  EXPECT_EQ(plan_of(spec, 1, 1 << 20).num_splits, 64);  // 8 heads x 64 are max_items
}

TEST(Splits, GrowLongerWithRowsAndValueDim) {
  const PlanSpec group4 = make_plan_spec(bf16_spec(), {});
  // 64 rows of 520 bytes, written and read, are 5 % of 2600 keys of 512 bytes.
  EXPECT_EQ(plan_of(group4, 16, 2600 * 3).num_splits, 3);
  EXPECT_EQ(plan_of(group4, 16, 2600 * 3 - 1).num_splits, 2);
  // 128 heads over one stored tensor: 64 rows of 2056 bytes against keys of 1152 bytes.
  AttentionSpec latent = bf16_spec(128, 1, 576);
  latent.value_dim = 512;
  latent.kv.v_in_k = true;
  const SequencePlan plan = plan_of(make_plan_spec(latent, {}), 1, 65536);
  EXPECT_EQ(plan.num_row_tiles, 2);
  EXPECT_EQ(plan.num_splits, 65536 / 4569);
}

TEST(Splits, LeaveAPrefillWhole) {
  const PlanSpec spec = make_plan_spec(bf16_spec(), {});
  EXPECT_EQ(plan_of(spec, 2048, 2048).num_splits, 1);
  EXPECT_EQ(plan_of(spec, 8192, 131072).num_splits, 1);
  // A few new tokens after a long prefix: 4 tiles of 8 heads do not fill a device.
  EXPECT_EQ(plan_of(spec, 64, 32768).num_splits, 4);
  // The first tile decides, so that no split of it is too short.
  EXPECT_EQ(plan_of(spec, 128, 5200 + 112).num_splits, 2);
  EXPECT_EQ(plan_of(spec, 128, 5200 + 111).num_splits, 1);
}

TEST(Splits, FollowTheWindowAndNotTheContext) {
  AttentionSpec attention = bf16_spec();
  attention.mask.window_left = 1023;
  const Planned batch(make_plan_spec(attention, {}), {{1, 1 << 20}});
  ASSERT_EQ(batch.totals.items, 8);
  EXPECT_EQ(batch.item(0).keys.begin, (1 << 20) - 1024);
  EXPECT_EQ(batch.item(0).keys.end, 1 << 20);
  attention.mask.window_left = 4095;
  EXPECT_EQ(plan_of(make_plan_spec(attention, {}), 1, 1 << 20).num_splits, 8);
}

TEST(Splits, DoNotCrossAChunkBorderInManyTiles) {
  AttentionSpec attention = bf16_spec();
  attention.mask.chunk = 16384;
  const PlanSpec spec = make_plan_spec(attention, {});
  EXPECT_EQ(plan_of(spec, 32, 16384).num_splits, 6);      // all in the first chunk
  EXPECT_EQ(plan_of(spec, 32, 16384 + 1).num_splits, 1);  // the last of two tiles begins the next
  EXPECT_EQ(plan_of(spec, 16, 16384 + 1).num_splits, 6);  // one tile sees both
  EXPECT_EQ(plan_of(spec, 1, 16384 + 1).num_splits, 1);   // one key
}

TEST(Splits, AreEvenMultiplesOfTheKeyTile) {
  const Planned batch(make_plan_spec(bf16_spec(4, 1), {}), {{1, 5000}});
  ASSERT_EQ(batch.totals.items, 9);  // 79 tiles of 64 keys
  EXPECT_EQ(batch.item(0).keys.begin, 0);
  EXPECT_EQ(batch.item(0).keys.end, 8 * 64);
  EXPECT_EQ(batch.item(8).keys.begin, 70 * 64);
  EXPECT_EQ(batch.item(8).keys.end, 5000);
}

TEST(Heads, AreWalkedTogetherInDecodeAndApartInPrefill) {
  const PlanSpec spec = make_plan_spec(bf16_spec(), cpu_params());
  const SequencePlan decode = plan_of(spec, 1, 32768);
  EXPECT_EQ(decode.heads_per_item, 8);
  EXPECT_EQ(decode.num_head_ranges, 1);
  EXPECT_EQ(decode.num_splits, 32);
  EXPECT_EQ(plan_of(spec, 1, 4096).num_splits, 4);
  EXPECT_EQ(plan_of(spec, 1, 2047).num_splits, 1);
  EXPECT_EQ(plan_of(spec, 3, 4096).heads_per_item, 4);  // 64 / 12 = 5, evened out: 4 + 4
  const SequencePlan prefill = plan_of(spec, 512, 512);
  EXPECT_EQ(prefill.heads_per_item, 1);
  EXPECT_EQ(prefill.num_head_ranges, 8);
  EXPECT_EQ(prefill.num_row_tiles, 32);
}

TEST(Items, OfEmptySequences) {
  const Planned batch(make_plan_spec(bf16_spec(), {}),
                      {{0, 0}, {0, 5000}, {1, 0}, {0, 7}, {4, 2}, {0, 1}});
  ASSERT_EQ(batch.totals.items, 16);
  EXPECT_EQ(batch.totals.merges, 0);
  EXPECT_EQ(batch.totals.partial_rows, 0);
  EXPECT_EQ(batch.item(0).sequence, 2);
  EXPECT_TRUE(batch.item(0).keys.empty());  // and still an item: somebody writes 0 and -inf
  EXPECT_EQ(batch.item(7).sequence, 2);
  EXPECT_EQ(batch.item(8).sequence, 4);
  EXPECT_EQ(batch.item(15).keys.end, 2);
  const Planned none(make_plan_spec(bf16_spec(), {}), {});
  EXPECT_EQ(none.totals.items, 0);
}

TEST(Items, RunFromTheLastTileHeadByHead) {
  const Planned batch(make_plan_spec(bf16_spec(8, 2), {}), {{1, 3}, {40, 100}});
  ASSERT_EQ(batch.totals.items, 2 + 2 * 3);  // 160 rows
  const WorkItem last = batch.item(2);
  EXPECT_EQ(last.rows.begin, 128);
  EXPECT_EQ(last.rows.end, 160);
  EXPECT_EQ(last.keys.end, 100);
  EXPECT_EQ(token_range(batch.spec, last.rows).begin, 32);
  const WorkItem first = batch.item(4);
  EXPECT_EQ(first.kv_heads.begin, 0);
  EXPECT_EQ(first.rows.begin, 0);
  EXPECT_EQ(first.keys.end, 76);  // 60 old keys, 16 tokens in a tile
  EXPECT_EQ(batch.item(5).kv_heads.begin, 1);
  EXPECT_GT(item_cost(batch.spec, first), item_cost(batch.spec, batch.item(0)));
}

TEST(Items, OfATreeSeeAllNewTokens) {
  const PlanSpec spec = make_plan_spec(bf16_spec(), {});
  const std::uint8_t bits = 0;
  SequenceView tree;
  tree.q_len = 20;
  tree.kv_len = 500;
  tree.tree_bits = &bits;
  const SequencePlan plan = plan_sequence(spec, tree);
  EXPECT_EQ(tile_keys(spec, plan, 0).end, 500);
  EXPECT_EQ(tile_keys(spec, plan_of(spec, 20, 500), 0).end, 496);
}

TEST(Merges, ReadTheirSplitsInOrder) {
  const Planned batch(make_plan_spec(bf16_spec(), {}), {{1, 8192}, {1, 100}, {2, 8192}});
  ASSERT_EQ(batch.totals.merges, 16);
  EXPECT_EQ(batch.totals.partial_rows, 32 * 16 + 64 * 16);
  const Merge merge = merge_at(batch.spec, batch.plan, 8 + 3);
  EXPECT_EQ(merge.sequence, 2);
  EXPECT_EQ(merge.kv_heads.begin, 3);
  EXPECT_EQ(merge.num_splits, 16);
  EXPECT_EQ(merge.partials.at(0, 3, 7), 32 * 16 + 3 * 8 + 7);
  EXPECT_EQ(merge.partials.at(5, 3, 7) - merge.partials.at(4, 3, 7), 64);
}

TEST(Bounds, OfAServerAreAFewHundredMegabytes) {
  const PlanSpec spec = make_plan_spec(bf16_spec(), {});
  const PlanBounds decode = plan_bounds(spec, {256, 256, 131072, 1 << 20});
  // 5 % of 4 GB of keys, halved because a partial is written and read, would be 107 MB.
  EXPECT_LE(decode.partial_rows * spec.partial_row_bytes, 140'000'000);
  const PlanBounds mixed = plan_bounds(spec, {256, 8192, 131072, 1 << 20});
  EXPECT_LE(mixed.partial_rows * spec.partial_row_bytes, 500'000'000);
  const PlanBounds short_keys = plan_bounds(spec, {256, 8192, 1024, 256 * 1024});
  EXPECT_EQ(short_keys.partial_rows, 0);
  EXPECT_EQ(short_keys.merges, 0);
}

TEST(Bounds, CountTheQueryBesideTheWindow) {
  AttentionSpec attention = bf16_spec();
  attention.mask.window_left = 1024;
  const PlanSpec spec = make_plan_spec(attention, {});
  const Planned batch(spec, std::vector<std::pair<int, int>>(10, {1, 100000}));
  EXPECT_EQ(batch.totals.partial_rows, 10 * 32 * 2);
  EXPECT_EQ(plan_bounds(spec, {10, 10, 100000, 1000000}).partial_rows, 10 * 32 * 2);
}

}  // namespace
}  // namespace quire
