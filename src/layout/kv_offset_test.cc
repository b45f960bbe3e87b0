// SPDX-License-Identifier: Apache-2.0
#include "layout/kv_offset.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <type_traits>
#include <vector>

namespace quire {
namespace {

// Kernels take views as they are.
static_assert(std::is_trivially_copyable_v<KvCacheView>);

KvCacheView make_view(KvLayoutId layout, int block_size, int head_dim, int value_dim) {
  KvCacheView view;
  view.format.layout = layout;
  view.format.block_size = block_size;
  view.head_dim = head_dim;
  view.value_dim = value_dim;
  return view;
}

TEST(KvOffset, PlainIsTheSumOfStrides) {
  KvCacheView view = make_view(KvLayoutId::kPlain, 16, 128, 64);
  view.k_strides = {1000, 100, 10};
  view.v_strides = {2000, 200, 20};
  EXPECT_EQ(element_offset(view, KvTensor::kK, 3, 2, 4, 5), 3245);
  EXPECT_EQ(element_offset(view, KvTensor::kV, 3, 2, 4, 5), 6485);
  view.format.v_in_k = true;
  EXPECT_EQ(element_offset(view, KvTensor::kV, 3, 2, 4, 5), 3245);
  view.k_strides = {-1000, 100, -10};
  EXPECT_EQ(element_offset(view, KvTensor::kK, 3, 2, 4, 5), -3000 + 200 - 40 + 5);
}

// docs/kv_layout.md: K [token / 16][dim / 2][token % 16][dim % 2].
TEST(KvOffset, TiledKPairsDims) {
  EXPECT_EQ(pair_tiled_k(64, 0, 0), 0);
  EXPECT_EQ(pair_tiled_k(64, 0, 1), 1);
  EXPECT_EQ(pair_tiled_k(64, 1, 0), 2);
  EXPECT_EQ(pair_tiled_k(64, 15, 1), 31);
  EXPECT_EQ(pair_tiled_k(64, 0, 2), 32);
  EXPECT_EQ(pair_tiled_k(64, 0, 63), 31 * 32 + 1);
  EXPECT_EQ(pair_tiled_k(64, 16, 0), 64 * 16);
}

// V [dim / 16][token / 2][dim % 16][token % 2].
TEST(KvOffset, TiledVPairsTokens) {
  EXPECT_EQ(pair_tiled_v(32, 0, 0), 0);
  EXPECT_EQ(pair_tiled_v(32, 1, 0), 1);
  EXPECT_EQ(pair_tiled_v(32, 0, 1), 2);
  EXPECT_EQ(pair_tiled_v(32, 1, 15), 31);
  EXPECT_EQ(pair_tiled_v(32, 2, 0), 32);
  EXPECT_EQ(pair_tiled_v(32, 0, 16), 32 * 16);
}

// Every place of a (block, head) is used once: tiles have no holes.
TEST(KvOffset, TilesAreDense) {
  for (const std::int64_t block_size : {16, 32, 48}) {
    for (const std::int64_t dims : {2, 16, 18, 80}) {
      std::set<std::int64_t> k;
      std::set<std::int64_t> v;
      for (std::int64_t token = 0; token < block_size; ++token) {
        for (std::int64_t dim = 0; dim < dims; ++dim) {
          k.insert(pair_tiled_k(dims, token, dim));
          v.insert(pair_tiled_v(block_size, token, dim));
        }
      }
      const auto count = static_cast<std::size_t>(block_size * dims);
      EXPECT_EQ(k.size(), count);
      EXPECT_EQ(*k.rbegin(), block_size * dims - 1);
      EXPECT_EQ(v.size(), count);
      if (dims % kPairTile == 0) {
        EXPECT_EQ(*v.rbegin(), block_size * dims - 1);
      }
    }
  }
}

TEST(KvOffset, TiledAddsBlockAndHeadAndReadsVInKFromK) {
  KvCacheView view = make_view(KvLayoutId::kPairTiled, 32, 64, 48);
  view.k_strides = {100000, 2048, 7};  // the token stride means nothing here
  view.v_strides = {100000, 1536, 7};
  EXPECT_EQ(element_offset(view, KvTensor::kK, 2, 3, 17, 5),
            200000 + 3 * 2048 + pair_tiled_k(64, 17, 5));
  EXPECT_EQ(element_offset(view, KvTensor::kV, 2, 3, 17, 5),
            200000 + 3 * 1536 + pair_tiled_v(32, 17, 5));
  view.format.v_in_k = true;
  EXPECT_EQ(element_offset(view, KvTensor::kV, 2, 3, 17, 5),
            element_offset(view, KvTensor::kK, 2, 3, 17, 5));
}

TEST(KvOffset, OffsetsAre64Bit) {
  KvCacheView view = make_view(KvLayoutId::kPlain, 16, 128, 128);
  view.k_strides = {16 * 128 * 8, 16 * 128, 128};
  const std::int64_t block = std::int64_t{1} << 30;
  EXPECT_EQ(element_offset(view, KvTensor::kK, block, 7, 15, 127), block * 16384 + 16383);
  KvScales scales;
  scales.strides = {128, 16, 1};
  EXPECT_EQ(scale_offset(scales, block, 7, 15), block * 128 + 127);
}

TEST(KvOffset, ScalesBroadcastAlongZeroStrides) {
  KvScales scales;
  EXPECT_EQ(scale_offset(scales, 5, 6, 7), 0);
  scales.strides.head = 1;
  EXPECT_EQ(scale_offset(scales, 5, 6, 7), 6);
}

TEST(KvOffset, KeySlotOfEveryKindOfTable) {
  const std::vector<std::int32_t> padded = {7, 8, 9, -1, 4, 5, -1, -1};
  const BlockTables rows = BlockTables::padded(padded, 4);
  EXPECT_EQ(key_slot(rows, 16, 0, 0), 7 * 16);
  EXPECT_EQ(key_slot(rows, 16, 0, 33), 9 * 16 + 1);
  EXPECT_EQ(key_slot(rows, 16, 1, 31), 5 * 16 + 15);

  const std::vector<std::int32_t> begins = {0, 3, 5};
  const std::vector<std::int32_t> indices = {7, 8, 9, 4, 2147483647};
  const BlockTables indexed = BlockTables::indexed(begins, indices);
  EXPECT_EQ(key_slot(indexed, 3, 0, 8), 9 * 3 + 2);
  EXPECT_EQ(key_slot(indexed, 3, 1, 0), 12);
  EXPECT_EQ(key_slot(indexed, 3, 1, 5), std::int64_t{2147483647} * 3 + 2);

  const std::vector<std::int64_t> first_rows = {10, std::int64_t{1} << 40};
  const BlockTables ragged = BlockTables::ragged(first_rows);
  EXPECT_EQ(key_slot(ragged, 1, 0, 5), 15);
  EXPECT_EQ(key_slot(ragged, 1, 1, 5), (std::int64_t{1} << 40) + 5);
}

}  // namespace
}  // namespace quire
