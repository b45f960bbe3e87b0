// SPDX-License-Identifier: Apache-2.0
// In which order threads take the work of a planned batch, and how finely they cut it.
//
// The plan says what is computed together and where the keys are split, from each sequence alone:
// that decides the bits. This decides the rest, from the whole batch and the number of threads:
//   - Sequences with the costliest items come first, so that short work fills up the end.
//   - Where there are too few items for all threads, the kv heads of each are cut into parts: one
//     for each thread of a single item, more of several. The bits of a head do not depend on
//     which heads are in its part.
//   - The last of many items are cut more finely, so that threads end at about the same time.
//   - Sequences with the same blocks, one behind the other in the order, share a pass over them
//     where that leaves enough work for all threads.
//   - Merging the splits of a unit is work too, one part or more for each kv head, after all items.
//
// Everything lies in memory of the caller; nothing allocates or throws.
#pragma once

#include <cstdint>

#include "backends/cpu/attend_call.h"
#include "plan/plan.h"

namespace quire::cpu {

struct WorkOffsets {
  std::int64_t items = 0;
  std::int64_t parts = 0;
  std::int64_t merges = 0;
};

struct WorkOrder {
  std::int64_t num_parts = 0;
  std::int64_t num_merges = 0;
  std::int64_t num_sequences = 0;
  std::int64_t max_cut = 1;           // parts of an item, at most
  std::int64_t max_fine_cut = 1;      // of the last ones, from first_fine_item on
  std::int64_t first_fine_item = 0;   // in this order
  std::int64_t merge_cut = 1;         // parts of the rows of a kv head that are merged
  std::int64_t num_threads = 1;       // more would cost more than they bring
  std::int64_t num_worth_waking = 1;  // of them, if they sleep
  std::int32_t* sequences = nullptr;  // [num_sequences] costliest items first
  // [num_sequences], in this order: how many from this one on go together, 0 in a group of another;
  // and how many of their first splits do.
  std::int32_t* members = nullptr;
  std::int32_t* shared_splits = nullptr;
  WorkOffsets* offsets = nullptr;  // [num_sequences + 1] of all sequences before, in this order
  std::uint8_t* costs = nullptr;   // [num_sequences], of order_work

  // One for each of these threads, and nobody waits for another's.
  bool one_each(std::int64_t num_workers) const noexcept {
    return num_workers > 1 && num_parts <= num_workers && num_merges == 0;
  }
  bool one_each() const noexcept { return one_each(num_threads); }
};

// Bytes of an order of up to max_sequences, and the order in them. REQUIRES: 8-byte alignment.
std::int64_t order_bytes(std::int64_t max_sequences);
WorkOrder view_order(void* memory, std::int64_t max_sequences);

// Where keys lie, if items over the same blocks may go together.
struct KeyPlaces {
  const BlockTables& tables;
  std::int64_t block_size;
};

void order_work(const PlanSpec& spec, const BatchPlan& plan, int num_threads, WorkOrder& order,
                const KeyPlaces* places = nullptr) noexcept;

// Part `part` of `count` of an item: some of its kv heads, or none.
WorkItem part_of_item(const WorkItem& item, std::int64_t part, std::int64_t count) noexcept;

// A part of an item. REQUIRES: 0 <= index < num_parts.
WorkItem item_part_at(const PlanSpec& spec, const BatchPlan& plan, const WorkOrder& order,
                      std::int64_t index) noexcept;

// The parts that go together with it, itself first; returns how many. REQUIRES: items [kMaxGroup].
int item_parts_at(const PlanSpec& spec, const BatchPlan& plan, const WorkOrder& order,
                  std::int64_t index, WorkItem* items) noexcept;

// One kv head, or none, of a unit whose splits are merged, and some of its rows.
struct MergePart {
  Merge merge;
  std::int64_t index = 0;        // of the merge in the plan
  std::int64_t num_feeders = 0;  // parts of items that must have been done
};
// REQUIRES: 0 <= index < num_merges.
MergePart merge_part_at(const PlanSpec& spec, const BatchPlan& plan, const WorkOrder& order,
                        std::int64_t index) noexcept;

}  // namespace quire::cpu
