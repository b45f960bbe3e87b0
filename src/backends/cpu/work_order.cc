// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/work_order.h"

#include <algorithm>
#include <bit>

namespace quire::cpu {
namespace {

// Parts for each thread: two even out what the order does not.
constexpr std::int64_t kPartsPerThread = 2;
// The cost (see item_cost) below which a part is not worth another thread: some 2 us of one core
// with AVX-512, while a thread that spins joins within half of that.
constexpr std::int64_t kMinPartCost = 1024;

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
std::uint8_t cost_class(std::int64_t cost) noexcept {
  const auto value = static_cast<std::uint64_t>(cost) + 4;
  const int shift = static_cast<int>(std::bit_width(value)) - 3;
  return static_cast<std::uint8_t>(4 * shift + static_cast<int>((value >> shift) & 3));
}

// Into how many parts the items of a sequence are cut.
std::int64_t cut_of(const WorkOrder& order, const SequencePlan& plan) noexcept {
  return smaller(order.max_cut, plan.heads_per_item);
}

// Part `part` of `count` of a range.
IndexRange part_of(const IndexRange& range, std::int64_t part, std::int64_t count) noexcept {
  if (count == 1) return range;
  return {range.begin + range.size() * part / count,
          range.begin + range.size() * (part + 1) / count};
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

}  // namespace

std::int64_t order_bytes(std::int64_t max_sequences) {
  return (max_sequences + 1) * static_cast<std::int64_t>(sizeof(WorkOffsets)) +
         max_sequences * static_cast<std::int64_t>(sizeof(std::int32_t) + sizeof(std::uint8_t));
}

WorkOrder view_order(void* memory, std::int64_t max_sequences) {
  WorkOrder order;
  order.offsets = static_cast<WorkOffsets*>(memory);
  order.sequences = reinterpret_cast<std::int32_t*>(order.offsets + max_sequences + 1);
  order.costs = reinterpret_cast<std::uint8_t*>(order.sequences + max_sequences);
  return order;
}

void order_work(const PlanSpec& spec, const BatchPlan& plan, int num_threads,
                WorkOrder& order) noexcept {
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
  // The parts of a single item are all alike.
  const std::int64_t per_thread = order.num_threads == 1 || num_items == 1 ? 1 : kPartsPerThread;
  const std::int64_t wanted = per_thread * order.num_threads;
  order.max_cut = num_items == 0 || wanted <= num_items ? 1 : ceil_div(wanted, num_items);

  WorkOffsets sum;
  for (std::int64_t i = 0; i < plan.num_sequences; ++i) {
    const std::int64_t s = order.sequences[i];
    const SequencePlan& sequence = plan.sequences[s];
    const PlanOffsets counts = sequence_counts(spec, sequence);
    order.offsets[i] = sum;
    sum.parts += counts.items * cut_of(order, sequence);
    sum.merges += counts.merges * sequence.heads_per_item;
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

WorkItem item_part_at(const PlanSpec& spec, const BatchPlan& plan, const WorkOrder& order,
                      std::int64_t index) noexcept {
  const std::int64_t place = find_place(order, &WorkOffsets::parts, index);
  const std::int64_t s = order.sequences[place];
  const std::int64_t cut = cut_of(order, plan.sequences[s]);
  const std::int64_t part = index - order.offsets[place].parts;
  if (cut == 1) return item_of_sequence(spec, plan, s, part);
  return part_of_item(item_of_sequence(spec, plan, s, part / cut), part % cut, cut);
}

MergePart merge_part_at(const PlanSpec& spec, const BatchPlan& plan, const WorkOrder& order,
                        std::int64_t index) noexcept {
  const std::int64_t place = find_place(order, &WorkOffsets::merges, index);
  const std::int64_t s = order.sequences[place];
  const SequencePlan& sequence = plan.sequences[s];
  const std::int64_t part = index - order.offsets[place].merges;
  const std::int64_t unit = part / sequence.heads_per_item;
  MergePart result{.merge = unit_at(spec, plan, s, unit),
                   .index = plan.offsets[s].merges + unit,
                   .num_feeders = sequence.num_splits * cut_of(order, sequence)};
  result.merge.kv_heads =
      part_of(result.merge.kv_heads, part % sequence.heads_per_item, sequence.heads_per_item);
  return result;
}

}  // namespace quire::cpu
