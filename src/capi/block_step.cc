// SPDX-License-Identifier: Apache-2.0
// The block manager of the C interface: swaps, copies, arrays of a step, statistics.
#include <span>
#include <type_traits>

#include "capi/convert.h"
#include "capi/driven_blocks.h"
#include "capi/handles.h"
#include "capi/sized_struct.h"

namespace quire::capi {
namespace {

// Ids of the caller are read as SequenceId.
static_assert(sizeof(SequenceId) == sizeof(std::uint64_t) &&
              alignof(SequenceId) == alignof(std::uint64_t) &&
              std::is_standard_layout_v<SequenceId>);

std::span<const SequenceId> to_ids(const std::uint64_t* ids, std::int64_t size) {
  require_array(ids, size, "sequences");
  return {reinterpret_cast<const SequenceId*>(ids), static_cast<std::size_t>(size)};
}

// An array of the caller that is written: absent if NULL.
template <class T>
std::span<T> to_written(T* data, std::int64_t size, const char* what) {
  require(size >= 0, what, ": cannot have ", size, " elements");
  return data == nullptr ? std::span<T>() : std::span<T>(data, static_cast<std::size_t>(size));
}

StepArrays to_step_arrays(const quire_step_arrays* pointer, std::int64_t num_sequences) {
  const quire_step_arrays given = read_struct(pointer, "arrays");
  return {.query_begins = to_written(given.query_begins, num_sequences + 1, "query_begins"),
          .kv_lens = to_written(given.kv_lens, num_sequences, "kv_lens"),
          .indices = to_written(given.block_indices, given.num_block_indices, "block_indices"),
          .row_stride = given.row_stride,
          .begins = to_written(given.table_begins, num_sequences + 1, "table_begins"),
          .slots = to_written(given.slots, given.num_slots, "slots")};
}

}  // namespace
}  // namespace quire::capi

using namespace quire::capi;

quire_status quire_block_manager_can_swap_out(const quire_block_manager* manager, uint64_t sequence,
                                              int32_t* can_swap) {
  return guarded([&] {
    int32_t& out = require_out(can_swap, "can_swap");
    out = blocks_of(manager).can_swap_out({sequence}) ? 1 : 0;
  });
}

quire_status quire_block_manager_swap_out(quire_block_manager* manager, uint64_t sequence,
                                          int32_t* swapped) {
  return guarded([&] {
    int32_t& out = require_out(swapped, "swapped");
    out = own_blocks_of(manager).swap_out({sequence}) ? 1 : 0;
  });
}

quire_status quire_block_manager_can_swap_in(const quire_block_manager* manager, uint64_t sequence,
                                             int64_t num_tokens, int32_t* status) {
  return guarded([&] {
    int32_t& out = require_out(status, "status");
    out = static_cast<int32_t>(blocks_of(manager).can_swap_in({sequence}, num_tokens));
  });
}

quire_status quire_block_manager_swap_in(quire_block_manager* manager, uint64_t sequence,
                                         int32_t* swapped) {
  return guarded([&] {
    int32_t& out = require_out(swapped, "swapped");
    out = own_blocks_of(manager).swap_in({sequence}) ? 1 : 0;
  });
}

quire_status quire_block_manager_num_blocks_to_swap_in(const quire_block_manager* manager,
                                                       uint64_t sequence, int64_t num_tokens,
                                                       int32_t pool, int64_t* num_blocks) {
  return guarded([&] {
    int64_t& out = require_out(num_blocks, "num_blocks");
    out = blocks_of(manager).num_blocks_to_swap_in({sequence}, num_tokens, pool);
  });
}

quire_status quire_block_manager_take_copies(quire_block_manager* manager, uint64_t* ticket,
                                             int64_t* num_copies) {
  return guarded([&] {
    uint64_t& out = require_out(ticket, "ticket");
    int64_t& size = require_out(num_copies, "num_copies");
    quire::BlockManager& blocks = own_blocks_of(manager);
    quire::CopyLists& copies = manager->blocks->copies;
    copies = blocks.take_copies();
    out = copies.ticket;
    size = copies.num_copies;
  });
}

quire_status quire_block_manager_group_copies(const quire_block_manager* manager, int32_t group,
                                              quire_group_copies* copies) {
  return guarded([&] {
    OutStruct<quire_group_copies> out(copies, "copies");
    const ManagedBlocks& blocks = *open(manager, "manager").blocks;
    const std::size_t num_groups = blocks.manager.options().groups.size();
    const std::size_t index = to_index(group, num_groups, "group");
    const auto groups = blocks.copies.groups;
    out.set(from_copies(index < groups.size() ? groups[index] : quire::GroupCopies{}));
  });
}

quire_status quire_block_manager_complete_copies(quire_block_manager* manager, uint64_t ticket) {
  return guarded([&] { own_blocks_of(manager).complete_copies(ticket); });
}

