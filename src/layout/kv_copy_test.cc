// SPDX-License-Identifier: Apache-2.0
// Every copy is held against one that moves element by element through element_offset, and the
// whole destination is compared, guard bytes and gaps included.
#include "layout/kv_copy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "layout/cache_image.h"
#include "layout/kv_rows.h"

namespace quire {
namespace {

constexpr std::int64_t kNumBlocks = 4;

struct Shape {
  int num_kv_heads;
  int head_dim;
  int value_dim;
  bool v_in_k;
};
constexpr Shape kShapes[] = {
    {2, 32, 32, false}, {3, 6, 16, false}, {1, 5, 3, false}, {2, 18, 7, true}};
constexpr int kBlockSizes[] = {1, 2, 3, 16, 19, 32};
constexpr DType kDTypes[] = {DType::kF32,    DType::kF16,    DType::kBF16,
                             DType::kF8E4M3, DType::kF8E5M2, DType::kI8};

AttentionSpec make_spec(const Shape& shape, int block_size, DType dtype) {
  AttentionSpec spec;
  spec.num_q_heads = shape.num_kv_heads;
  spec.num_kv_heads = shape.num_kv_heads;
  spec.head_dim = shape.head_dim;
  spec.value_dim = shape.value_dim;
  spec.kv.dtype = dtype;
  spec.kv.block_size = block_size;
  spec.kv.v_in_k = shape.v_in_k;
  if (is_quantized(dtype)) spec.kv.scales = ScaleGranularity::kPerTokenHead;
  return spec;
}

// What dst must be afterwards.
struct Expected {
  std::vector<unsigned char> bytes;
  std::vector<float> scales;

  explicit Expected(const CacheImage& dst) : bytes(dst.bytes()), scales(dst.scales()) {}

  void copy_region(const CacheImage& src, const CacheImage& dst, const BlockRegionCopy& copy) {
    copy_tensor(src, dst, KvTensor::kK, copy);
    if (!src.view().format.v_in_k) copy_tensor(src, dst, KvTensor::kV, copy);
  }

