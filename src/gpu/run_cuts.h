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

// How a list becomes runs.
enum class CutKind : std::uint8_t {
  kByCost,
  kEqualParts,  // items_per_run each
  kDealt,       // whole units in turn
};

struct RunCuts {
  CutKind kind = CutKind::kByCost;
  std::int64_t num_runs = 0;       // that have items
  std::int64_t half_item = 0;      // by cost: half the cost of an item, on average
  std::int64_t items_per_run = 0;  // equal parts
  // Dealt. The first num_longest runs have units_per_run units, the others one less.
  std::int64_t items_per_unit = 0;
  std::int64_t units_per_run = 0;
  std::int64_t num_longest = 0;
};

QUIRE_HOST_DEVICE constexpr bool is_multiple(std::int64_t a, std::int64_t b) {
  return quotient(a, b) * b == a;
}

// Whether whole units are fair. With one each, almost all thread blocks must have one. Else some
// have one more than others: those keep memory busy alone if they are most.
QUIRE_HOST_DEVICE constexpr bool are_units_fair(std::int64_t units_per_run,
                                                std::int64_t num_longest, std::int64_t max_runs) {
  if (units_per_run == 1) return 16 * num_longest >= 15 * max_runs;
  return 4 * num_longest >= 3 * max_runs;
}

// per_unit: the items of every unit, or 0 where units are not alike. max_runs 0: nobody asks for
// runs. REQUIRES: list.items is a multiple of per_unit.
QUIRE_HOST_DEVICE constexpr RunCuts cut_runs(const ListTotals& list, std::int64_t per_unit,
                                             std::int64_t max_runs) {
  if (max_runs == 0) return {};
  // Few items, one each: thread blocks that follow each other lie on different processors.
  if (list.items <= max_runs) {
    return {.kind = CutKind::kEqualParts, .num_runs = list.items, .items_per_run = 1};
  }
  const RunCuts by_cost{.num_runs = max_runs, .half_item = quotient(list.cost, 2 * list.items)};
  if (per_unit == 0) return by_cost;
  const std::int64_t units = quotient(list.items, per_unit);
  const std::int64_t whole_runs = smaller(units, max_runs);
  const std::int64_t units_per_run = ceil_div(units, whole_runs);
  const std::int64_t num_longest = units - (units_per_run - 1) * whole_runs;
  if (per_unit == 1 || are_units_fair(units_per_run, num_longest, max_runs)) {
    return {.kind = CutKind::kDealt,
            .num_runs = whole_runs,
            .items_per_unit = per_unit,
            .units_per_run = units_per_run,
            .num_longest = num_longest};
  }
  const std::int64_t per_run = ceil_div(list.items, max_runs);
  const std::int64_t num_runs = ceil_div(list.items, per_run);
  if (!is_multiple(per_unit, per_run) || 16 * num_runs < 15 * max_runs) return by_cost;
  return {.kind = CutKind::kEqualParts, .num_runs = num_runs, .items_per_run = per_run};
}

// Where item `index` lies in the list: runs are items that follow each other there.
QUIRE_HOST_DEVICE constexpr std::int64_t place_in_runs(const RunCuts& cuts, std::int64_t index) {
  if (cuts.kind != CutKind::kDealt) return index;
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
  if (cuts.kind == CutKind::kDealt) {
    if (index >= cuts.num_runs * cuts.items_per_unit) return {};
    const std::int64_t unit = quotient(index, cuts.items_per_unit);
    return {unit, index == unit * cuts.items_per_unit ? unit + 1 : unit};
  }
  if (cuts.kind == CutKind::kEqualParts) {
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
