// SPDX-License-Identifier: Apache-2.0
// The plan of a batch, on the device: from arrays of lengths to lists of items. Every thread block
// plans all sequences, kPlanThreads at a time, and writes its share of the items; none waits for
// another. The first one also writes the counts.
//
// Lengths outside the declared bounds are a fault of the sequence, which then gets no items: no
// list, counter or partial result is ever written past its end.
//
// A plan runs once for a step, and nothing of its code is near when it begins: it takes about as
// long as bringing what it executes. So what is needed at several places is a function that is
// called, and what it is given lies in shared memory.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "gpu/device_api.h"
#include "gpu/divider.h"
#include "gpu/kernel_args.h"
#include "gpu/run_cuts.h"
#include "layout/kv_offset.h"
#include "plan/plan.h"

namespace quire::gpu {

inline constexpr int kPlanThreads = 256;

struct ListItems {
  ListTotals list[kNumRunLists];

  QUIRE_DEVICE void add(const ListItems& other) {
    for (int i = 0; i < kNumRunLists; ++i) list[i].add(other.list[i]);
  }
};

// Beginning and ending an item of few rows takes as long as so many of its keys.
inline constexpr std::int64_t kItemKeys = 64;

// What a list holds in all, and where it is cut.
struct ListSummary {
  ListTotals totals;
  RunCuts cuts;
};
struct BatchSummary {
  ListSummary list[kNumRunLists];
};

// Runs that begin with one item, of which the blocks of the first keys are to be found.
struct RunNote {
  std::int32_t list;
  std::int32_t begin;
  std::int32_t end;
  std::int32_t key_begin;
  std::int32_t key_end;
  std::int64_t table_begin;
};

struct PlanShared {
  PlanArgs args;
  SequencePlan sequences[kPlanThreads];
  KeyRange spans[kPlanThreads];           // the keys of the first row tile of each
  PlanOffsets offsets[kPlanThreads + 1];  // of all sequences before, previous rounds too
  ListItems lists[kPlanThreads + 1];      // the same of the items in each list but the last
  SequencePlan first;                     // of the whole batch
  KeyRange first_span;
  RunNote notes[kPlanThreads];
  int num_notes;
  int num_unlike[kNumRunLists];  // sequences of a list that are not like it
};

// Notes the fault that stands first; a later one loses. The host may be told of another one if
// there are several.
QUIRE_DEVICE void report_fault(PlanCounts* counts, std::uint64_t* host_fault, std::uint64_t code) {
  if (code < atomic_min(&counts->fault, code) && host_fault != nullptr) *host_fault = code;
}

QUIRE_DEVICE int list_of(const PlanSpec& spec, const SequencePlan& plan) {
  return static_cast<int>(item_list(plan.q_len * spec.group));
}

// What is wrong with the lengths of sequence s.
QUIRE_DEVICE std::uint64_t fault_of_lengths(const BatchView& batch, const BatchBounds& bounds,
                                            std::int64_t s) {
  const std::int64_t begin = batch.queries.begins.data[s];
  const std::int64_t end = batch.queries.ends.data[s];
  const std::int64_t kv_len = batch.kv.lens.data[s];
  if (begin < 0 || end < begin || end > bounds.max_tokens || end - begin > bounds.longest_query()) {
    return fault_code(Fault::kQueryRange, s, end);
  }
  if (kv_len < 0 || kv_len > bounds.max_kv_len) return fault_code(Fault::kKvLen, s, kv_len);
  return kNoFault;
}

// The plan of sequence s, or an empty one if its lengths are out of bounds.
QUIRE_DEVICE_RARE SequencePlan plan_checked(const PlanArgs& args, std::int64_t s) {
  const std::uint64_t fault = fault_of_lengths(args.batch, args.bounds, s);
  if (fault == kNoFault) return plan_sequence(args.spec, sequence_view(args.batch, s));
  if (block_index() == 0) atomic_min(&args.counts->fault, fault);
  return SequencePlan{};
}

// Inclusive sums of offsets[1 .. count] and lists[1 .. count] on top of element 0.
QUIRE_DEVICE_RARE void scan_offsets(PlanShared& shared, int count) {
  const int i = thread_index() + 1;
  QUIRE_NO_UNROLL
  for (int step = 1; step <= count; step *= 2) {
    const bool adds = i >= step && i <= count;
    PlanOffsets before{};
    ListItems items_before{};
    if (adds) {
      before = shared.offsets[i - step];
      items_before = shared.lists[i - step];
    }
    sync_block();
    if (adds) {
      shared.offsets[i] = before + shared.offsets[i];
      shared.lists[i].add(items_before);
    }
    sync_block();
  }
}

// Items of a list from sequences before the t-th of this round.
QUIRE_DEVICE std::int64_t items_before(const PlanShared& shared, int t, int list) {
  const ListItems& before = shared.lists[t];
  if (list < kNumRunLists) return before.list[list].items;
  std::int64_t rest = shared.offsets[t].items;
  for (const ListTotals& few : before.list) rest -= few.items;
  return rest;
}

QUIRE_DEVICE_RARE KeyRange keys_at(const PlanSpec& spec, std::int64_t position,
                                   std::int64_t kv_len) {
  return positions_seen(spec.mask, position, kv_len);
}

// Both ends of what a row sees grow with its position.
QUIRE_DEVICE bool sees_all_keys(const PlanArgs& args, const WorkItem& work,
                                const SequencePlan& plan) {
  const PlanSpec& spec = args.spec;
  if (plan.has_tree) return false;
  if (spec.alignment == Alignment::kUnaligned) return true;
  SequenceView sequence;
  sequence.q_len = plan.q_len;
  sequence.kv_len = plan.kv_len;
  const std::int64_t first = plan.q_len == 1 ? 0 : quotient(work.rows.begin, spec.group);
  const std::int64_t last = plan.q_len == 1 ? 0 : quotient(work.rows.end - 1, spec.group);
  return keys_at(spec, query_position(sequence, last), plan.kv_len).begin <= work.keys.begin &&
         keys_at(spec, query_position(sequence, first), plan.kv_len).end >= work.keys.end;
}

QUIRE_DEVICE Item make_item(const PlanArgs& args, const WorkItem& work, std::int64_t sequence,
                            const SequencePlan& plan) {
  const BlockTables& tables = args.batch.kv.blocks;
  Item item;
  item.sequence = static_cast<std::int32_t>(sequence);
  item.kv_head = static_cast<std::int32_t>(work.kv_heads.begin);
  item.first_row = static_cast<std::int32_t>(work.rows.begin);
  item.num_rows = static_cast<std::int16_t>(work.rows.size());
  item.all_visible = sees_all_keys(args, work, plan);
  item.key_begin = static_cast<std::int32_t>(work.keys.begin);
  item.key_end = static_cast<std::int32_t>(work.keys.end);
  item.split = static_cast<std::int32_t>(work.split);
  item.num_splits = static_cast<std::int32_t>(work.num_splits);
  item.q_begin = args.batch.queries.begins.data[sequence];
  item.q_len = plan.q_len;
  item.kv_len = plan.kv_len;
  item.merge = static_cast<std::int32_t>(work.merge);
  item.partial_row = work.partials.at(work.split, work.kv_heads.begin, work.rows.begin);
  item.table_begin = tables.kind == BlockTables::Kind::kRagged
                         ? tables.rows.data[sequence]
                         : blocks_of(tables, sequence) - tables.indices.data;
  return item;
}

// What a sequence adds to the lists of few rows, where it has one row tile and its units are equal.
QUIRE_DEVICE ListItems list_items(const PlanSpec& spec, const SequencePlan& plan,
                                  const KeyRange& span, const PlanOffsets& counts) {
  ListItems items{};
  const int list = list_of(spec, plan);
  if (counts.items == 0 || list >= kNumRunLists) return items;
  items.list[list] = {counts.items, plan.num_units() * (span.size() + plan.num_splits * kItemKeys)};
  return items;
}

// Counts the sequence if it is in a list of runs and its units are not like those of the first of
// the batch: as many splits of about as many keys.
QUIRE_DEVICE void compare_units(const PlanSpec& spec, const SequencePlan& plan,
                                const KeyRange& span, PlanShared& shared) {
  const int list = list_of(spec, plan);
  if (plan.q_len == 0 || list >= kNumRunLists) return;
  const SequencePlan& first = shared.first;
  const bool is_comparable =
      first.q_len > 0 && list_of(spec, first) == list && plan.num_splits == first.num_splits;
  if (is_comparable) {
    const std::int64_t first_keys = shared.first_span.size();
    const std::int64_t more = span.size() - first_keys;
    const std::int64_t difference = more < 0 ? -more : more;
    if (16 * difference <= first_keys) return;
  }
  atomic_add(&shared.num_unlike[list], 1);
}

// All threads, after a barrier: what the lists hold, of which `all` are the sums.
QUIRE_DEVICE_RARE BatchSummary summarize(const PlanArgs& args, const PlanShared& shared,
                                         const ListItems& all) {
  BatchSummary summary;
  for (int list = 0; list < kNumRunLists; ++list) {
    const bool are_alike = shared.num_unlike[list] == 0 && shared.first.q_len > 0 &&
                           list_of(args.spec, shared.first) == list;
    // Of a batch for which there is too little room a first round may still be written: no item of
    // it may be dealt beyond that.
    const bool fits = all.list[list].items <= args.max_items;
    const std::int64_t per_unit = are_alike && fits ? shared.first.num_splits : 0;
    summary.list[list] = {all.list[list], cut_runs(all.list[list], per_unit, args.num_runs[list])};
  }
  return summary;
}

// The same of all sequences, where one round does not hold them.
QUIRE_DEVICE_RARE BatchSummary summarize_rounds(const PlanArgs& args, PlanShared& shared) {
  const std::int64_t num_sequences = args.batch.queries.begins.size;
  ListItems own{};
  QUIRE_NO_UNROLL
  for (std::int64_t s = thread_index(); s < num_sequences; s += kPlanThreads) {
    const SequencePlan plan = plan_checked(args, s);
    if (plan.q_len == 0) continue;
    const KeyRange span = tile_keys(args.spec, plan, 0);
    own.add(list_items(args.spec, plan, span, sequence_counts(args.spec, plan)));
    compare_units(args.spec, plan, span, shared);
  }
  shared.offsets[thread_index() + 1] = {};
  shared.lists[thread_index() + 1] = own;
  sync_block();
  scan_offsets(shared, kPlanThreads);
  const BatchSummary summary = summarize(args, shared, shared.lists[kPlanThreads]);
  sync_block();
  return summary;
}

// All threads, after a barrier: the blocks of the first keys of all runs that were noted, by a team
// each.
QUIRE_DEVICE void find_first_ids(const PlanArgs& args, const PlanShared& shared) {
  const BlockTables& tables = args.batch.kv.blocks;
  const bool are_known =
      tables.kind != BlockTables::Kind::kRagged && args.block_size % kKeysPerId == 0;
  static_assert(kTeam >= kFirstIds);
  if (lane() >= kFirstIds) return;
  QUIRE_NO_UNROLL
  for (int n = team(); n < shared.num_notes; n += kPlanThreads / kTeam) {
    const RunNote& note = shared.notes[n];
    const int key = note.key_begin / kFirstIdKeys * kFirstIdKeys + lane() * kKeysPerId;
    const bool is_there = are_known && key < note.key_end && key + kKeysPerId > note.key_begin;
    const std::int32_t id =
        is_there ? tables.indices.data[note.table_begin + divide(key, args.by_block_size)] : 0;
    QUIRE_NO_UNROLL
    for (int run = note.begin; run < note.end; ++run) {
      args.starts[note.list][run].ids[lane()] = id;
    }
  }
}

// Notes the runs that begin with item `index` of a list, which lies at `place` and costs what lies
// between `before` and `after`.
QUIRE_DEVICE void note_runs(PlanShared& shared, int list, std::int64_t index, std::int64_t place,
                            const Item& item, std::int64_t before, std::int64_t after,
                            const ListSummary& all) {
  const PlanArgs& args = shared.args;
  const IndexRange runs = runs_from(all.totals, all.cuts, index, before, after);
  if (runs.begin == runs.end) return;
  QUIRE_NO_UNROLL
  for (std::int64_t run = runs.begin; run < runs.end; ++run) {
    args.runs[list][run] = static_cast<std::int32_t>(place);
    args.starts[list][run].item = item;
  }
  shared.notes[atomic_add(&shared.num_notes, 1)] = {list,
                                                    static_cast<std::int32_t>(runs.begin),
                                                    static_cast<std::int32_t>(runs.end),
                                                    item.key_begin,
                                                    item.key_end,
                                                    item.table_begin};
}

// Where item `index` of a sequence of many rows lies among its items in the list. They are taken
// one by one. They lie head by head in the plan, in each the longest first; where they differ much,
// the longest of all heads come first, so that what is taken last is short.
QUIRE_DEVICE std::int64_t place_among_many(const PlanSpec& spec, const SequencePlan& plan,
                                           std::int64_t index) {
  if (plan.num_row_tiles == 1) return index;
  const std::int64_t last_row = (plan.num_row_tiles - 1) * spec.params.row_tile;
  const std::int64_t longest = tile_keys(spec, plan, last_row).size();
  if (2 * tile_keys(spec, plan, 0).size() > longest) return index;
  const std::int64_t unit = quotient(index, plan.num_splits);
  const std::int64_t head = quotient(unit, plan.num_row_tiles);
  const std::int64_t tile = unit - head * plan.num_row_tiles;
  return (tile * plan.num_head_ranges + head) * plan.num_splits + (index - unit * plan.num_splits);
}

// Item `i` of those planned by now to its list.
QUIRE_DEVICE void write_item(PlanShared& shared, const BatchPlan& round,
                             std::int64_t first_sequence, std::int64_t i, const BatchSummary& all) {
  const PlanArgs& args = shared.args;
  const std::int64_t t = find_sequence(round, &PlanOffsets::items, i);
  const std::int64_t index = i - shared.offsets[t].items;
  const WorkItem work = item_of_sequence(args.spec, round, t, index);
  const SequencePlan& plan = shared.sequences[t];
  const int list = list_of(args.spec, plan);
  const std::int64_t before = items_before(shared, static_cast<int>(t), list);
  const Item item = make_item(args, work, first_sequence + t, plan);
  if (list >= kNumRunLists) {
    args.lists[list][before + place_among_many(args.spec, plan, index)] = item;
    return;
  }
  const std::int64_t place = place_in_runs(all.list[list].cuts, before + index);
  args.lists[list][place] = item;
  if (args.num_runs[list] == 0) return;
  const KeyRange& span = shared.spans[t];
  const std::int64_t unit = quotient(index, plan.num_splits);
  const std::int64_t cost = shared.lists[t].list[list].cost +
                            unit * (span.size() + plan.num_splits * kItemKeys) +
                            (work.keys.begin - span.begin) + work.split * kItemKeys;
  note_runs(shared, list, before + index, place, item, cost, cost + work.keys.size() + kItemKeys,
            all.list[list]);
}

// Where the last run ends, and those for which there are no items.
QUIRE_DEVICE void end_runs(const PlanArgs& args, const BatchSummary& all) {
  for (int list = 0; list < kNumRunLists; ++list) {
    const std::int64_t num_runs = args.num_runs[list];
    if (num_runs == 0) continue;
    const ListSummary& own = all.list[list];
    const auto end = static_cast<std::int32_t>(own.totals.items);
    if (thread_index() == 0) args.runs[list][num_runs] = end;
    QUIRE_NO_UNROLL
    for (std::int64_t run = own.cuts.num_runs + thread_index(); run < num_runs;
         run += kPlanThreads) {
      args.runs[list][run] = end;
      args.starts[list][run] = RunStart{};  // thread blocks read it before they know it is none
    }
  }
}

// All threads; a barrier must follow.
QUIRE_DEVICE void copy_args(const PlanArgs& from, PlanArgs& to) {
  constexpr int kWord = 4;
  static_assert(sizeof(PlanArgs) % kWord == 0);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&from);
  auto* copied = reinterpret_cast<unsigned char*>(&to);
  for (int i = kWord * thread_index(); i < static_cast<int>(sizeof(PlanArgs));
       i += kWord * kPlanThreads) {
    std::uint32_t word;
    __builtin_memcpy(&word, bytes + i, kWord);
    __builtin_memcpy(copied + i, &word, kWord);
  }
}

