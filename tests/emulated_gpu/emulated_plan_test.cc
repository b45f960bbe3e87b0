// SPDX-License-Identifier: Apache-2.0
// The plan kernel on the emulator, held to the plan of the host: the same items in the same lists,
// cut into runs that begin where their starts say. What does not fit its room is a fault that
// kernels after it see.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "emulated_gpu/device_plan.h"
#include "gpu/emulator/launch.h"

namespace quire::testing {
namespace {

using gpu::Fault;
using gpu::fault_code;
using gpu::Item;
using gpu::kNumLists;
using gpu::kNumRunLists;
using gpu::RunStart;

// What an item of few rows costs besides its keys, as the plan weighs it.
constexpr std::int64_t kItemKeys = 64;

auto fields(const Item& item) {
  return std::tuple(item.sequence, item.kv_head, item.first_row, item.num_rows, item.all_visible,
                    item.key_begin, item.key_end, item.split, item.num_splits, item.q_begin,
                    item.q_len, item.kv_len, item.merge, item.partial_row, item.table_begin);
}

// Items have other places in lists than in the plan: of many rows the longest come first, others
// are dealt to runs.
void sort_items(std::vector<Item>& items) {
  const auto place = [](const Item& item) {
    return std::tuple(item.sequence, item.kv_head, item.first_row, item.split);
  };
  std::sort(items.begin(), items.end(),
            [&](const Item& a, const Item& b) { return place(a) < place(b); });
}

void expect_lists(const DevicePlan& plan, const HostPlan& host) {
  for (int list = 0; list < kNumLists; ++list) {
    SCOPED_TRACE("list " + std::to_string(list));
    std::vector<Item> got = plan.listed(list);
    std::vector<Item> want = host.lists[list];
    ASSERT_EQ(got.size(), want.size());
    if (list >= kNumRunLists || !plan.runs(list).empty()) {
      sort_items(got);
      sort_items(want);
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(fields(got[i]), fields(want[i])) << "item " << i;
    }
  }
}

void expect_start(const RunStart& start, const Item& first, const PlannedBatch& batch) {
  EXPECT_EQ(fields(start.item), fields(first));
  const int first_key = first.key_begin / gpu::kFirstIdKeys * gpu::kFirstIdKeys;
  for (int i = 0; i < gpu::kFirstIds; ++i) {
    const int key = first_key + i * gpu::kKeysPerId;
    const bool has_keys = key < first.key_end && key + gpu::kKeysPerId > first.key_begin;
    EXPECT_EQ(start.ids[i], has_keys ? batch.id_of_keys(first.sequence, key) : 0) << "id " << i;
  }
}

// A run has the splits of a unit one after another: a thread block folds them as they come.
void expect_units_in_order(const std::vector<Item>& items, const std::vector<std::int32_t>& runs) {
  for (std::size_t run = 0; run + 1 < runs.size(); ++run) {
    for (std::int32_t i = runs[run] + 1; i < runs[run + 1]; ++i) {
      const Item& item = items[static_cast<std::size_t>(i)];
      const Item& last = items[static_cast<std::size_t>(i) - 1];
      if (item.split == 0) {
        EXPECT_EQ(last.split + 1, last.num_splits) << "item " << i;
      } else {
        EXPECT_EQ(std::tuple(item.sequence, item.kv_head, item.split),
                  std::tuple(last.sequence, last.kv_head, last.split + 1))
            << "item " << i;
      }
    }
  }
}

// No run is much longer than its share.
void expect_fair_runs(const std::vector<Item>& items, const std::vector<std::int32_t>& runs) {
  const auto cost = [](const Item& item) { return item.key_end - item.key_begin + kItemKeys; };
  const auto cost_of = [&](std::int64_t begin, std::int64_t end) {
    return std::transform_reduce(items.begin() + begin, items.begin() + end, std::int64_t{0},
                                 std::plus(), cost);
  };
  std::int64_t longest = 0;
  for (const Item& item : items) {
    longest = std::max<std::int64_t>(longest, cost(item));
  }
  const auto num_runs = static_cast<std::int64_t>(runs.size()) - 1;
  const std::int64_t share = cost_of(0, static_cast<std::int64_t>(items.size())) / num_runs;
  for (std::size_t run = 0; run + 1 < runs.size(); ++run) {
    EXPECT_LE(cost_of(runs[run], runs[run + 1]), share + share / 8 + longest) << "run " << run;
  }
}

void expect_runs(const DevicePlan& plan, const PlannedBatch& batch) {
  for (int list = 0; list < kNumRunLists; ++list) {
    SCOPED_TRACE("runs of list " + std::to_string(list));
    const std::vector<std::int32_t>& runs = plan.runs(list);
    if (runs.empty()) continue;  // nobody asked for them
    const std::vector<Item> items = plan.listed(list);
    const auto num_items = static_cast<std::int32_t>(items.size());
    ASSERT_EQ(runs.front(), 0);
    ASSERT_EQ(runs.back(), num_items);
    ASSERT_TRUE(std::is_sorted(runs.begin(), runs.end()));
    for (std::size_t run = 0; run + 1 < runs.size(); ++run) {
      SCOPED_TRACE("run " + std::to_string(run));
      const bool has_items = runs[run] < num_items;
      const Item first = has_items ? items[static_cast<std::size_t>(runs[run])] : Item{};
      expect_start(plan.start(list, run), first, batch);
    }
    expect_units_in_order(items, runs);
    expect_fair_runs(items, runs);
  }
}

void expect_plan_of_host(const PlanSpec& spec, const PlannedBatch& batch,
                         const std::array<std::int32_t, kNumRunLists>& num_runs,
                         const EmulatedLaunch& launch = {.num_blocks = 3}) {
  const HostPlan host = plan_on_host(spec, batch);
  DevicePlan plan(spec, host.totals(), num_runs);
  ASSERT_NO_THROW(plan.run(batch, launch));
  ASSERT_EQ(plan.counts().fault, gpu::kNoFault);
  EXPECT_EQ(plan.host_fault(), gpu::kNoFault);
  expect_lists(plan, host);
  expect_runs(plan, batch);
  EXPECT_TRUE(plan.counters_are_zero());
}

TEST(EmulatedPlan, IsThatOfTheHost) {
  const std::vector<Mask> masks{
      {.causal = true}, {.causal = true, .window_left = 700}, {.causal = true, .chunk = 512}};
  for (const Mix mix : kEveryMix) {
    for (const Mask& mask : masks) {
      SCOPED_TRACE("mix " + std::to_string(static_cast<int>(mix)) + ", window " +
                   std::to_string(mask.window_left) + ", chunk " + std::to_string(mask.chunk));
      const PlannedBatch batch = make_batch(mix, 40);
      expect_plan_of_host(tested_plan_spec(Splits::kUsual, mask), batch, {7, 5});
      expect_plan_of_host(tested_plan_spec(Splits::kMany, mask), batch, {264, 20});
    }
  }
}

// A round holds as many sequences as a thread block has threads.
TEST(EmulatedPlan, IsThatOfTheHostInEveryNumberOfRounds) {
  for (const int num_sequences : {1, 255, 256, 257, 512, 513, 600}) {
    for (const Mix mix : {Mix::kEqualDecodes, Mix::kWithPrefill}) {
      SCOPED_TRACE(std::to_string(num_sequences) + " sequences");
      expect_plan_of_host(tested_plan_spec(Splits::kUsual), make_batch(mix, num_sequences),
                          {132, 9});
    }
  }
}

TEST(EmulatedPlan, DoesNotDependOnThreadBlocksNorOnTheirOrder) {
  const PlannedBatch batch = make_batch(Mix::kWithPrefill, 300);
  for (const int num_blocks : {1, 2, 16}) {
    for (const int warp_width : {32, 64}) {
      SCOPED_TRACE(std::to_string(num_blocks) + " blocks, warps of " + std::to_string(warp_width));
      expect_plan_of_host(tested_plan_spec(Splits::kMany), batch, {264, 132},
                          {.num_blocks = num_blocks, .warp_width = warp_width, .seed = 5});
    }
  }
}

TEST(EmulatedPlan, FindsFirstIdsInTablesOfEveryKind) {
  for (const auto kind :
       {BlockTables::Kind::kPadded, BlockTables::Kind::kIndexed, BlockTables::Kind::kRagged}) {
    for (const int block_size : {16, 24, 64}) {  // 16 keys of a block of 24 may lie in two
      SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)) + ", blocks of " +
                   std::to_string(block_size));
      const PlannedBatch batch = make_batch(Mix::kUnlikeDecodes, 9, block_size, kind);
      expect_plan_of_host(tested_plan_spec(Splits::kUsual), batch, {30, 2});
    }
  }
}