quire_status quire_block_manager_step_sizes(const quire_block_manager* manager, int32_t group,
                                            const uint64_t* sequences, int64_t num_sequences,
                                            quire_step_sizes* sizes) {
  return guarded([&] {
    OutStruct<quire_step_sizes> out(sizes, "sizes");
    const quire::StepSizes found =
        blocks_of(manager).step_sizes(group, to_ids(sequences, num_sequences));
    auto value = make_struct<quire_step_sizes>();
    value.num_blocks = found.num_blocks;
    value.max_blocks = found.max_blocks;
    value.num_slots = found.num_slots;
    out.set(value);
  });
}

quire_status quire_block_manager_write_step(const quire_block_manager* manager, int32_t group,
                                            const uint64_t* sequences, int64_t num_sequences,
                                            const quire_step_arrays* arrays) {
  return guarded([&] {
    const quire::BlockManager& blocks = blocks_of(manager);
    const auto ids = to_ids(sequences, num_sequences);
    blocks.write_step(group, ids, to_step_arrays(arrays, num_sequences));
  });
}

quire_status quire_block_manager_sequence(const quire_block_manager* manager, uint64_t sequence,
                                          quire_sequence_info* info) {
  return guarded([&] {
    OutStruct<quire_sequence_info> out(info, "info");
    const quire::BlockManager& blocks = blocks_of(manager);
    auto value = make_struct<quire_sequence_info>();
    value.num_tokens = blocks.num_tokens({sequence});
    value.num_appended = blocks.num_appended({sequence});
    value.is_swapped = blocks.is_swapped({sequence}) ? 1 : 0;
    out.set(value);
  });
}

quire_status quire_block_manager_block_table(const quire_block_manager* manager, uint64_t sequence,
                                             int32_t group, const int32_t** blocks,
                                             int64_t* num_blocks) {
  return guarded([&] {
    const int32_t*& out = require_out(blocks, "blocks");
    int64_t& size = require_out(num_blocks, "num_blocks");
    const auto table = blocks_of(manager).block_table({sequence}, group);
    out = table.data();
    size = static_cast<int64_t>(table.size());
  });
}

quire_status quire_block_manager_reset_prefix_cache(quire_block_manager* manager) {
  return guarded([&] { own_blocks_of(manager).reset_prefix_cache(); });
}

quire_status quire_block_manager_resize(quire_block_manager* manager, int32_t pool,
                                        int64_t num_blocks, int32_t* resized) {
  return guarded([&] {
    int32_t& out = require_out(resized, "resized");
    out = own_blocks_of(manager).resize(pool, num_blocks) ? 1 : 0;
  });
}

quire_status quire_block_manager_reserve(quire_block_manager* manager, int64_t num_sequences,
                                         int64_t num_tokens_each) {
  return guarded([&] { own_blocks_of(manager).reserve(num_sequences, num_tokens_each); });
}

quire_status quire_block_manager_stats(const quire_block_manager* manager,
                                       quire_block_stats* stats) {
  return guarded([&] {
    OutStruct<quire_block_stats> out(stats, "stats");
    const quire::BlockStats found = blocks_of(manager).stats();
    auto value = make_struct<quire_block_stats>();
    value.num_sequences = found.num_sequences;
    value.num_swapped = found.num_swapped;
    value.num_admitted = found.num_admitted;
    value.num_prompt_tokens = found.num_prompt_tokens;
    value.num_prompt_blocks = found.num_prompt_blocks;
    value.num_hit_blocks = found.num_hit_blocks;
    value.num_hit_tokens = found.num_hit_tokens;
    value.num_stored = found.num_stored;
    value.num_duplicates = found.num_duplicates;
    value.num_evictions = found.num_evictions;
    value.num_copies = found.num_copies;
    value.num_swapped_out = found.num_swapped_out;
    value.num_swapped_in = found.num_swapped_in;
    value.num_swap_hits = found.num_swap_hits;
    value.num_rejected = found.num_rejected;
    out.set(value);
  });
}

quire_status quire_block_manager_pool_stats(const quire_block_manager* manager, int32_t pool,
                                            quire_pool_stats* stats) {
  return guarded([&] {
    OutStruct<quire_pool_stats> out(stats, "stats");
    const quire::BlockStats all = blocks_of(manager).stats();
    const quire::PoolStats& found = all.pools[to_index(pool, all.pools.size(), "pool")];
    auto value = make_struct<quire_pool_stats>();
    value.num_usable = found.num_usable;
    value.num_free = found.num_free;
    value.num_evictable = found.num_evictable;
    value.num_in_use = found.num_in_use;
    value.num_host_usable = found.num_host_usable;
    value.num_host_in_use = found.num_host_in_use;
    value.fragmentation = found.fragmentation;
    out.set(value);
  });
}

quire_status quire_block_manager_validate(const quire_block_manager* manager) {
  return guarded([&] { blocks_of(manager).validate(); });
}

quire_status quire_block_manager_dump(const quire_block_manager* manager, char** text) {
  return guarded([&] {
    char*& out = require_out(text, "text");
    out = copy_text(blocks_of(manager).dump());
  });
}
