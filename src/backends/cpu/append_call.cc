// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/append_call.h"

#include <algorithm>

#include "layout/kv_offset.h"

namespace quire::cpu {
namespace {

// Rows of a share, before its borders move: whole tiles, one where rows are few. The rows of the
// next tile of a share are fetched in the order in which they lie.
constexpr std::int64_t kMaxShareRows = 16 * kPairTile;
constexpr std::int64_t kRowSharesPerThread = 16;
// New K and V that one thread stores in the time that others take to join. In tiles the 256 bytes
// of a row of K fall on 64 lines, which may lie in caches of others.
constexpr std::int64_t kAloneBytes = 4 << 10;
// Of one share at least, so that taking the next one costs nothing.
constexpr std::int64_t kShareBytes = 1 << 10;
// Shares per thread, so that a late one delays the others little.
constexpr std::int64_t kSharesPerThread = 4;
// Stored K and V from which on attend does not find them in a cache anyway.
constexpr std::int64_t kStreamBytes = 8 << 20;

// Elements of K and V of one row and head.
std::int64_t head_elements(const KvCacheView& cache) noexcept {
  return cache.head_dim + (cache.format.v_in_k ? 0 : cache.value_dim);
}

// `row`, or the next row that does not continue the tile of the one before it.
std::int64_t tile_border(ArrayView<std::int64_t> slots, std::int64_t row) noexcept {
  if (row <= 0) return 0;
  while (row < slots.size && slots[row] == slots[row - 1] + 1 && slots[row] % kPairTile != 0) ++row;
  return std::min(row, slots.size);
}

std::int64_t share_rows(std::int64_t num_rows, int num_threads) noexcept {
  const std::int64_t rows = num_rows / (kRowSharesPerThread * num_threads);
  return std::clamp(rows / kPairTile * kPairTile, std::int64_t{kPairTile}, kMaxShareRows);
}

}  // namespace

AppendCall make_append_call(const NewKv& new_kv, const KvCacheView& cache,
                            ArrayView<std::int64_t> slots) noexcept {
  const std::int64_t stored_bytes =
      slots.size * cache.num_kv_heads * head_elements(cache) * dtype_bytes(cache.format.dtype);
  return {.k = new_kv.k,
          .v = new_kv.v,
          .cache = cache,
          .slots = slots,
          .streams = stored_bytes >= kStreamBytes};
}

AppendShares make_append_shares(const AppendCall& call, int num_threads) noexcept {
  const std::int64_t num_rows = call.slots.size;
  const std::int64_t num_heads = call.cache.num_kv_heads;
  if (num_rows == 0) return {};
  const std::int64_t bytes =
      num_rows * num_heads * head_elements(call.cache) * dtype_bytes(call.k.dtype);
  if (num_threads == 1 || bytes <= kAloneBytes) {
    return {.rows_of_group = num_rows, .num_row_groups = 1, .num_head_groups = 1};
  }
  const std::int64_t rows = share_rows(num_rows, num_threads);
  const std::int64_t row_groups = (num_rows + rows - 1) / rows;
  const std::int64_t wanted = std::min(kSharesPerThread * num_threads, bytes / kShareBytes);
  return {.rows_of_group = rows,
          .num_row_groups = row_groups,
          .num_head_groups =
              std::clamp<std::int64_t>((wanted + row_groups - 1) / row_groups, 1, num_heads)};
}

AppendShare append_share(const AppendCall& call, const AppendShares& shares,
                         std::int64_t index) noexcept {
  const std::int64_t num_heads = call.cache.num_kv_heads;
  const std::int64_t row_group = index / shares.num_head_groups;
  const std::int64_t head_group = index % shares.num_head_groups;
  const bool last = row_group + 1 == shares.num_row_groups;
  return {.rows = {tile_border(call.slots, row_group * shares.rows_of_group),
                   last ? call.slots.size
                        : tile_border(call.slots, (row_group + 1) * shares.rows_of_group)},
          .heads = {head_group * num_heads / shares.num_head_groups,
                    (head_group + 1) * num_heads / shares.num_head_groups}};
}

}  // namespace quire::cpu