// Kernels without runs take items one by one, and have no room for runs.
TEST(EmulatedPlan, WritesNoRunsIfNobodyAsks) {
  for (const Mix mix : {Mix::kEqualDecodes, Mix::kShortQueries}) {
    const PlannedBatch batch = make_batch(mix, 20);
    expect_plan_of_host(tested_plan_spec(Splits::kUsual), batch, {0, 0});
    expect_plan_of_host(tested_plan_spec(Splits::kUsual), batch, {7, 0});
    expect_plan_of_host(tested_plan_spec(Splits::kUsual), batch, {0, 7});
  }
}

// `wrong` is `batch` with lengths of one sequence that are out of bounds.
void expect_one_fault(const PlannedBatch& batch, std::size_t sequence, const PlannedBatch& wrong,
                      std::uint64_t fault) {
  PlannedBatch without = batch;
  without.ends[sequence] = without.begins[sequence];
  const PlanSpec spec = tested_plan_spec(Splits::kMany);
  const HostPlan host = plan_on_host(spec, without);
  DevicePlan plan(spec, host.totals(), {7, 5});
  ASSERT_NO_THROW(plan.run(wrong, {.num_blocks = 3}));
  EXPECT_EQ(plan.counts().fault, fault);
  EXPECT_EQ(plan.host_fault(), fault);
  expect_lists(plan, host);
  expect_runs(plan, without);
}

