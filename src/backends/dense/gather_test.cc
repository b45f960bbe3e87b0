// SPDX-License-Identifier: Apache-2.0
// Gathered rows against load_row, for every layout, format and granularity; the fill around what is
// written shows a stray write, and blocks that nobody sees have no place.
#include "backends/dense/gather.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/number_formats.h"
#include "layout/cache_image.h"
#include "layout/kv_rows.h"

namespace quire::dense {
namespace {

constexpr float kFill = 1234.5F;
constexpr std::int64_t kNumBlocks = 5;

std::vector<AttentionSpec> all_specs() {
  std::vector<AttentionSpec> specs;
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    for (const ScaleGranularity scales :
         {ScaleGranularity::kNone, ScaleGranularity::kPerTensor, ScaleGranularity::kPerHead,
          ScaleGranularity::kPerTokenHead}) {
      if ((scales != ScaleGranularity::kNone) != is_quantized(dtype)) continue;
      for (const bool v_in_k : {false, true}) {
        for (const int block_size : {1, 3, 16}) {
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

// One sequence over the blocks 3, 0, 4, 1 of a cache.
struct OneSequence {
  std::vector<std::int32_t> begins = {0};
  std::vector<std::int32_t> ends;
  std::vector<std::int32_t> lens;
  std::vector<std::int32_t> table = {3, 0, 4, 1};
  std::vector<std::uint8_t> tree_bits;
  std::vector<std::int64_t> tree_begins;

  OneSequence(std::int32_t q_len, std::int32_t kv_len) : ends({q_len}), lens({kv_len}) {}
  BatchView view() const {
    BatchView batch;
    batch.queries = {begins, ends};
    batch.kv.lens = lens;
    batch.kv.blocks = BlockTables::padded(table, 4);
    if (!tree_begins.empty()) batch.tree_mask = {tree_bits, tree_begins, {}};
    return batch;
  }
};

// A target with room around it, and what it should hold.
struct Target {
  DenseRows rows;
  std::vector<float> wide;
  std::vector<std::uint16_t> narrow;

  Target(DType dtype, std::int64_t num_rows, std::int64_t stride)
      : wide(static_cast<std::size_t>(num_rows * stride + 1), kFill),
        narrow(static_cast<std::size_t>(num_rows * stride + 1), 0x1234) {
    rows = {dtype, dtype == DType::kF32 ? static_cast<void*>(wide.data()) : narrow.data(), num_rows,
            stride};
  }
  float at(std::int64_t row, std::int64_t d) const {
    return load_float(rows.dtype, rows.data, row * rows.stride + d);
  }
  bool end_is_untouched() const { return wide.back() == kFill && narrow.back() == 0x1234; }
};

bool same(float a, float b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// Compares with load_row, one row at a time.
void expect_rows(const GatherSource& source, KvTensor tensor, KeyRange keys, DType dtype,
                 std::int64_t stride) {
  const std::int64_t dims = row_dims(source.cache, tensor);
  const std::int64_t num_rows = keys.size() + 2;
  const std::int64_t block_size = source.cache.format.block_size;
  Target clean(dtype, num_rows, stride);
  Target raw(dtype, num_rows, stride);
  std::vector<std::int32_t> found(static_cast<std::size_t>(num_rows), -1);
  const std::int64_t num_found = gather_rows(source, tensor, 1, keys, clean.rows, found.data());
  EXPECT_EQ(gather_rows(source, tensor, 1, keys, raw.rows, nullptr), 0);
  EXPECT_TRUE(clean.end_is_untouched() && raw.end_is_untouched());
  std::vector<std::int32_t> expected_found;
  std::vector<float> expected(static_cast<std::size_t>(dims));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    std::fill(expected.begin(), expected.end(), 0.0F);
    if (row < keys.size()) {
      const std::int64_t slot = key_slot(source.tables, block_size, 0, keys.begin + row);
      load_row(source.cache, tensor, slot / block_size, 1, slot % block_size, expected.data());
    }
    bool finite = true;
    for (const float x : expected) finite = finite && std::isfinite(x);
    if (!finite) expected_found.push_back(static_cast<std::int32_t>(row));
    for (std::int64_t d = 0; d < stride; ++d) {
      const float want = d < dims ? expected[static_cast<std::size_t>(d)] : 0.0F;
      ASSERT_TRUE(same(raw.at(row, d), want)) << "row " << row << " dim " << d;
      ASSERT_EQ(clean.at(row, d), finite ? want : 0.0F) << "row " << row << " dim " << d;
    }
  }
  found.resize(static_cast<std::size_t>(num_found));
  EXPECT_EQ(found, expected_found);
}

TEST(Gather, RowsEqualThoseOfTheCache) {
  for (const AttentionSpec& spec : all_specs()) {
    for (const ImageForm form : kImageForms) {
      if (!CacheImage::possible(spec, form)) continue;
      SCOPED_TRACE(concat(to_string(form), " ", to_string(spec)));
      const CacheImage image(spec, form, kNumBlocks, 7);
      const std::int32_t kv_len = 3 * spec.kv.block_size + 1;
      const OneSequence sequence(1, kv_len);
      const BatchView batch = sequence.view();
      const GatherSource source = gather_source(image.view(), batch, spec, 0);
      for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
        const std::int64_t dims = row_dims(image.view(), tensor);
        for (const KeyRange keys : {KeyRange{0, kv_len}, KeyRange{1, kv_len - 1}, KeyRange{2, 2}}) {
          expect_rows(source, tensor, keys, DType::kF32, dims);
          expect_rows(source, tensor, keys, DType::kF32, dims + 5);
          if (dtype_bytes(spec.kv.dtype) == 2) {
            expect_rows(source, tensor, keys, spec.kv.dtype, dims);
            expect_rows(source, tensor, keys, spec.kv.dtype, dims + 6);
          }
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

AttentionSpec tree_spec() {
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 2;
  spec.head_dim = spec.value_dim = 8;
  spec.q_dtype = spec.out_dtype = DType::kF32;
  spec.kv = {DType::kF32, 4, ScaleGranularity::kNone, false, KvLayoutId::kPlain};
  spec.mask.window_left = 3;
  spec.features.tree_mask = true;
  return spec;
}

// A tree of three new tokens that see themselves and the first, but never the second.
TEST(Gather, TreesLeaveOutWhatNobodySees) {
  const AttentionSpec spec = tree_spec();
  const CacheImage image(spec, ImageForm::kRecords, kNumBlocks, 3);
  OneSequence sequence(3, 13);
  sequence.tree_bits = {0b001, 0b001, 0b101};
  sequence.tree_begins = {0};
  // Keys 0 to 6 are left of every window: their first block is released.
  sequence.table[0] = 1 << 30;
  const BatchView batch = sequence.view();
  const GatherSource source = gather_source(image.view(), batch, spec, 0);
  EXPECT_EQ(source.first_old, 7);
  const KeyRange keys{0, 13};
  Target target(DType::kF32, 13, 8);
  gather_rows(source, KvTensor::kK, 0, keys, target.rows, nullptr);
  std::vector<float> expected(8);
  for (std::int64_t j = 0; j < 13; ++j) {
    const bool readable = j >= 7 && j != 11;
    EXPECT_EQ(may_read_key(source, j), readable) << j;
    std::fill(expected.begin(), expected.end(), 0.0F);
    if (readable) load_key(source, KvTensor::kK, 0, j, expected.data());
    for (std::int64_t d = 0; d < 8; ++d) {
      EXPECT_TRUE(same(target.at(j, d), expected[static_cast<std::size_t>(d)])) << j << " " << d;
    }
  }
}

// Rows of a ragged source are its keys.
TEST(Gather, RaggedSources) {
  AttentionSpec spec = tree_spec();
  spec.features.tree_mask = false;
  spec.kv.block_size = 1;
  const CacheImage image(spec, ImageForm::kTokenHead, 9, 3);
  OneSequence sequence(1, 4);
  const std::vector<std::int64_t> rows = {3};
  BatchView batch = sequence.view();
  batch.kv.blocks = BlockTables::ragged(rows);
  const GatherSource source = gather_source(image.view(), batch, spec, 0);
  expect_rows(source, KvTensor::kV, {0, 4}, DType::kF32, 8);
}

}  // namespace
}  // namespace quire::dense
