// SPDX-License-Identifier: Apache-2.0
#include "gpu/run_cuts.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::gpu {
namespace {

// The costs of the items of each unit.
using Units = std::vector<std::vector<std::int64_t>>;

ListTotals totals(const Units& units) {
  ListTotals sum;
  for (const auto& items : units) {
    for (const std::int64_t cost : items) sum.add({1, cost});
  }
  return sum;
}

// The items of every unit if they have as many as each other, else 0.
std::int64_t per_unit(const Units& units) {
  for (const auto& items : units) {
    if (items.size() != units.front().size()) return 0;
  }
  return static_cast<std::int64_t>(units.front().size());
}

// The first item of every run, and their number at the end; -1 where no item or two say it.
std::vector<std::int64_t> cut(const Units& units, std::int64_t max_runs) {
  const ListTotals list = totals(units);
  const RunCuts cuts = cut_runs(list, per_unit(units), max_runs);
  EXPECT_LE(cuts.num_runs, max_runs);
  std::vector<std::int64_t> begins(static_cast<std::size_t>(cuts.num_runs) + 1, -1);
  std::int64_t index = 0;
  std::int64_t before = 0;
  for (const auto& items : units) {
    for (const std::int64_t cost : items) {
      const IndexRange runs = runs_from(list, cuts, index, before, before + cost);
      for (std::int64_t run = runs.begin; run < runs.end; ++run) {
        auto& begin = begins.at(static_cast<std::size_t>(run));
        begin = begin == -1 ? place_in_runs(cuts, index) : -2;
      }
      before += cost;
      ++index;
    }
  }
  begins.back() = index;
  return begins;
}

std::int64_t num_runs(const Units& units, std::int64_t max_runs) {
  return cut_runs(totals(units), per_unit(units), max_runs).num_runs;
}

Units equal_units(std::int64_t count, std::int64_t items, std::int64_t cost, std::int64_t last) {
  std::vector<std::int64_t> unit(static_cast<std::size_t>(items), cost);
  unit.back() = last;
  return Units(static_cast<std::size_t>(count), unit);
}

std::vector<std::int64_t> lengths(const std::vector<std::int64_t>& begins) {
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) result.push_back(begins[i + 1] - begins[i]);
  return result;
}

TEST(RunCuts, EveryRunBeginsWithOneItemAndTheFirstWithTheFirst) {
  std::mt19937_64 random(7);
  const auto draw = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    Units units(static_cast<std::size_t>(draw(1, 60)));
    const bool are_equal = draw(0, 1) == 1;
    const std::int64_t most = draw(1, 40);
    for (auto& unit : units) {
      unit.assign(static_cast<std::size_t>(are_equal ? most : draw(1, most)), 0);
      for (std::int64_t& cost : unit) cost = draw(1, 2000);
    }
    const std::int64_t max_runs = draw(1, 300);
    const std::vector<std::int64_t> begins = cut(units, max_runs);
    EXPECT_EQ(begins.front(), 0);
    EXPECT_TRUE(std::is_sorted(begins.begin(), begins.end())) << "round " << round;
    EXPECT_GE(*std::min_element(begins.begin(), begins.end()), 0) << "round " << round;
  }
}

