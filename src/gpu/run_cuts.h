// SPDX-License-Identifier: Apache-2.0
// Where a list of items is cut into runs, one for each thread block: by cost, at the item that
// begins nearest. A run that begins or ends within a unit leaves a state to be merged, so that
// where units are alike runs have whole units, or equal parts of them, if that leaves few thread
// blocks without a run or with a short one.
//
// Whole units are dealt to the runs in turn. Units that follow each other are the kv heads of a
// sequence: thread blocks that run at the same time then read what lies side by side.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace quire::gpu {

struct ListTotals {
  std::int64_t items = 0;
  std::int64_t cost = 0;

  QUIRE_HOST_DEVICE constexpr void add(const ListTotals& other) {
    items += other.items;
    cost += other.cost;
  }
};

struct RunCuts {
  std::int64_t num_runs = 0;        // that have items
  std::int64_t items_per_run = 0;   // or 0: cut by cost, or dealt
  std::int64_t half_item = 0;       // half the cost of an item, on average
  std::int64_t items_per_unit = 0;  // or 0: not dealt
  std::int64_t units_per_run = 0;   // of the longest runs,
  std::int64_t num_longest = 0;     // the first so many; the others have one less
};

QUIRE_HOST_DEVICE constexpr bool is_multiple(std::int64_t a, std::int64_t b) {
  return quotient(a, b) * b == a;
}

// per_unit: the items of every unit, or 0 where units are not alike. max_runs 0: nobody asks for
// runs.
QUIRE_HOST_DEVICE constexpr RunCuts cut_runs(const ListTotals& list, std::int64_t per_unit,
                                             std::int64_t max_runs) {
  if (max_runs == 0) return {};
  // Few items, one each: thread blocks that follow each other lie on different processors.
  if (list.items <= max_runs) return {list.items, 1, 0};
  const RunCuts by_cost{max_runs, 0, quotient(list.cost, 2 * list.items)};
  if (per_unit == 0) return by_cost;
  const std::int64_t units = quotient(list.items, per_unit);
  const std::int64_t whole_runs = smaller(units, max_runs);
  const std::int64_t longest = ceil_div(units, whole_runs);
  const std::int64_t num_longest = units - (longest - 1) * whole_runs;
  // Half of the thread blocks keep memory busy, so that no time is lost when the others are done.
  const bool are_fair =
      longest == 1 ? 16 * whole_runs >= 15 * max_runs : 2 * num_longest >= max_runs;
  if (per_unit == 1 || are_fair) {
    return {whole_runs, 0, 0, per_unit, longest, num_longest};
  }
  const std::int64_t per_run = ceil_div(list.items, max_runs);
  const std::int64_t num_runs = ceil_div(list.items, per_run);
  if (!is_multiple(per_unit, per_run) || 16 * num_runs < 15 * max_runs) return by_cost;
  return {num_runs, per_run, 0};
}

// Where item `index` lies in the list: runs are items that follow each other there.
QUIRE_HOST_DEVICE constexpr std::int64_t place_in_runs(const RunCuts& cuts, std::int64_t index) {
  if (cuts.items_per_unit == 0) return index;
  const std::int64_t unit = quotient(index, cuts.items_per_unit);
  const std::int64_t turn = quotient(unit, cuts.num_runs);
  const std::int64_t run = unit - turn * cuts.num_runs;
  const std::int64_t before = run * (cuts.units_per_run - 1) + smaller(run, cuts.num_longest);
  return (before + turn - unit) * cuts.items_per_unit + index;
}

// The runs that begin with item `index`, whose cost lies between `before` and `after`. Every run
// begins with one item, and the first one with the first.
QUIRE_HOST_DEVICE constexpr IndexRange runs_from(const ListTotals& list, const RunCuts& cuts,
                                                 std::int64_t index, std::int64_t before,
                                                 std::int64_t after) {
  if (cuts.items_per_unit > 0) {
    if (index >= cuts.num_runs * cuts.items_per_unit) return {};
    const std::int64_t unit = quotient(index, cuts.items_per_unit);
    return {unit, index == unit * cuts.items_per_unit ? unit + 1 : unit};
  }
  if (cuts.items_per_run > 0) {
    const std::int64_t run = quotient(index, cuts.items_per_run);
    return {run, index == run * cuts.items_per_run ? run + 1 : run};
  }
  // Half an item on: the item there is the one that begins nearest.
  const std::int64_t low = before - cuts.half_item;
  std::int64_t first = low <= 0 ? 0 : ceil_div(low * cuts.num_runs, list.cost);
  if (index > 0 && first == 0) first = 1;
  std::int64_t end = index == 0 ? 1 : first;
  while (end * list.cost < (after - cuts.half_item) * cuts.num_runs) ++end;
  return {first, end};
}

}  // namespace quire::gpu