 private:
  void copy_tensor(const CacheImage& src, const CacheImage& dst, KvTensor tensor,
                   const BlockRegionCopy& copy) {
    const KvCacheView& view = src.view();
    const auto element_bytes = static_cast<std::size_t>(dtype_bytes(view.format.dtype));
    for (std::int64_t head = 0; head < view.num_kv_heads; ++head) {
      for (int token = copy.first_token; token < copy.first_token + copy.num_tokens; ++token) {
        for (std::int64_t dim = 0; dim < row_dims(view, tensor); ++dim) {
          std::memcpy(&bytes[dst.byte_of(tensor, copy.blocks.dst, head, token, dim)],
                      &src.bytes()[src.byte_of(tensor, copy.blocks.src, head, token, dim)],
                      element_bytes);
        }
        if (view.format.scales != ScaleGranularity::kPerTokenHead) continue;
        scales[dst.scale_of(tensor, copy.blocks.dst, head, token)] =
            src.scales()[src.scale_of(tensor, copy.blocks.src, head, token)];
      }
    }
  }
};

template <class F>
void for_each_pair_of_forms(const AttentionSpec& spec, F&& f) {
  for (const ImageForm from : kImageForms) {
    for (const ImageForm to : kImageForms) {
      if (!CacheImage::possible(spec, from) || !CacheImage::possible(spec, to)) continue;
      SCOPED_TRACE(concat(to_string(from), " to ", to_string(to), ", ", dtype_name(spec.kv.dtype),
                          " block ", spec.kv.block_size, " dims ", spec.head_dim, " ",
                          spec.value_dim));
      f(from, to);
    }
  }
}

TEST(KvCopy, BlocksBetweenAllForms) {
  for (const Shape& shape : kShapes) {
    for (const int block_size : kBlockSizes) {
      for (const DType dtype : kDTypes) {
        const AttentionSpec spec = make_spec(shape, block_size, dtype);
        for_each_pair_of_forms(spec, [&](ImageForm from, ImageForm to) {
          const CacheImage src(spec, from, kNumBlocks, 1);
          CacheImage dst(spec, to, kNumBlocks, 2);
          const std::array<BlockCopy, 3> copies = {{{1, 0}, {3, 2}, {1, 3}}};
          Expected expected(dst);
          for (const BlockCopy& copy : copies) {
            expected.copy_region(src, dst, {copy, 0, block_size});
          }
          copy_blocks_host({&src.view(), 1}, {&dst.view(), 1}, copies);
          ASSERT_TRUE(dst.bytes() == expected.bytes);
          ASSERT_TRUE(dst.scales() == expected.scales);
        });
      }
    }
  }
}

TEST(KvCopy, RegionsBetweenAllForms) {
  for (const Shape& shape : kShapes) {
    for (const int block_size : kBlockSizes) {
      for (const DType dtype : {DType::kBF16, DType::kI8}) {
        const AttentionSpec spec = make_spec(shape, block_size, dtype);
        for_each_pair_of_forms(spec, [&](ImageForm from, ImageForm to) {
          const CacheImage src(spec, from, 2, 3);
          CacheImage dst(spec, to, 2, 4);
          Expected expected(dst);
          for (const int first : {0, 1, 15, 16, 17, 30}) {
            for (const int last : {1, 2, 16, 17, 31, block_size}) {
              if (first >= last || last > block_size) continue;
              const BlockRegionCopy copy = {{1, 0}, first, last - first};
              // A fresh destination each time: what was copied before must not hide a gap.
              const std::vector<unsigned char> bytes = dst.bytes();
              const std::vector<float> scales = dst.scales();
              expected.copy_region(src, dst, copy);
              copy_region_host({&src.view(), 1}, {&dst.view(), 1}, copy);
              ASSERT_TRUE(dst.bytes() == expected.bytes) << first << ":" << last;
              ASSERT_TRUE(dst.scales() == expected.scales) << first << ":" << last;
              dst.bytes() = bytes;
              dst.scales() = scales;
              expected = Expected(dst);
            }
          }
        });
      }
    }
  }
}

TEST(KvCopy, EmptyRegionTouchesNothing) {
  const AttentionSpec spec = make_spec(kShapes[0], 16, DType::kBF16);
  for_each_pair_of_forms(spec, [&](ImageForm from, ImageForm to) {
    const CacheImage src(spec, from, 2, 3);
    CacheImage dst(spec, to, 2, 4);
    const std::vector<unsigned char> before = dst.bytes();
    copy_region_host({&src.view(), 1}, {&dst.view(), 1}, {{1, 0}, 16, 0});
    EXPECT_TRUE(dst.bytes() == before);
  });
}

// Export and import give back every stored byte.
TEST(KvCopy, RoundTripThroughPlain) {
  for (const Shape& shape : {kShapes[0], kShapes[1], Shape{2, 64, 48, true}}) {
    for (const DType dtype : kDTypes) {
      const AttentionSpec spec = make_spec(shape, 32, dtype);
      CacheImage tiled(spec, ImageForm::kTiled, kNumBlocks, 5);
      CacheImage plain(spec, ImageForm::kTokenHead, kNumBlocks, 6);
      const std::vector<unsigned char> before = tiled.bytes();
      const std::vector<float> scales_before = tiled.scales();
      const std::array<BlockCopy, 2> out = {{{0, 3}, {2, 1}}};
      copy_blocks_host({&tiled.view(), 1}, {&plain.view(), 1}, out);
      // Lose the originals, then bring them back.
      const std::array<BlockCopy, 2> lose = {{{1, 0}, {3, 2}}};
      copy_blocks_host({&tiled.view(), 1}, {&tiled.view(), 1}, lose);
      EXPECT_FALSE(tiled.bytes() == before);
      const std::array<BlockCopy, 2> back = {{{3, 0}, {1, 2}}};
      copy_blocks_host({&plain.view(), 1}, {&tiled.view(), 1}, back);
      EXPECT_TRUE(tiled.bytes() == before);
      EXPECT_TRUE(tiled.scales() == scales_before);
    }
  }
}

TEST(KvCopy, WithinOneCache) {
  for (const int block_size : {3, 16}) {
    const AttentionSpec spec = make_spec(kShapes[0], block_size, DType::kF8E4M3);
    for (const ImageForm form : kImageForms) {
      if (!CacheImage::possible(spec, form)) continue;
      CacheImage cache(spec, form, kNumBlocks, 7);
      Expected expected(cache);
      const std::array<BlockCopy, 2> copies = {{{0, 2}, {0, 1}}};
      for (const BlockCopy& copy : copies) {
        expected.copy_region(cache, cache, {copy, 0, block_size});
      }
      copy_blocks_host({&cache.view(), 1}, {&cache.view(), 1}, copies);
      EXPECT_TRUE(cache.bytes() == expected.bytes) << to_string(form);
      EXPECT_TRUE(cache.scales() == expected.scales) << to_string(form);
    }
  }
}

TEST(KvCopy, EveryLayerIsCopiedToItsOwn) {
  const AttentionSpec spec = make_spec(kShapes[1], 16, DType::kF16);
  std::vector<std::unique_ptr<CacheImage>> src;
  std::vector<std::unique_ptr<CacheImage>> dst;
  std::vector<KvCacheView> src_views;
  std::vector<KvCacheView> dst_views;
  std::vector<Expected> expected;
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    src.push_back(std::make_unique<CacheImage>(spec, ImageForm::kTiled, 2, 10 + layer));
    dst.push_back(std::make_unique<CacheImage>(spec, ImageForm::kRecords, 2, 20 + layer));
    src_views.push_back(src.back()->view());
    dst_views.push_back(dst.back()->view());
    expected.emplace_back(*dst.back());
    expected.back().copy_region(*src.back(), *dst.back(), {{0, 1}, 0, 16});
  }
  const std::array<BlockCopy, 1> copies = {{{0, 1}}};
  copy_blocks_host(src_views, dst_views, copies);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(dst[layer]->bytes() == expected[layer].bytes) << layer;
  }
}