TEST(EmulatedPlan, ASequenceOutOfBoundsGetsNoItemsAndOthersDo) {
  const PlannedBatch batch = make_batch(Mix::kShortQueries, 300);
  for (const std::size_t sequence : {std::size_t{0}, std::size_t{17}, std::size_t{299}}) {
    SCOPED_TRACE("sequence " + std::to_string(sequence));
    PlannedBatch backwards = batch;
    backwards.ends[sequence] = backwards.begins[sequence] - 1;
    expect_one_fault(batch, sequence, backwards,
                     fault_code(Fault::kQueryRange, static_cast<std::int64_t>(sequence),
                                backwards.ends[sequence]));
    for (const std::int32_t kv_len : {-1, kMostKeys + 1}) {
      PlannedBatch wrong = batch;
      wrong.lens[sequence] = kv_len;
      expect_one_fault(batch, sequence, wrong,
                       fault_code(Fault::kKvLen, static_cast<std::int64_t>(sequence), kv_len));
    }
  }
}

// The host is told of the one that stands first, whichever thread comes last.
TEST(EmulatedPlan, OfManyFaultsTheFirstIsTold) {
  const PlannedBatch batch = make_batch(Mix::kShortQueries, 300);
  PlannedBatch wrong = batch;
  PlannedBatch without = batch;
  for (const std::size_t sequence : {std::size_t{40}, std::size_t{41}, std::size_t{200}}) {
    wrong.lens[sequence] = -1;
    without.ends[sequence] = without.begins[sequence];
  }
  const PlanSpec spec = tested_plan_spec(Splits::kMany);
  const std::uint64_t first = fault_code(Fault::kKvLen, 40, -1);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    DevicePlan plan(spec, plan_on_host(spec, without).totals(), {7, 5});
    ASSERT_NO_THROW(plan.run(wrong, {.num_blocks = 2, .seed = seed}));
    EXPECT_EQ(plan.counts().fault, first);
    EXPECT_EQ(plan.host_fault(), first);
  }
}

