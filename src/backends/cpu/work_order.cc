// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/work_order.h"

#include <algorithm>
#include <bit>

#include "layout/kv_offset.h"

namespace quire::cpu {
namespace {

// Parts for each thread: two even out what the order does not.
constexpr std::int64_t kPartsPerThread = 2;
// One of so many items may be cut finely, into so many parts instead of one.
constexpr std::int64_t kItemsPerFine = 4;
constexpr std::int64_t kFineParts = 4;
// The cost (see item_cost) below which a part is not worth another thread: some 2 us of one core
// with AVX-512, while a thread that spins joins within half of that.
constexpr std::int64_t kMinPartCost = 1024;
// That of a part of the last items, at least: many times what it takes to begin one.
constexpr std::int64_t kMinFinePartCost = 8 * kMinPartCost;
// The cost for which it pays to wake another thread: on virtual machines to wake it takes 10 us,
// and 30 until it has come.
constexpr std::int64_t kMinWakingCost = 20 * kMinPartCost;

// The cost of the longest item of a sequence; under a causal mask that of its last row tile.
std::int64_t longest_item_cost(const PlanSpec& spec, const SequencePlan& plan) noexcept {
  if (plan.num_row_tiles == 0) return 0;
  const std::int64_t row = (plan.num_row_tiles - 1) * spec.params.row_tile;
  WorkItem item;
  item.kv_heads = {0, plan.heads_per_item};
  item.rows = {0, smaller(plan.q_len * spec.group, spec.params.row_tile)};
  item.keys = {0, tile_keys(spec, plan, row).size()};
  if (plan.num_splits > 1) item.keys.end /= plan.num_splits;
  return item_cost(spec, item);
}

// Costs fall into classes a quarter of an octave wide: sorting takes one pass, and sequences of
// about the same cost keep their order, so that those with common blocks stay neighbours.
constexpr int kNumClasses = 256;
constexpr std::uint8_t kNoCost = 0;  // the class of cost 0 alone
std::uint8_t cost_class(std::int64_t cost) noexcept {
  const auto value = static_cast<std::uint64_t>(cost) + 4;
  const int shift = static_cast<int>(std::bit_width(value)) - 3;
  return static_cast<std::uint8_t>(4 * shift + static_cast<int>((value >> shift) & 3));
}

// How the items of the sequence at a place of the order are cut: the first num_coarse into `cut`
// parts, the others into fine_cut.
struct Cuts {
  std::int64_t num_coarse;
  std::int64_t cut;
  std::int64_t fine_cut;