QUIRE_DEVICE void plan_items(const PlanArgs& launch_args) {
  auto& shared = *reinterpret_cast<PlanShared*>(shared_memory());
  const PlanArgs& args = shared.args;
  const int thread = thread_index();
  copy_args(launch_args, shared.args);
  sync_block();
  const std::int64_t num_sequences = args.batch.queries.begins.size;
  const std::int64_t num_writers = static_cast<std::int64_t>(num_blocks()) * kPlanThreads;
  QUIRE_NO_UNROLL
  for (std::int64_t i = static_cast<std::int64_t>(block_index()) * kPlanThreads + thread;
       i < args.max_merges; i += num_writers) {
    args.merge_counters[i] = 0;
  }
  if (thread == 0) {
    shared.offsets[0] = {};
    shared.lists[0] = {};
    for (int& count : shared.num_unlike) count = 0;
    if (block_index() == 0) args.counts->fault = kNoFault;
  }
  sync_block();
  BatchSummary all{};
  bool is_whole = true;
  if (num_sequences > kPlanThreads) {
    if (thread == 0) {
      const SequencePlan plan = plan_checked(args, 0);
      const KeyRange span = tile_keys(args.spec, plan, 0);
      shared.first = plan;
      shared.first_span = span;
    }
    sync_block();
    all = summarize_rounds(args, shared);
  }
  QUIRE_NO_UNROLL
  for (std::int64_t first = 0; first < num_sequences; first += kPlanThreads) {
    const std::int64_t s = first + thread;
    const std::int64_t rest = num_sequences - first;
    const int count = rest < kPlanThreads ? static_cast<int>(rest) : kPlanThreads;
    const SequencePlan plan = s < num_sequences ? plan_checked(args, s) : SequencePlan{};
    const bool has_rows = s < num_sequences && plan.q_len > 0;
    const PlanOffsets counts = has_rows ? sequence_counts(args.spec, plan) : PlanOffsets{};
    const KeyRange span = has_rows ? tile_keys(args.spec, plan, 0) : KeyRange{};
    if (s == 0) {
      shared.first = plan;
      shared.first_span = span;
    }
    shared.sequences[thread] = plan;
    shared.spans[thread] = span;
    shared.offsets[thread + 1] = counts;
    shared.lists[thread + 1] = list_items(args.spec, plan, span, counts);
    sync_block();
    if (num_sequences <= kPlanThreads) compare_units(args.spec, plan, span, shared);
    scan_offsets(shared, count);

    const PlanOffsets total = shared.offsets[count];
    const bool fits = total.items <= args.max_items && total.merges <= args.max_merges &&
                      total.partial_rows <= args.max_partial_rows;
    if (!fits) {
      if (block_index() == 0 && thread == 0) {
        atomic_min(&args.counts->fault, fault_code(Fault::kTotal, first, total.items));
      }
      is_whole = false;  // nothing of this round, and nothing after it
      break;
    }
    if (num_sequences <= kPlanThreads) all = summarize(args, shared, shared.lists[count]);
    const BatchPlan round{count, shared.sequences, shared.offsets};
    // Neighbours go to different thread blocks, and with them the runs to be noted.
    const std::int64_t place = static_cast<std::int64_t>(thread) * num_blocks() + block_index();
    QUIRE_NO_UNROLL
    for (std::int64_t begin = shared.offsets[0].items; begin < total.items; begin += num_writers) {
      if (thread == 0) shared.num_notes = 0;
      sync_block();
      if (begin + place < total.items) write_item(shared, round, first, begin + place, all);
      sync_block();
      find_first_ids(args, shared);
      sync_block();
    }
    sync_block();
    if (thread == 0) {
      shared.offsets[0] = total;
      shared.lists[0] = shared.lists[count];
    }
    sync_block();
  }
  if (block_index() != 0) return;
  // Of a plan with this fault, other thread blocks may be writing runs; attend asks for none.
  if (is_whole) end_runs(args, all);
  sync_block();  // all have told of their faults
  if (thread != 0) return;
  const std::uint64_t fault = atomic_min(&args.counts->fault, kNoFault);
  if (fault != kNoFault && args.host_fault != nullptr) *args.host_fault = fault;
  for (int list = 0; list < kNumLists; ++list) {
    args.counts->items[list] = static_cast<std::int32_t>(items_before(shared, 0, list));
    args.counts->next[list] = 0;
    args.counts->done[list] = 0;
  }
}

}  // namespace quire::gpu