TEST(EmulatedPlan, TooLittleRoomIsAFault) {
  const PlanSpec spec = tested_plan_spec(Splits::kMany);
  const PlannedBatch batch = make_batch(Mix::kWithPrefill, 40);
  const PlanOffsets needed = plan_on_host(spec, batch).totals();
  const std::vector<PlanOffsets> rooms{{needed.items - 1, needed.merges, needed.partial_rows},
                                       {needed.items, needed.merges - 1, needed.partial_rows},
                                       {needed.items, needed.merges, needed.partial_rows - 1}};
  for (const PlanOffsets& room : rooms) {
    DevicePlan plan(spec, room, {7, 5});
    ASSERT_NO_THROW(plan.run(batch, {.num_blocks = 3}));
    const std::uint64_t fault = fault_code(Fault::kTotal, 0, needed.items);
    EXPECT_EQ(plan.counts().fault, fault);
    EXPECT_EQ(plan.host_fault(), fault);
    for (int list = 0; list < kNumLists; ++list) {
      EXPECT_TRUE(plan.listed(list).empty());
    }
  }
}

// Items and runs of the first round are being written when another thread block finds that those of
// the second one have no room.
TEST(EmulatedPlan, TooLittleRoomForALaterRoundIsAFaultThatAttentionSees) {
  constexpr int kRound = 256;
  const PlanSpec spec = tested_plan_spec(Splits::kUsual);
  const PlannedBatch batch = make_batch(Mix::kShortQueries, 600);
  const HostPlan host = plan_on_host(spec, batch);
  PlanOffsets room = host.offsets[kRound];
  room.items += 1;
  for (const std::uint64_t seed : {0, 1, 2}) {
    DevicePlan plan(spec, room, {64, 32});
    plan.run(batch.first(kRound), {.num_blocks = 3});
    ASSERT_EQ(plan.counts().fault, gpu::kNoFault);
    ASSERT_NO_THROW(plan.run(batch, {.num_blocks = 3, .seed = seed}));
    const std::uint64_t fault =
        fault_code(Fault::kTotal, kRound, host.offsets[std::size_t{2} * kRound].items);
    EXPECT_EQ(plan.counts().fault, fault);
    EXPECT_EQ(plan.host_fault(), fault);
    for (int list = 0; list < kNumRunLists; ++list) {
      // There is work for the first thread block, which has no queries, keys or output to touch.
      ASSERT_LT(plan.runs(list)[0], plan.runs(list)[1]);
      EXPECT_NO_THROW(plan.attend(list)) << "list " << list;
    }
  }
}

// Equal decodes are dealt to runs over the whole list; of the first round, which has room, none may
// go beyond it.
TEST(EmulatedPlan, TooLittleRoomForALaterRoundOfEqualDecodes) {
  constexpr std::size_t kRound = 256;
  for (const Splits splits : {Splits::kUsual, Splits::kMany}) {
    for (const int more : {1, 100}) {
      const PlanSpec spec = tested_plan_spec(splits);
      const PlannedBatch batch = make_batch(Mix::kEqualDecodes, 600);
      const HostPlan host = plan_on_host(spec, batch);
      PlanOffsets room = host.offsets[kRound];
      room.items += more;
      DevicePlan plan(spec, room, {64, 32});
      ASSERT_NO_THROW(plan.run(batch, {.num_blocks = 3}));
      EXPECT_EQ(plan.counts().fault,
                fault_code(Fault::kTotal, kRound, host.offsets[2 * kRound].items));
    }
  }
}

}  // namespace
}  // namespace quire::testing
