// SPDX-License-Identifier: Apache-2.0
// All of a level that multiplies in f32, over its vec.inl.

// Each uses the ones before it.
// clang-format off
#include "backends/cpu/constants.inl"
#include "backends/cpu/matrix.inl"
#include "backends/cpu/panels.inl"
#include "backends/cpu/softmax.inl"
#include "backends/cpu/f32_ops.inl"
#include "backends/cpu/item_rows.inl"
#include "backends/cpu/scores_of_chunk.inl"
#include "backends/cpu/quick_softener.inl"
#include "backends/cpu/chunk_of_head.inl"
#include "backends/cpu/pipeline.inl"
#include "backends/cpu/attend_item.inl"
#include "backends/cpu/finish_rows.inl"
// clang-format on

void attend_items(const AttendCall& call, std::span<const WorkItem> items, const WorkItem* next,
                  const Scratch& scratch) noexcept {
  dispatch_dtype(call.cache.format.dtype,
                 [&]<class T>() { attend_items_of<F32, T>(call, items, next, scratch); });
}