TEST(RunCuts, FewItemsGetARunEach) {
  EXPECT_THAT(cut(equal_units(2, 3, 100, 100), 264), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

// A list whose kernel takes items one by one: no share of nothing is computed.
TEST(RunCuts, ThereAreNoneIfNobodyAsks) {
  for (const Units& units : {equal_units(1, 1, 576, 576), equal_units(8, 16, 576, 100)}) {
    const RunCuts cuts = cut_runs(totals(units), per_unit(units), 0);
    EXPECT_EQ(cuts.num_runs, 0);
  }
  EXPECT_EQ(cut_runs({}, 0, 0).num_runs, 0);
}

TEST(RunCuts, RunsOfEqualUnitsEndWithThem) {
  // 256 runs of a unit each, where 264 would cut almost every unit.
  EXPECT_THAT(lengths(cut(equal_units(256, 16, 576, 576), 264)), testing::Each(16));
  // Four runs a unit.
  EXPECT_THAT(lengths(cut(equal_units(64, 16, 576, 576), 264)), testing::Each(4));
  // The last item of a unit is short: still two items for each run.
  EXPECT_THAT(lengths(cut(equal_units(8, 62, 2112, 1021), 264)), testing::Each(2));
  EXPECT_THAT(lengths(cut(equal_units(16, 32, 1152, 900), 264)), testing::Each(2));
}

// The places of a unit's items, one after the other, are in one run; thread blocks that begin
// together have units that follow each other.
TEST(RunCuts, WholeUnitsAreDealtInTurn) {
  for (const std::int64_t per_unit : {1, 3}) {
    for (const std::int64_t units : {265, 400, 1024, 2048, 2400}) {
      const ListTotals list{units * per_unit, 1000 * units * per_unit};
      const RunCuts cuts = cut_runs(list, per_unit, 264);
      if (cuts.kind != CutKind::kDealt) {
        EXPECT_GT(per_unit, 1);
        continue;
      }
      std::vector<std::int64_t> item_at(static_cast<std::size_t>(list.items), -1);
      for (std::int64_t index = 0; index < list.items; ++index) {
        auto& item = item_at.at(static_cast<std::size_t>(place_in_runs(cuts, index)));
        EXPECT_EQ(item, -1) << "two items at one place";
        item = index;
      }
      std::int64_t place = 0;
      for (std::int64_t run = 0; run < 264; ++run) {
        const IndexRange runs = runs_from(list, cuts, run * per_unit, 0, 1000);
        EXPECT_EQ(runs.begin, run);
        EXPECT_EQ(runs.end, run + 1);
        EXPECT_EQ(place_in_runs(cuts, run * per_unit), place);
        for (std::int64_t unit = run; unit < units; unit += 264) {
          for (std::int64_t item = 0; item < per_unit; ++item, ++place) {
            EXPECT_EQ(item_at.at(static_cast<std::size_t>(place)), unit * per_unit + item);
          }
        }
      }
      EXPECT_EQ(place, list.items);
    }
  }
  EXPECT_EQ(cut_runs({2048, 2048000}, 1, 264).kind, CutKind::kDealt);
  EXPECT_EQ(cut_runs({1024 * 16, 1024 * 16000}, 16, 264).kind, CutKind::kDealt);
}

TEST(RunCuts, AllThreadBlocksHaveRunsWhereUnitsWouldBeCutAnyway) {
  EXPECT_EQ(num_runs(equal_units(16, 47, 1536, 900), 264), 264);    // 47 is no multiple of 3
  EXPECT_EQ(num_runs(equal_units(2048, 1, 1088, 1088), 264), 264);  // there are no splits
  EXPECT_EQ(num_runs(equal_units(100, 16, 576, 576), 264), 264);    // 229 runs are too few
  Units ragged = equal_units(255, 16, 576, 576);
  ragged.emplace_back(32, 576);
  EXPECT_EQ(num_runs(ragged, 264), 264);
}

TEST(RunCuts, NoRunIsLongerThanItsShareByMoreThanAnItemOrAUnitThatMostHave) {
  for (const std::int64_t items : {1, 2, 3, 4, 5, 16, 22, 47, 63}) {
    for (const std::int64_t units : {5, 8, 39, 64, 300, 1000, 1100}) {
      const std::int64_t count = items * units;
      if (count <= 264) continue;
      const auto runs = lengths(cut(equal_units(units, items, 1000, 700), 264));
      const std::int64_t longest = *std::max_element(runs.begin(), runs.end());
      const auto num_longest = std::count(runs.begin(), runs.end(), longest);
      if (4 * num_longest < 3 * 264 || units < 264) {
        EXPECT_LE(longest, (count + 263) / 264 + 1) << units << " units of " << items;
      } else {
        EXPECT_LE(longest, (units + 263) / 264 * items) << units << " units of " << items;
      }
    }
  }
}

}  // namespace
}  // namespace quire::gpu