// Scales of the caller stay where they are.
TEST(KvCopy, ScalesOfTheCallerDoNotTravel) {
  for (const ScaleGranularity granularity :
       {ScaleGranularity::kPerTensor, ScaleGranularity::kPerHead}) {
    AttentionSpec spec = make_spec(kShapes[0], 16, DType::kI8);
    spec.kv.scales = granularity;
    const CacheImage src(spec, ImageForm::kTiled, 2, 1);
    CacheImage dst(spec, ImageForm::kRecords, 2, 2);
    Expected expected(dst);
    expected.copy_region(src, dst, {{0, 1}, 0, 16});
    const std::array<BlockCopy, 1> copies = {{{0, 1}}};
    copy_blocks_host({&src.view(), 1}, {&dst.view(), 1}, copies);
    EXPECT_TRUE(dst.bytes() == expected.bytes);
    EXPECT_TRUE(dst.scales() == expected.scales);
    EXPECT_FALSE(dst.scales() == src.scales());
  }
}

// An opaque block: its K and V bytes, and nothing of the padding between records. Scales per
// (token, head), if it has any, are among them.
TEST(KvCopy, OpaqueBlocksMoveAsBytes) {
  std::vector<unsigned char> src_bytes(400);
  std::vector<unsigned char> dst_bytes(400);
  for (std::size_t i = 0; i < src_bytes.size(); ++i) {
    src_bytes[i] = static_cast<unsigned char>(scramble(static_cast<std::uint32_t>(i)));
    dst_bytes[i] = static_cast<unsigned char>(scramble(static_cast<std::uint32_t>(i) + 1000U));
  }
  KvCacheView src;
  src.format.layout = KvLayoutId::kFirstPrivate;
  src.format.block_size = 2;
  src.format.dtype = DType::kI8;
  src.format.scales = ScaleGranularity::kPerTokenHead;
  src.num_kv_heads = 1;
  src.num_blocks = 2;
  src.k_strides.block = 200;
  src.v_strides.block = 200;
  src.opaque_k_bytes = 70;
  src.opaque_v_bytes = 50;
  KvCacheView dst = src;
  src.k = src_bytes.data();
  src.v = src_bytes.data() + 100;
  dst.k = dst_bytes.data();
  dst.v = dst_bytes.data() + 100;
  std::vector<unsigned char> expected = dst_bytes;
  std::memcpy(expected.data() + 200, src_bytes.data(), 70);
  std::memcpy(expected.data() + 300, src_bytes.data() + 100, 50);
  const std::array<BlockCopy, 1> copies = {{{0, 1}}};
  copy_blocks_host({&src, 1}, {&dst, 1}, copies);
  EXPECT_TRUE(dst_bytes == expected);
}

}  // namespace
}  // namespace quire