  // Of the first `num_items` items.
  std::int64_t parts_of(std::int64_t num_items) const noexcept {
    const std::int64_t coarse = smaller(num_items, num_coarse);
    return coarse * cut + (num_items - coarse) * fine_cut;
  }
};
Cuts cuts_at(const WorkOrder& order, std::int64_t place, const SequencePlan& plan) noexcept {
  const std::int64_t before = order.first_fine_item - order.offsets[place].items;
  return {.num_coarse = before > 0 ? before : 0,
          .cut = smaller(order.max_cut, plan.heads_per_item),
          .fine_cut = smaller(order.max_fine_cut, plan.heads_per_item)};
}

// Part `part` of `count` of a range.
IndexRange part_of(const IndexRange& range, std::int64_t part, std::int64_t count) noexcept {
  if (count == 1) return range;
  return {range.begin + range.size() * part / count,
          range.begin + range.size() * (part + 1) / count};
}

// Which item of a sequence's plan is the one at `index` in this order. The plan has the row tiles
// of one range of heads after the other, the longest first: at the end threads would wait for long
// ones. Here as many ranges as there are threads come side by side; one thread alone keeps to a
// range, whose keys its cache may hold. Splits of a unit stay together.
std::int64_t item_in_plan(const SequencePlan& plan, std::int64_t num_threads,
                          std::int64_t index) noexcept {
  if (plan.num_splits > 1 || plan.num_row_tiles == 1 || plan.num_head_ranges == 1) return index;
  const std::int64_t side_by_side = smaller(num_threads, plan.num_head_ranges);
  const std::int64_t first = index / (side_by_side * plan.num_row_tiles) * side_by_side;
  const std::int64_t ranges = smaller(side_by_side, plan.num_head_ranges - first);
  const std::int64_t unit = index - first * plan.num_row_tiles;
  return (first + unit % ranges) * plan.num_row_tiles + unit / ranges;
}

// The place in the order that holds `index`.
std::int64_t find_place(const WorkOrder& order, std::int64_t WorkOffsets::*count,
                        std::int64_t index) noexcept {
  const WorkOffsets* begin = order.offsets + 1;
  const WorkOffsets* end = order.offsets + order.num_sequences;
  const WorkOffsets* after = std::upper_bound(
      begin, end, index,
      [count](std::int64_t value, const WorkOffsets& offsets) { return value < offsets.*count; });
  return after - order.offsets - 1;
}

// Fills order.sequences: costs falling, equal ones in the order of the batch.
void sort_sequences(const std::int32_t (&class_sizes)[kNumClasses], WorkOrder& order) noexcept {
  if (order.num_sequences == 1) {
    order.sequences[0] = 0;
    return;
  }
  std::int32_t begins[kNumClasses];
  std::int32_t begin = 0;
  for (int i = kNumClasses - 1; i >= 0; --i) {
    begins[i] = begin;
    begin += class_sizes[i];
  }
  for (std::int64_t s = 0; s < order.num_sequences; ++s) {
    order.sequences[begins[order.costs[s]]++] = static_cast<std::int32_t>(s);
  }
}

// How many splits from the first on have the same keys in the same blocks.
std::int64_t count_shared_splits(const PlanSpec& spec, const BatchPlan& plan,
                                 const KeyPlaces& places, std::int64_t a, std::int64_t b) noexcept {
  const SequencePlan& x = plan.sequences[a];
  const SequencePlan& y = plan.sequences[b];
  const KeyRange x_keys = tile_keys(spec, x, 0);
  const KeyRange y_keys = tile_keys(spec, y, 0);
  const std::int32_t* x_blocks = blocks_of(places.tables, a);
  const std::int32_t* y_blocks = blocks_of(places.tables, b);
  const std::int64_t first_block = x_keys.begin / places.block_size;
  if (x_keys.begin != y_keys.begin || x_blocks[first_block] != y_blocks[first_block]) return 0;
  std::int64_t split = 0;
  for (; split < smaller(x.num_splits, y.num_splits); ++split) {
    const KeyRange keys = split_keys(spec, x_keys, split, x.num_splits);
    const KeyRange other = split_keys(spec, y_keys, split, y.num_splits);
    if (keys.begin != other.begin || keys.end != other.end) break;
    const std::int64_t first = keys.begin / places.block_size;
    const std::int64_t last = ceil_div(keys.end, places.block_size);
    if (!std::equal(x_blocks + first, x_blocks + last, y_blocks + first)) break;
  }
  return split;
}

// Sequences that follow each other in the order and begin with the same blocks, at most max_group.
void find_groups(const PlanSpec& spec, const BatchPlan& plan, const KeyPlaces* places,
                 std::int64_t max_group, WorkOrder& order) noexcept {
  std::fill_n(order.members, order.num_sequences, 1);
  std::fill_n(order.shared_splits, order.num_sequences, 0);
  if (places == nullptr || places->tables.kind == BlockTables::Kind::kRagged || max_group < 2)
    return;
  const auto may_share = [&](const SequencePlan& x) {
    return x.num_splits > 1 && x.num_units() == 1 && !x.has_tree &&
           x.q_len * spec.group <= kMaxGroupRows;
  };
  std::int64_t last = 0;
  for (std::int64_t first = 0; first < order.num_sequences; first = last) {
    last = first + 1;
    const std::int64_t leader = order.sequences[first];
    const SequencePlan& x = plan.sequences[leader];
    if (!may_share(x)) continue;
    const std::int64_t rows = item_state_rows(x.heads_per_item, x.q_len * spec.group);
    const std::int64_t limit =
        smaller(order.num_sequences, first + smaller(max_group, kMaxStateRows / rows));
    std::int64_t shared = x.num_splits;
    for (; last < limit; ++last) {
      const std::int64_t s = order.sequences[last];
      if (!may_share(plan.sequences[s]) || plan.sequences[s].q_len != x.q_len) break;
      const std::int64_t more = count_shared_splits(spec, plan, *places, leader, s);
      if (2 * more < shared || more == 0) break;
      shared = smaller(shared, more);
    }
    if (last == first + 1) continue;
    std::fill(order.members + first, order.members + last, 0);
    order.members[first] = static_cast<std::int32_t>(last - first);
    std::fill(order.shared_splits + first, order.shared_splits + last,
              static_cast<std::int32_t>(shared));
  }
}

// Some parts are left when a thread takes the last but one: cut finely they differ by less. Where
// the last items are short anyway, nothing is gained.
void choose_fine_cut(const PlanSpec& spec, const BatchPlan& plan, std::int64_t num_items,
                     WorkOrder& order) noexcept {
  order.max_fine_cut = order.max_cut;
  order.first_fine_item = num_items;
  if (order.num_threads == 1 || num_items < kItemsPerFine) return;
  // Padding, which costs nothing, is not what threads wait for in the end.
  std::int64_t last = order.num_sequences - 1;
  for (; last > 0 && order.costs[order.sequences[last]] == kNoCost; --last) {
    num_items -= sequence_counts(spec, plan.sequences[order.sequences[last]]).items;
  }
  const std::int64_t fine_cut = kFineParts * order.max_cut;
  const SequencePlan& shortest = plan.sequences[order.sequences[last]];
  if (longest_item_cost(spec, shortest) < fine_cut * kMinFinePartCost) return;
  order.max_fine_cut = fine_cut;
  order.first_fine_item = num_items - smaller(order.num_threads, num_items / kItemsPerFine);
}

// Into how many parts the rows of a head are merged: all wait for the last item, so no thread
// should be without one.
std::int64_t choose_merge_cut(const PlanSpec& spec, const BatchPlan& plan,
                              const WorkOrder& order) noexcept {
  std::int64_t num_heads = 0;
  for (std::int64_t s = 0; s < plan.num_sequences; ++s) {
    const SequencePlan& sequence = plan.sequences[s];
    num_heads += sequence_counts(spec, sequence).merges * sequence.heads_per_item;
  }
  return num_heads == 0 ? 1 : smaller(ceil_div(order.num_threads, num_heads), spec.group);
}

}  // namespace

std::int64_t order_bytes(std::int64_t max_sequences) {
  return (max_sequences + 1) * static_cast<std::int64_t>(sizeof(WorkOffsets)) +
         max_sequences * static_cast<std::int64_t>(3 * sizeof(std::int32_t) + sizeof(std::uint8_t));
}

WorkOrder view_order(void* memory, std::int64_t max_sequences) {
  WorkOrder order;
  order.offsets = static_cast<WorkOffsets*>(memory);
  order.sequences = reinterpret_cast<std::int32_t*>(order.offsets + max_sequences + 1);
  order.members = order.sequences + max_sequences;
  order.shared_splits = order.members + max_sequences;
  order.costs = reinterpret_cast<std::uint8_t*>(order.shared_splits + max_sequences);
  return order;
}

void order_work(const PlanSpec& spec, const BatchPlan& plan, int num_threads, WorkOrder& order,
                const KeyPlaces* places) noexcept {
  order.num_sequences = plan.num_sequences;
  const std::int64_t num_items = plan.offsets[plan.num_sequences].items;
  std::int32_t class_sizes[kNumClasses] = {};
  std::int64_t total_cost = 0;
  for (std::int64_t s = 0; s < plan.num_sequences; ++s) {
    const std::int64_t cost = longest_item_cost(spec, plan.sequences[s]);
    total_cost += cost * (plan.offsets[s + 1].items - plan.offsets[s].items);
    order.costs[s] = cost_class(cost);
    ++class_sizes[order.costs[s]];
  }
  sort_sequences(class_sizes, order);
  order.num_threads = std::clamp<std::int64_t>(total_cost / kMinPartCost, 1, num_threads);
  order.num_worth_waking = std::clamp<std::int64_t>(total_cost / kMinWakingCost, 1, num_threads);
  // The parts of a single item are all alike.
  const std::int64_t per_thread = order.num_threads == 1 || num_items == 1 ? 1 : kPartsPerThread;
  // A group is one piece of work, which only its kv heads can be cut into: what is left must do for
  // all threads.
  std::int64_t most_parts = 0;
  for (std::int64_t s = 0; s < plan.num_sequences; ++s) {
    most_parts +=
        (plan.offsets[s + 1].items - plan.offsets[s].items) * plan.sequences[s].heads_per_item;
  }
  const std::int64_t max_group =
      order.num_threads == 1 ? kMaxGroup : most_parts / (per_thread * order.num_threads);
  find_groups(spec, plan, places, smaller(max_group, kMaxGroup), order);

  // Items that go together take as long as all of them: there must be enough of those.
  const std::int64_t largest_group =
      num_items == 0 ? 1 : *std::max_element(order.members, order.members + order.num_sequences);
  const std::int64_t wanted = per_thread * order.num_threads * largest_group;
  order.max_cut = num_items == 0 || wanted <= num_items ? 1 : ceil_div(wanted, num_items);
  choose_fine_cut(spec, plan, largest_group == 1 ? num_items : 0, order);
  order.merge_cut = choose_merge_cut(spec, plan, order);

  WorkOffsets sum;
  for (std::int64_t i = 0; i < plan.num_sequences; ++i) {
    const std::int64_t s = order.sequences[i];
    const SequencePlan& sequence = plan.sequences[s];
    const PlanOffsets counts = sequence_counts(spec, sequence);
    order.offsets[i] = sum;
    const std::int64_t elsewhere = order.members[i] == 0 ? order.shared_splits[i] : 0;
    sum.items += counts.items - elsewhere;
    sum.parts += cuts_at(order, i, sequence).parts_of(counts.items - elsewhere);
    sum.merges += counts.merges * sequence.heads_per_item * order.merge_cut;
  }
  order.offsets[plan.num_sequences] = sum;
  order.num_parts = sum.parts;
  order.num_merges = sum.merges;
}

WorkItem part_of_item(const WorkItem& item, std::int64_t part, std::int64_t count) noexcept {
  WorkItem result = item;
  result.kv_heads = part_of(item.kv_heads, part, count);
  return result;
}

int item_parts_at(const PlanSpec& spec, const BatchPlan& plan, const WorkOrder& order,
                  std::int64_t index, WorkItem* items) noexcept {
  const std::int64_t place = find_place(order, &WorkOffsets::parts, index);
  const Cuts cuts = cuts_at(order, place, plan.sequences[order.sequences[place]]);
  std::int64_t part = index - order.offsets[place].parts;
  const std::int64_t num_coarse_parts = cuts.num_coarse * cuts.cut;
  const bool coarse = part < num_coarse_parts;
  if (!coarse) part -= num_coarse_parts;
  const std::int64_t cut = coarse ? cuts.cut : cuts.fine_cut;
  const bool leads = order.members[place] > 0;
  const std::int64_t item =
      part / cut + (coarse ? 0 : cuts.num_coarse) + (leads ? 0 : order.shared_splits[place]);
  const int count = leads && item < order.shared_splits[place] ? order.members[place] : 1;
  for (int i = 0; i < count; ++i) {
    const std::int64_t s = order.sequences[place + i];
    const std::int64_t in_plan = item_in_plan(plan.sequences[s], order.num_threads, item);
    items[i] = part_of_item(item_of_sequence(spec, plan, s, in_plan), part % cut, cut);
  }
  return count;
}

WorkItem item_part_at(const PlanSpec& spec, const BatchPlan& plan, const WorkOrder& order,
                      std::int64_t index) noexcept {
  WorkItem items[kMaxGroup];
  item_parts_at(spec, plan, order, index, items);
  return items[0];
}

MergePart merge_part_at(const PlanSpec& spec, const BatchPlan& plan, const WorkOrder& order,
                        std::int64_t index) noexcept {
  const std::int64_t place = find_place(order, &WorkOffsets::merges, index);
  const std::int64_t s = order.sequences[place];
  const SequencePlan& sequence = plan.sequences[s];
  const std::int64_t part = (index - order.offsets[place].merges) / order.merge_cut;
  const std::int64_t row_part = (index - order.offsets[place].merges) % order.merge_cut;
  const std::int64_t unit = part / sequence.heads_per_item;
  const Cuts cuts = cuts_at(order, place, sequence);
  const std::int64_t first_item = unit * sequence.num_splits;
  MergePart result{
      .merge = unit_at(spec, plan, s, unit),
      .index = plan.offsets[s].merges + unit,
      .num_feeders = cuts.parts_of(first_item + sequence.num_splits) - cuts.parts_of(first_item)};
  result.merge.kv_heads =
      part_of(result.merge.kv_heads, part % sequence.heads_per_item, sequence.heads_per_item);
  result.merge.rows = part_of(result.merge.rows, row_part, order.merge_cut);
  return result;
}

}  // namespace quire::cpu
