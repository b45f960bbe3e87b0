// SPDX-License-Identifier: Apache-2.0
#include "scheduler/batch_builder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/check.h"
#include "kv/reserve_more.h"

namespace quire {

BatchView ScheduledBatch::view(int group) const {
  require(group >= 0 && static_cast<std::size_t>(group) < groups_.size(), "group ", group,
          " is not one of the ", groups_.size(), " groups");
  const GroupArrays& arrays = groups_[static_cast<std::size_t>(group)];
  BatchView view;
  view.queries = QueryRanges::packed(query_begins_);
  view.kv.lens = arrays.kv_lens;
  view.kv.blocks = BlockTables::indexed(arrays.table_begins, arrays.indices);
  view.kv.slots = arrays.slots;
  return view;
}

BatchBuilder::BatchBuilder(const BatchLimits& limits, std::size_t num_groups) : limits_(limits) {
  const auto max_tokens = static_cast<std::size_t>(limits.max_tokens);
  const auto max_sequences = static_cast<std::size_t>(limits.max_sequences);
  batch_.sequences_.reserve(max_sequences);
  batch_.ids_.reserve(max_sequences);
  batch_.tokens_.reserve(max_tokens);
  batch_.positions_.reserve(max_tokens);
  batch_.query_begins_.reserve(max_sequences + 1);
  batch_.groups_.resize(num_groups);
  for (ScheduledBatch::GroupArrays& arrays : batch_.groups_) {
    arrays.kv_lens.reserve(max_sequences);
    arrays.table_begins.reserve(max_sequences + 1);
    arrays.slots.reserve(max_tokens);
  }
  clear();
}

void BatchBuilder::clear() noexcept {
  batch_.sequences_.clear();
  batch_.ids_.clear();
  batch_.tokens_.clear();
  batch_.positions_.clear();
  batch_.num_cross_rows_ = 0;
  batch_.group_copies_.clear();
  batch_.stages_.clear();
  drop_stages(std::exchange(num_stages_run_, 0));
}

void BatchBuilder::drop_stages(std::size_t num_stages) noexcept {
  if (num_stages == 0) return;
  const std::size_t num_ends = num_stages * batch_.groups_.size();
  const std::size_t num_copies = batch_.copy_ends_[num_ends - 1].back();
  batch_.copies_.erase(batch_.copies_.begin(),
                       batch_.copies_.begin() + static_cast<std::ptrdiff_t>(num_copies));
  batch_.copy_ends_.erase(batch_.copy_ends_.begin(),
                          batch_.copy_ends_.begin() + static_cast<std::ptrdiff_t>(num_ends));
  for (std::array<std::size_t, 4>& ends : batch_.copy_ends_) {
    for (std::size_t& end : ends) end -= num_copies;
  }
}

void BatchBuilder::add(const RequestRecord& request, std::int64_t num_tokens,
                       std::int64_t num_drafts) {
  const std::int64_t first = request.num_computed;
  const std::int64_t num_own = num_tokens - num_drafts;
  batch_.sequences_.push_back({.request = request.id(),
                               .sequence = request.sequence,
                               .first_position = first,
                               .first_row = batch_.num_tokens(),
                               .num_tokens = num_tokens,
                               .num_drafts = num_drafts,
                               .num_cross_rows = request.num_cross_rows(),
                               .is_last_chunk = num_own == request.num_to_compute()});
  batch_.ids_.push_back(request.sequence);
  const RequestRecord::Runs runs = request.tokens(first, num_own);
  batch_.tokens_.insert(batch_.tokens_.end(), runs.in_prompt.begin(), runs.in_prompt.end());
  batch_.tokens_.insert(batch_.tokens_.end(), runs.behind.begin(), runs.behind.end());
  batch_.tokens_.insert(batch_.tokens_.end(), request.drafts.begin(),
                        request.drafts.begin() + static_cast<std::ptrdiff_t>(num_drafts));
  for (std::int64_t i = 0; i < num_tokens; ++i) {
    batch_.positions_.push_back(static_cast<std::int32_t>(first + i));
  }
  batch_.num_cross_rows_ += request.num_cross_rows();
}

void BatchBuilder::take_copies(BlockManager& manager) {
  store_taken(manager);
  taken_ = manager.take_copies();
  store_taken(manager);
}

// The manager's lists stay valid until it is asked again: if memory runs out here they are kept.
void BatchBuilder::store_taken(BlockManager& manager) {
  if (!taken_) return;
  if (taken_->num_copies > 0) {
    reserve_more(batch_.copies_, static_cast<std::size_t>(taken_->num_copies));
    reserve_more(batch_.copy_ends_, taken_->groups.size());
    for (const GroupCopies& group : taken_->groups) {
      std::array<std::size_t, 4> ends{};
      std::size_t direction = 0;
      for (const std::span<const BlockCopy> copies :
           {group.on_device, group.to_host, group.to_device, group.on_host}) {
        batch_.copies_.insert(batch_.copies_.end(), copies.begin(), copies.end());
        ends[direction++] = batch_.copies_.size();
      }
      batch_.copy_ends_.push_back(ends);
    }
  }
  manager.complete_copies(taken_->ticket);
  taken_.reset();
}

// Only now, because the copies may have moved while stages were added.
void BatchBuilder::point_at_copies() {
  batch_.group_copies_.clear();
  batch_.stages_.clear();
  const std::span<const BlockCopy> all = batch_.copies_;
  std::size_t begin = 0;
  const auto next = [&](std::size_t end) {
    const std::span<const BlockCopy> copies = all.subspan(begin, end - begin);
    begin = end;
    return copies;
  };
  for (const std::array<std::size_t, 4>& ends : batch_.copy_ends_) {
    GroupCopies group;
    group.on_device = next(ends[0]);
    group.to_host = next(ends[1]);
    group.to_device = next(ends[2]);
    group.on_host = next(ends[3]);
    batch_.group_copies_.push_back(group);
  }
  const std::size_t num_groups = batch_.groups_.size();
  for (std::size_t first = 0; first < batch_.group_copies_.size(); first += num_groups) {
    batch_.stages_.push_back({std::span(batch_.group_copies_).subspan(first, num_groups)});
  }
}

void BatchBuilder::write_group(const BlockManager& manager, int group) {
  ScheduledBatch::GroupArrays& arrays = batch_.groups_[static_cast<std::size_t>(group)];
  const std::size_t num_sequences = batch_.ids_.size();
  const StepSizes sizes = manager.step_sizes(group, batch_.ids_);
  // Not cleared before: from an empty vector resize grows to the exact size, each time anew.
  arrays.kv_lens.resize(num_sequences);
  arrays.table_begins.resize(num_sequences + 1);
  arrays.indices.resize(static_cast<std::size_t>(sizes.num_blocks));
  arrays.slots.resize(static_cast<std::size_t>(sizes.num_slots));
  manager.write_step(group, batch_.ids_,
                     {.query_begins = batch_.query_begins_,
                      .kv_lens = arrays.kv_lens,
                      .indices = arrays.indices,
                      .begins = arrays.table_begins,
                      .slots = arrays.slots});
}

void BatchBuilder::finish(BlockManager& manager) {
  take_copies(manager);
  point_at_copies();
  batch_.query_begins_.resize(batch_.ids_.size() + 1);
  for (std::size_t g = 0; g < batch_.groups_.size(); ++g) {
    write_group(manager, static_cast<int>(g));
  }
}

}  // namespace quire
