// SPDX-License-Identifier: Apache-2.0
// Rows against the number formats, element by element through element_offset, for every layout,
// format and granularity; whole images are compared, so a byte of another row would show.
#include "layout/kv_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/dispatch.h"
#include "base/number_formats.h"
#include "layout/cache_image.h"

namespace quire {
namespace {

constexpr DType kDTypes[] = {DType::kF32,    DType::kF16,    DType::kBF16,
                             DType::kF8E4M3, DType::kF8E5M2, DType::kI8};
constexpr std::int64_t kNumBlocks = 3;

std::vector<AttentionSpec> all_specs() {
  std::vector<AttentionSpec> specs;
  for (const DType dtype : kDTypes) {
    for (const ScaleGranularity scales :
         {ScaleGranularity::kNone, ScaleGranularity::kPerTensor, ScaleGranularity::kPerHead,
          ScaleGranularity::kPerTokenHead}) {
      if (scales != ScaleGranularity::kNone && !is_quantized(dtype)) continue;
      for (const bool v_in_k : {false, true}) {
        for (const int block_size : {1, 3, 16, 32}) {
          AttentionSpec spec;
          spec.num_q_heads = spec.num_kv_heads = 2;
          spec.head_dim = 34;
          spec.value_dim = v_in_k ? 17 : 16;
          spec.kv = {dtype, block_size, scales, v_in_k, KvLayoutId::kPlain};
          specs.push_back(spec);
        }
      }
    }
  }
  return specs;
}

template <class F>
void for_each_image(F&& f) {
  for (const AttentionSpec& spec : all_specs()) {
    for (const ImageForm form : kImageForms) {
      if (!CacheImage::possible(spec, form)) continue;
      SCOPED_TRACE(concat(to_string(form), " ", dtype_name(spec.kv.dtype), " ",
                          scale_granularity_name(spec.kv.scales), " block ", spec.kv.block_size,
                          spec.kv.v_in_k ? " v_in_k" : ""));
      CacheImage image(spec, form, kNumBlocks, 1);
      f(image);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Values of many magnitudes, with what quantisation treats specially.
std::vector<float> make_row(std::int64_t dims, std::uint32_t seed) {
  std::vector<float> row(static_cast<std::size_t>(dims));
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::uint32_t random = scramble(static_cast<std::uint32_t>(i) + seed * 31U);
    const float mantissa = static_cast<float>(random % 2001) / 1000.0F - 1.0F;
    row[i] = std::ldexp(mantissa, static_cast<int>(random >> 20) % 20 - 8);
  }
  row[3] = std::numeric_limits<float>::infinity();
  row[5] = -std::numeric_limits<float>::infinity();
  row[7] = std::numeric_limits<float>::quiet_NaN();
  row[8] = -0.0F;
  return row;
}

float finite_amax(const std::vector<float>& row) {
  float amax = 0.0F;
  for (const float x : row) {
    if (std::isfinite(x) && std::fabs(x) > amax) amax = std::fabs(x);
  }
  return amax;
}

// Writes one element of the expected image.
void put(std::vector<unsigned char>& bytes, std::size_t at, DType dtype, float x, float scale) {
  dispatch_dtype(dtype, [&]<class T>() {
    const T stored = quantize<T>(x, scale);
    std::memcpy(&bytes[at], &stored, sizeof(T));
  });
}

void check_store(CacheImage& image, KvTensor tensor, std::int64_t block, std::int64_t head,
                 std::int64_t token, const std::vector<float>& row) {
  const KvCacheView& view = image.view();
  std::vector<unsigned char> bytes = image.bytes();
  std::vector<float> scales = image.scales();
  float scale = 1.0F;
  if (view.format.scales != ScaleGranularity::kNone) {
    const std::size_t at = image.scale_of(tensor, block, head, token);
    if (view.format.scales == ScaleGranularity::kPerTokenHead) {
      scales[at] = token_head_scale(view.format.dtype, finite_amax(row));
    }
    scale = scales[at];
  }
  for (std::size_t dim = 0; dim < row.size(); ++dim) {
    put(bytes, image.byte_of(tensor, block, head, token, static_cast<std::int64_t>(dim)),
        view.format.dtype, row[dim], scale);
  }
  store_row(view, tensor, block, head, token, row.data());
  ASSERT_TRUE(image.bytes() == bytes) << "block " << block << " head " << head << " " << token;
  ASSERT_TRUE(image.scales() == scales) << "block " << block << " head " << head << " " << token;
}

TEST(KvRows, StoreIsTheContractAndTouchesNothingElse) {
  for_each_image([](CacheImage& image) {
    const KvCacheView& view = image.view();
    for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
      if (tensor == KvTensor::kV && view.format.v_in_k) continue;
      const std::int64_t dims = row_dims(view, tensor);
      std::uint32_t seed = 0;
      for (std::int64_t token = 0; token < view.format.block_size; ++token) {
        const std::int64_t block = token % kNumBlocks;
        const std::int64_t head = token % view.num_kv_heads;
        check_store(image, tensor, block, head, token, make_row(dims, ++seed));
      }
      // Rows of nothing, and of nothing finite, have scale 1.
      const auto count = static_cast<std::size_t>(dims);
      check_store(image, tensor, 1, 1, 0, std::vector<float>(count, 0.0F));
      check_store(image, tensor, 1, 1, 0,
                  std::vector<float>(count, std::numeric_limits<float>::quiet_NaN()));
      check_store(image, tensor, 1, 1, 0, std::vector<float>(count, 0x1p-101F));
    }
  });
}

TEST(KvRows, LoadIsStoredTimesScale) {
  for_each_image([](CacheImage& image) {
    const KvCacheView& view = image.view();
    for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
      const std::int64_t dims = row_dims(view, tensor);
      for (std::int64_t token = 0; token < view.format.block_size; ++token) {
        const std::int64_t block = token % kNumBlocks;
        const std::int64_t head = token % view.num_kv_heads;
        // One element more, to see that a row ends where it should.
        std::vector<float> row(static_cast<std::size_t>(dims) + 1, 123.0F);
        load_row(view, tensor, block, head, token, row.data());
        EXPECT_EQ(row.back(), 123.0F);
        float scale = 1.0F;
        if (view.format.scales != ScaleGranularity::kNone) {
          scale = image.scales()[image.scale_of(tensor, block, head, token)];
        }
        for (std::int64_t dim = 0; dim < dims; ++dim) {
          const float stored = load_float(
              view.format.dtype, &image.bytes()[image.byte_of(tensor, block, head, token, dim)], 0);
          const float expected = stored * scale;
          const float loaded = row[static_cast<std::size_t>(dim)];
          // The sign of a NaN is nobody's business.
          ASSERT_TRUE(loaded == expected || (std::isnan(loaded) && std::isnan(expected)))
              << loaded << " " << expected << " dim " << dim << " token " << token;
        }
      }
    }
  });
}

TEST(KvRows, VInKIsTheFrontOfK) {
  for_each_image([](CacheImage& image) {
    const KvCacheView& view = image.view();
    if (!view.format.v_in_k) return;
    std::vector<float> row(static_cast<std::size_t>(view.head_dim));
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i) - 10.0F;
    const std::int64_t token = view.format.block_size - 1;
    store_row(view, KvTensor::kK, 2, 1, token, row.data());
    std::vector<float> k(row.size());
    std::vector<float> v(static_cast<std::size_t>(view.value_dim));
    load_row(view, KvTensor::kK, 2, 1, token, k.data());
    load_row(view, KvTensor::kV, 2, 1, token, v.data());
    for (std::size_t i = 0; i < v.size(); ++i) ASSERT_EQ(v[i], k[i]) << i;
  });
}

TEST(KvRows, ShapeIsThatOfElementOffset) {
  for_each_image([](CacheImage& image) {
    const KvCacheView& view = image.view();
    for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
      const RowShape shape = row_shape(view, tensor);
      for (std::int64_t token = 0; token < view.format.block_size; ++token) {
        const std::int64_t first = element_offset(view, tensor, 1, 1, token, 0);
        for (std::int64_t dim = 0; dim < row_dims(view, tensor); ++dim) {
          ASSERT_EQ(first + shape.offset(dim), element_offset(view, tensor, 1, 1, token, dim));
        }
      }
    }
  });
}

TEST(KvRows, RaggedRowsAreBlocksOfOneToken) {
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 2;
  spec.head_dim = spec.value_dim = 3;
  spec.kv.dtype = DType::kF32;
  spec.kv.block_size = 1;
  std::vector<float> k(5 * 2 * 3);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i);
  const TensorView tensor(k.data(), DType::kF32, {5, 2, 3});
  const KvCacheView view = view_ragged(spec, tensor, tensor);
  std::vector<float> row(3);
  load_row(view, KvTensor::kV, 4, 1, 0, row.data());
  EXPECT_EQ(row, (std::vector<float>{27, 28, 29}));
}

}  // namespace
}  // namespace quire
