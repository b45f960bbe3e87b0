// SPDX-License-Identifier: Apache-2.0
#include "emulated_gpu/device_plan.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "gpu/divider.h"

namespace quire::testing {
namespace {

constexpr unsigned char kGarbage = 0xee;

template <class Array>
void let_kernels_touch(std::list<simt::GlobalBuffer>& seen, const Array& array, const char* name,
                       simt::Access access) {
  seen.emplace_back(array.data(), array.size() * sizeof(array[0]), name, access);
}

template <class T>
void fill_with_garbage(std::vector<T>& array, std::int64_t size) {
  array.resize(static_cast<std::size_t>(size));
  if (size > 0) std::memset(static_cast<void*>(array.data()), kGarbage, array.size() * sizeof(T));
}

class Draw {
 public:
  // From low to high, both included.
  std::int32_t operator()(std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(random_);
  }

 private:
  std::minstd_rand random_;
};

struct Lengths {
  std::int32_t q_len = 0;
  std::int32_t kv_len = 0;
};
Lengths draw_lengths(Mix mix, Draw& draw) {
  switch (mix) {
    case Mix::kEqualDecodes:
      return {1, 3000};
    case Mix::kUnlikeDecodes:
      return {1, draw(1, kMostKeys)};
    case Mix::kShortQueries:
      return {draw(0, 5), draw(0, kMostKeys)};
    case Mix::kWithPrefill:
      return {draw(0, 8) == 0 ? draw(40, 140) : draw(0, 2), draw(0, kMostKeys)};
    case Mix::kNobody:
      break;
  }
  return {};
}

gpu::Item expected_item(const PlanSpec& spec, const PlannedBatch& batch, const WorkItem& work) {
  const SequenceView sequence = sequence_view(batch.view(), work.sequence);
  gpu::Item item{};
  item.sequence = static_cast<std::int32_t>(work.sequence);
  item.kv_head = static_cast<std::int32_t>(work.kv_heads.begin);
  item.first_row = static_cast<std::int32_t>(work.rows.begin);
  item.num_rows = static_cast<std::int16_t>(work.rows.size());
  item.all_visible = true;
  const IndexRange tokens = token_range(spec, work.rows);
  for (std::int64_t token = tokens.begin; token < tokens.end; ++token) {
    const KeyRange keys =
        positions_seen(spec.mask, query_position(sequence, token), sequence.kv_len);
    if (keys.begin > work.keys.begin || keys.end < work.keys.end) item.all_visible = false;
  }
  item.key_begin = static_cast<std::int32_t>(work.keys.begin);
  item.key_end = static_cast<std::int32_t>(work.keys.end);
  item.split = static_cast<std::int32_t>(work.split);
  item.num_splits = static_cast<std::int32_t>(work.num_splits);
  item.q_begin = batch.begins[static_cast<std::size_t>(work.sequence)];
  item.q_len = static_cast<std::int32_t>(sequence.q_len);
  item.kv_len = static_cast<std::int32_t>(sequence.kv_len);
  item.merge = static_cast<std::int32_t>(work.merge);
  item.partial_row = work.partials.at(work.split, work.kv_heads.begin, work.rows.begin);
  item.table_begin = batch.table_begin(work.sequence);
  return item;
}

}  // namespace

BatchView PlannedBatch::view() const {
  BatchView view;
  view.queries = {begins, ends};
  view.kv.lens = lens;
  switch (kind) {
    case BlockTables::Kind::kPadded:
      view.kv.blocks = BlockTables::padded(ids, row_stride);
      break;
    case BlockTables::Kind::kIndexed:
      view.kv.blocks = BlockTables::indexed(table_begins, ids);
      break;
    case BlockTables::Kind::kRagged:
      view.kv.blocks = BlockTables::ragged(rows);
      break;
  }
  return view;
}

PlannedBatch PlannedBatch::first(std::size_t num_sequences) const {
  PlannedBatch batch = *this;
  batch.begins.resize(num_sequences);
  batch.ends.resize(num_sequences);
  batch.lens.resize(num_sequences);
  batch.ids.resize(num_sequences * static_cast<std::size_t>(row_stride));
  batch.table_begins.resize(num_sequences + 1);
  batch.rows.resize(num_sequences);
  return batch;
}

std::int64_t PlannedBatch::table_begin(std::int64_t sequence) const {
  if (kind == BlockTables::Kind::kRagged) return rows[static_cast<std::size_t>(sequence)];
  return sequence * row_stride;
}

std::int32_t PlannedBatch::id_of_keys(std::int64_t sequence, std::int64_t key) const {
  if (kind == BlockTables::Kind::kRagged || block_size % gpu::kKeysPerId != 0) return 0;
  return ids[static_cast<std::size_t>(table_begin(sequence) + key / block_size)];
}

PlannedBatch make_batch(Mix mix, int num_sequences, std::int32_t block_size,
                        BlockTables::Kind kind) {
  Draw draw;
  PlannedBatch batch;
  batch.kind = kind;
  batch.block_size = block_size;
  batch.row_stride = kMostKeys / block_size + 1;
  std::int32_t row = 0;
  for (int s = 0; s < num_sequences; ++s) {
    const Lengths lengths = draw_lengths(mix, draw);
    row += draw(0, 1);  // of nobody
    batch.begins.push_back(row);
    row += lengths.q_len;
    batch.ends.push_back(row);
    batch.lens.push_back(lengths.kv_len);
    batch.table_begins.push_back(static_cast<std::int32_t>(s * batch.row_stride));
    batch.rows.push_back(1000 * s + 7);
  }
  batch.table_begins.push_back(static_cast<std::int32_t>(num_sequences * batch.row_stride));
  batch.ids.resize(static_cast<std::size_t>(num_sequences * batch.row_stride));
  for (std::int32_t& id : batch.ids) {
    id = draw(0, 100'000);
  }
  return batch;
}

PlanSpec tested_plan_spec(Splits splits, const Mask& mask) {
  AttentionSpec spec;
  spec.num_kv_heads = 2;
  spec.num_q_heads = 6;
  spec.head_dim = 128;
  spec.value_dim = 128;
  spec.q_dtype = DType::kBF16;
  spec.kv.dtype = DType::kBF16;
  spec.mask = mask;
  PlanParams params;
  params.row_tile = gpu::tile_rows(128);
  params.item_rows = params.row_tile;
  params.key_tile = 64;
  if (splits == Splits::kMany) {
    params.split.min_keys = 64;
    params.split.unsplit_keys = 200;
    params.split.merge_keys = 4;
    params.split.max_partial_percent = 500;
  }
  return make_plan_spec(spec, params);
}

HostPlan plan_on_host(const PlanSpec& spec, const PlannedBatch& batch) {
  HostPlan host;
  host.sequences.resize(batch.begins.size());
  host.offsets.resize(batch.begins.size() + 1);
  BatchPlan plan{0, host.sequences.data(), host.offsets.data()};
  plan_batch(spec, batch.view(), plan);
  for (std::int64_t i = 0; i < host.totals().items; ++i) {
    const gpu::Item item = expected_item(spec, batch, item_at(spec, plan, i));
    host.lists[static_cast<int>(gpu::item_list(item.q_len * spec.group))].push_back(item);
  }
  return host;
}

DevicePlan::DevicePlan(const PlanSpec& spec, const PlanOffsets& room, const NumRuns& num_runs)
    : spec_(spec), room_(room), num_runs_(num_runs) {
  const auto add = [this](const auto& array, const char* name) {
    let_kernels_touch(seen_, array, name, simt::Access::kReadWrite);
  };
  for (auto& list : lists_) {
    fill_with_garbage(list, room.items);
    add(list, "list");
  }
  for (int i = 0; i < gpu::kNumRunLists; ++i) {
    const std::int64_t count = num_runs[static_cast<std::size_t>(i)];
    fill_with_garbage(runs_[i], count > 0 ? count + 1 : 0);
    fill_with_garbage(starts_[i], count);
    add(runs_[i], "runs");
    add(starts_[i], "starts");
  }
  fill_with_garbage(merge_counters_, room.merges);
  std::memset(static_cast<void*>(counts_.data()), kGarbage, sizeof(counts_));
  add(merge_counters_, "merge counters");
  add(counts_, "counts");
  add(host_fault_, "host fault");
}

void DevicePlan::run(const PlannedBatch& batch, const EmulatedLaunch& launch) {
  const auto num_sequences = static_cast<std::int64_t>(batch.begins.size());
  gpu::PlanArgs args;
  args.spec = spec_;
  args.batch = batch.view();
  args.bounds = {.max_sequences = num_sequences,
                 .max_tokens = *std::max_element(batch.ends.begin(), batch.ends.end()),
                 .max_kv_len = kMostKeys,
                 .max_total_kv_len = kMostKeys * num_sequences};
  args.max_items = room_.items;
  args.max_merges = room_.merges;
  args.max_partial_rows = room_.partial_rows;
  for (int i = 0; i < gpu::kNumLists; ++i) {
    args.lists[i] = lists_[i].data();
  }
  for (int i = 0; i < gpu::kNumRunLists; ++i) {
    args.runs[i] = runs_[i].data();
    args.starts[i] = starts_[i].data();
    args.num_runs[i] = num_runs_[static_cast<std::size_t>(i)];
  }
  args.block_size = batch.block_size;
  args.by_block_size = gpu::make_divider(batch.block_size);
  args.merge_counters = merge_counters_.data();
  args.counts = counts_.data();
  args.host_fault = host_fault_.data();

  std::list<simt::GlobalBuffer> seen;
  const auto add = [&seen](const auto& array, const char* name) {
    let_kernels_touch(seen, array, name, simt::Access::kReadOnly);
  };
  add(batch.begins, "begins");
  add(batch.ends, "ends");
  add(batch.lens, "lens");
  add(batch.ids, "ids");
  add(batch.table_begins, "table begins");
  add(batch.rows, "rows");
  launch_emulated({.kind = gpu::KernelKind::kPlanItems}, launch, &args);
}

void DevicePlan::attend(int list) {
  gpu::AttendArgs args;
  args.items = lists_[list].data();
  args.num_items = &counts_[0].items[list];
  args.runs = runs_[list].data();
  args.starts = starts_[list].data();
  args.merge_counters = merge_counters_.data();
  args.fault = &counts_[0].fault;
  const bool is_few = list == static_cast<int>(gpu::ItemList::kFew);
  const auto kind = is_few ? gpu::KernelKind::kAttendFew : gpu::KernelKind::kAttendStream;
  launch_emulated({kind, DType::kBF16, 128},
                  {.num_blocks = num_runs_[static_cast<std::size_t>(list)]}, &args);
}

std::vector<gpu::Item> DevicePlan::listed(int list) const {
  return {lists_[list].begin(), lists_[list].begin() + counts().items[list]};
}

bool DevicePlan::counters_are_zero() const {
  return std::all_of(merge_counters_.begin(), merge_counters_.end(),
                     [](std::int32_t count) { return count == 0; });
}

}  // namespace quire::testing
