// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/gpu_metadata.h"

#include <algorithm>
#include <cstring>

#include "attention/mask.h"
#include "plan/split.h"

namespace quire::gpu {
namespace {

constexpr std::int64_t kAlignment = 64;

// Hands out the arrays of the region, and the views of what was packed into them.
class Packer {
 public:
  Packer(void* staging, void* device, Device where)
      : staging_(static_cast<char*>(staging)), device_(static_cast<char*>(device)), where_(where) {}

  template <class T>
  T* host(std::int64_t offset) const {
    return reinterpret_cast<T*>(staging_ + offset);
  }
  template <class T>
  ArrayView<T> view(std::int64_t offset, std::int64_t count) const {
    return {reinterpret_cast<const T*>(device_ + offset), count, where_};
  }
  template <class T>
  ArrayView<T> copy(std::int64_t offset, const ArrayView<T>& from) const {
    std::copy_n(from.data, from.size, host<T>(offset));
    return view<T>(offset, from.size);
  }

 private:
  char* staging_;
  char* device_;
  Device where_;
};

// Entries of the table of sequence s that its keys need.
struct TableRow {
  const std::int32_t* indices;
  std::int64_t count;
};
TableRow table_row(const BlockTables& tables, std::int64_t s, std::int64_t kv_len,
                   std::int64_t block_size) {
  const bool padded = tables.kind == BlockTables::Kind::kPadded;
  const std::int64_t begin = padded ? s * tables.row_stride : std::int64_t{tables.begins[s]};
  const std::int64_t end =
      padded ? (s + 1) * tables.row_stride : std::int64_t{tables.begins[s + 1]};
  return {tables.indices.data + begin, std::min(ceil_div(kv_len, block_size), end - begin)};
}

}  // namespace

MetadataLayout metadata_layout(const AttentionSpec& spec, const BatchBounds& bounds) {
  std::int64_t used = 0;
  const auto take = [&used](std::int64_t count, std::int64_t size) {
    const std::int64_t begin = used;
    used += (count * size + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  const std::int64_t sequences = bounds.max_sequences;
  const bool tree = spec.features.tree_mask;
  const std::int64_t longest = bounds.longest_query();
  MetadataLayout layout{};
  layout.begins = take(sequences, 4);
  layout.ends = take(sequences, 4);
  layout.lens = take(sequences, 4);
  layout.table_begins = take(sequences + 1, 4);
  layout.rows = take(sequences, 8);
  layout.tree_begins = take(tree ? sequences : 0, 8);
  layout.lengths_end = used;
  layout.slots = take(bounds.max_tokens, 8);
  layout.indices = take(bounds.max_total_kv_len / spec.kv.block_size + sequences, 4);
  layout.tree_bits = take(tree ? bounds.max_tokens * ((longest + 7) / 8) : 0, 1);
  layout.tree_depths = take(tree ? bounds.max_tokens : 0, 4);
  layout.total = used;
  return layout;
}

PackedMetadata pack_metadata(const AttentionSpec& spec, const MetadataLayout& layout,
                             const BatchView& batch, void* staging, void* device_region,
                             Device device) {
  const Packer packer(staging, device_region, device);
  PackedMetadata packed;
  const auto add_part = [&packed](std::int64_t begin, std::int64_t size_bytes) {
    if (size_bytes > 0) packed.parts[packed.num_parts++] = {begin, size_bytes};
  };
  const std::int64_t num_sequences = batch.num_sequences();
  BatchView& view = packed.batch;
  view.queries.begins = packer.copy(layout.begins, batch.queries.begins);
  view.queries.ends = packer.copy(layout.ends, batch.queries.ends);
  view.kv.lens = packer.copy(layout.lens, batch.kv.lens);
  const BlockTables& tables = batch.kv.blocks;
  std::int64_t num_indices = 0;
  if (tables.kind == BlockTables::Kind::kRagged) {
    view.kv.blocks = BlockTables::ragged(packer.copy(layout.rows, tables.rows));
  } else {
    auto* begins = packer.host<std::int32_t>(layout.table_begins);
    auto* indices = packer.host<std::int32_t>(layout.indices);
    for (std::int64_t s = 0; s < num_sequences; ++s) {
      begins[s] = static_cast<std::int32_t>(num_indices);
      const TableRow row = table_row(tables, s, batch.kv.lens[s], spec.kv.block_size);
      std::copy_n(row.indices, row.count, indices + num_indices);
      num_indices += row.count;
    }
    begins[num_sequences] = static_cast<std::int32_t>(num_indices);
    view.kv.blocks =
        BlockTables::indexed(packer.view<std::int32_t>(layout.table_begins, num_sequences + 1),
                             packer.view<std::int32_t>(layout.indices, num_indices));
  }
  const TreeMask& tree = batch.tree_mask;
  if (tree.present()) {
    auto* begins = packer.host<std::int64_t>(layout.tree_begins);
    auto* bits = packer.host<std::uint8_t>(layout.tree_bits);
    std::int64_t num_bytes = 0;
    for (std::int64_t s = 0; s < num_sequences; ++s) {
      begins[s] = -1;
      if (tree.begins[s] < 0) continue;
      const std::int64_t q_len = batch.queries.ends[s] - batch.queries.begins[s];
      const std::int64_t size_bytes = tree_mask_bytes(q_len);
      begins[s] = num_bytes;
      std::copy_n(tree.bits.data + tree.begins[s], size_bytes, bits + num_bytes);
      num_bytes += size_bytes;
    }
    view.tree_mask.begins = packer.view<std::int64_t>(layout.tree_begins, num_sequences);
    view.tree_mask.bits = packer.view<std::uint8_t>(layout.tree_bits, num_bytes);
    add_part(layout.tree_bits, num_bytes);
    if (!tree.depths.empty()) {
      const std::int64_t num_rows = num_sequences == 0 ? 0 : batch.queries.ends[num_sequences - 1];
      view.tree_mask.depths = packer.copy(layout.tree_depths, tree.depths.subview(0, num_rows));
      add_part(layout.tree_depths, num_rows * 4);
    }
  }
  view.kv.slots = packer.copy(layout.slots, batch.kv.slots);
  if (num_sequences > 0) add_part(0, layout.lengths_end);
  add_part(layout.slots, batch.kv.slots.size * 8);
  add_part(layout.indices, num_indices * 4);
  return packed;
}

}  // namespace quire::gpu
