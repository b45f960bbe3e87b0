// SPDX-License-Identifier: Apache-2.0
// The records of caches that quire allocates: every element inside, each in its own place.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "layout/kv_offset.h"
#include "quire/error.h"
#include "quire/kv_cache.h"

namespace quire {
namespace {

AttentionSpec make_spec(int heads, int head_dim, int value_dim, int block_size) {
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = heads;
  spec.head_dim = head_dim;
  spec.value_dim = value_dim;
  spec.kv.block_size = block_size;
  return spec;
}

void check_record(const AttentionSpec& spec, const KvLayout& layout) {
  const std::int64_t element_bytes = dtype_bytes(spec.kv.dtype);
  EXPECT_EQ(layout.alignment, 64);
  EXPECT_EQ(layout.block_bytes % 64, 0);
  EXPECT_EQ(layout.v_offset_bytes % 64, 0);
  EXPECT_EQ(layout.k_strides.block * element_bytes, layout.block_bytes);
  EXPECT_EQ(layout.v_strides.block * element_bytes, layout.block_bytes);
  EXPECT_EQ(layout.opaque_k_bytes, 0);

  KvCacheView view;
  view.k_strides = layout.k_strides;
  view.v_strides = layout.v_strides;
  view.head_dim = spec.head_dim;
  view.value_dim = spec.value_dim;
  view.format = spec.kv;
  view.format.layout = layout.id;
  std::set<std::int64_t> places;  // in bytes
  std::size_t count = 0;
  for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
    if (tensor == KvTensor::kV && spec.kv.v_in_k) continue;
    const bool is_k = tensor == KvTensor::kK;
    const std::int64_t base = is_k ? 0 : layout.v_offset_bytes;
    for (std::int64_t h = 0; h < spec.num_kv_heads; ++h) {
      for (std::int64_t t = 0; t < spec.kv.block_size; ++t) {
        for (std::int64_t d = 0; d < (is_k ? spec.head_dim : spec.value_dim); ++d) {
          places.insert(base + element_offset(view, tensor, 0, h, t, d) * element_bytes);
          ++count;
        }
      }
    }
  }
  EXPECT_EQ(places.size(), count);
  EXPECT_GE(*places.begin(), 0);
  EXPECT_LE(*places.rbegin() + element_bytes, layout.block_bytes);
  // No more padding than alignment asks for.
  EXPECT_LT(layout.block_bytes - static_cast<std::int64_t>(count) * element_bytes, 2 * 64);
}

template <class F>
void for_each_format(F&& f) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const bool v_in_k : {false, true}) f(dtype, v_in_k);
  }
}

TEST(PlainLayout, HoldsEverySpec) {
  for_each_format([](DType dtype, bool v_in_k) {
    for (const int block_size : {1, 2, 3, 16, 19}) {
      for (const int head_dim : {1, 7, 64}) {
        for (const int value_dim : {1, 5, 64}) {
          if (v_in_k && value_dim > head_dim) continue;
          AttentionSpec spec = make_spec(3, head_dim, value_dim, block_size);
          spec.kv.dtype = dtype;
          spec.kv.v_in_k = v_in_k;
          const KvLayout layout = plain_layout(spec);
          EXPECT_EQ(layout.id, KvLayoutId::kPlain);
          EXPECT_EQ(layout.k_strides.token, head_dim);
          EXPECT_EQ(layout.k_strides.head, head_dim * block_size);
          EXPECT_EQ(layout.v_strides.token, v_in_k ? head_dim : value_dim);
          check_record(spec, layout);
        }
      }
    }
  });
}

TEST(PairTiledLayout, HoldsWhatFits) {
  for_each_format([](DType dtype, bool v_in_k) {
    for (const int block_size : {16, 32, 48}) {
      for (const int head_dim : {2, 18, 64}) {
        AttentionSpec spec = make_spec(2, head_dim, v_in_k ? 1 : 16, block_size);
        spec.kv.dtype = dtype;
        spec.kv.v_in_k = v_in_k;
        ASSERT_TRUE(pair_tiled_layout_fits(spec));
        const KvLayout layout = pair_tiled_layout(spec);
        EXPECT_EQ(layout.id, KvLayoutId::kPairTiled);
        check_record(spec, layout);
      }
    }
  });
}

TEST(PairTiledLayout, RefusesTheRest) {
  AttentionSpec bad[] = {make_spec(1, 64, 64, 8), make_spec(1, 64, 64, 24),
                         make_spec(1, 63, 64, 16), make_spec(1, 64, 40, 16)};
  for (const AttentionSpec& spec : bad) {
    EXPECT_FALSE(pair_tiled_layout_fits(spec));
    try {
      pair_tiled_layout(spec);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("block_size is " + std::to_string(spec.kv.block_size)),
                std::string::npos)
          << message;
    }
  }
  // V is read through K: its own dim does not matter.
  bad[3].kv.v_in_k = true;
  EXPECT_TRUE(pair_tiled_layout_fits(bad[3]));
}

TEST(Layouts, RefuseShapesThatAreNone) {
  EXPECT_THROW(plain_layout(make_spec(0, 64, 64, 16)), Error);
  EXPECT_THROW(plain_layout(make_spec(1, 0, 64, 16)), Error);
  EXPECT_THROW(plain_layout(make_spec(1, 64, 0, 16)), Error);
  EXPECT_THROW(plain_layout(make_spec(1, 64, 64, 0)), Error);
  EXPECT_THROW(pair_tiled_layout(make_spec(1, 64, 64, 0)), Error);
  EXPECT_THROW(pair_tiled_layout(make_spec(1, -64, 64, 16)), Error);
  // 2^93 elements.
  const int huge = 1 << 30;
  EXPECT_THROW(plain_layout(make_spec(huge, huge, huge, huge)), Error);
  EXPECT_GT(plain_layout(make_spec(1 << 10, 1 << 10, 1 << 10, 1 << 20)).block_bytes,
            std::int64_t{1} << 41);
}

}  // namespace
}  // namespace quire
