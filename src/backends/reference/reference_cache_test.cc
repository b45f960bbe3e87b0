// SPDX-License-Identifier: Apache-2.0
// The reference by hand: where K and V lie, how they are stored, and merging. See pen_and_paper.h
// for how to read a case.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "backends/reference/pen_and_paper.h"
#include "backends/reference/reference.h"
#include "base/number_formats.h"

namespace quire {
namespace {

// V is the first element of K: weights 1 and 3 by the second, values 8 and 4 by the first.
TEST(ReferenceCacheTest, ValuesInsideKeys) {
  Problem problem;
  problem.spec.head_dim = 2;
  problem.spec.kv.v_in_k = true;
  problem.q = {0, 1};
  problem.q_ends = {1};
  problem.kv_lens = {2};
  problem.k = {8, 0, 4, kLn3};
  const Result result = problem.attend();
  expect_values(result.out, {5});  // (8 + 3 * 4) / 4
  expect_values(result.lse, {kLn4});
}

// value_dim 2 beside head_dim 1.
TEST(ReferenceCacheTest, WiderValuesThanKeys) {
  Problem problem;
  problem.spec.value_dim = 2;
  problem.q = {1};
  problem.q_ends = {1};
  problem.kv_lens = {2};
  problem.k = {0, kLn3};
  problem.v = {8, 4, 0, 12};
  const Result result = problem.attend();
  expect_values(result.out, {2, 10});  // (8 + 3 * 0) / 4, (4 + 3 * 12) / 4
}

// Two sequences begin with the same block and end in blocks of their own, listed out of order.
TEST(ReferenceCacheTest, SharedBlocks) {
  Problem problem;
  problem.k = {kLn4, kNaN, 0, kLn2, kLn5, kNaN};  // blocks 0, 1, 2
  problem.v = {16, kNaN, 8, 4, 1, kNaN};
  problem.blocks = {1, 2, 1, 0};
  problem.blocks_per_sequence = 2;
  problem.q = {1, 1};
  problem.q_begins = {0, 1};
  problem.q_ends = {1, 2};
  problem.kv_lens = {3, 3};
  const Result result = problem.attend();
  expect_values(result.out, {21.0F / 8, 80.0F / 7});  // (8 + 8 + 5) / 8, (8 + 8 + 64) / 7
  expect_values(result.lse, {kLn8, kLn7});
}

TEST(ReferenceCacheTest, RaggedSourcesMayOverlap) {
  Problem problem = Problem::three_keys(2);
  problem.spec.kv.block_size = 1;
  problem.ragged_rows = {0, 1};
  problem.q_begins = {0, 1};
  problem.q_ends = {1, 2};
  problem.kv_lens = {2, 2};
  const Result result = problem.attend();
  expect_values(result.out, {16.0F / 3, 13.0F / 7});
  expect_values(result.lse, {kLn3, kLn7});
}

// The window hides the first block, so its table entry is never followed.
TEST(ReferenceCacheTest, UnseenTableEntriesMayBeAnything) {
  Problem problem = Problem::three_keys(1);
  problem.spec.mask.window_left = 0;
  problem.blocks = {-123456789, 1, 2000000000, -1};
  const Result result = problem.attend();
  expect_values(result.out, {1});
  expect_values(result.lse, {kLn5});
}

// A batch may leave rows out: here 0, 2 and 3. A sequence may bring no query at all.
TEST(ReferenceCacheTest, RowsOfNoSequenceStayAsTheyAre) {
  Problem problem = Problem::three_keys(4);
  problem.q = {kNaN, 1, kNaN, kNaN};
  problem.q_begins = {1, 2};
  problem.q_ends = {2, 2};
  problem.kv_lens = {3, 2};
  problem.blocks = {0, 1, -5, -5};
  problem.blocks_per_sequence = 2;
  const Result result = problem.attend();
  EXPECT_NEAR(result.out[1], 21.0F / 8, 1e-5F);
  for (const std::size_t row : {0U, 2U, 3U}) {
    EXPECT_TRUE(std::isnan(result.out[row])) << row;
    EXPECT_TRUE(std::isnan(result.lse[row])) << row;
  }
}

// q is the first of two columns, out every third element, lse transposed.
TEST(ReferenceCacheTest, StridedTensors) {
  Problem problem = Problem::three_keys(2);
  problem.spec.num_q_heads = 2;
  problem.kv_lens = {2};
  const std::vector<float> q{1, kNaN, 0, kNaN, 2, kNaN, 1, kNaN};  // [row 2][head 2][2]
  std::vector<float> out(12, -1.0F);                               // [row 2][head 2][3]
  std::vector<float> lse(4, -1.0F);                                // [head 2][row 2]
  TensorView q_view(q.data(), DType::kF32, {2, 2, 1});
  q_view.strides = {4, 2, 1};
  AttentionOutput output{.out = {out.data(), DType::kF32, {2, 2, 1}},
                         .lse = {lse.data(), DType::kF32, {2, 2}}};
  output.out.strides = {6, 3, 1};
  output.lse.strides = {1, 2};
  problem.attend(q_view, output);
  // Row 0 sees key 0 alone. Row 1: weights (1, 4) for head 0 (q = 2), (1, 2) for head 1.
  expect_values(out, {8, -1, -1, 8, -1, -1, 24.0F / 5, -1, -1, 16.0F / 3, -1, -1});
  expect_values(lse, {0, kLn5, 0, kLn3});
}

// Without lse, and rounded to f16: 16/3 = 5.3333 lies between 5.332031 and 5.335938.
TEST(ReferenceCacheTest, HalfPrecisionOutput) {
  Problem problem = Problem::three_keys(1);
  problem.kv_lens = {2};
  problem.spec.q_dtype = DType::kF16;
  problem.spec.out_dtype = DType::kF16;
  const Float16 one{0x3c00};
  Float16 out{0};
  problem.attend(TensorView(&one, DType::kF16, {1, 1, 1}),
                 {.out = {&out, DType::kF16, {1, 1, 1}}, .lse = {}});
  EXPECT_EQ(to_float(out), 5.33203125F);
}

// Appends rows to a cache of 8-bit elements; K alone is looked at, V is stored as K is.
struct Stored {
  std::vector<std::uint8_t> k;  // [4 slots, num_kv_heads, head_dim], 0xaa where nothing was stored
  std::vector<std::uint8_t> v;
  std::vector<float> k_scales;
  std::vector<float> v_scales;
  std::vector<float> attended;  // by one query of zeros over the first two slots: the mean of V
};

struct AppendCase {
  DType dtype;
  ScaleGranularity granularity;
  std::vector<float> scales;  // [1], [num_kv_heads] or [4 slots, num_kv_heads]
  int num_kv_heads;
  int dim;
  std::vector<float> rows;  // [num_slots, num_kv_heads, dim], for K and for V
  std::vector<std::int64_t> slots;
};

KvScales strided_scales(ScaleGranularity granularity, std::vector<float>& scales,
                        int num_kv_heads) {
  switch (granularity) {
    case ScaleGranularity::kPerTensor:
      return {scales.data(), {0, 0, 0}};
    case ScaleGranularity::kPerHead:
      return {scales.data(), {0, 1, 0}};
    case ScaleGranularity::kPerTokenHead:
      return {scales.data(), {2 * num_kv_heads, 1, num_kv_heads}};
    case ScaleGranularity::kNone:
      break;
  }
  return {};
}

Stored append(const AppendCase& test) {
  Problem problem;
  AttentionSpec& spec = problem.spec;
  spec.num_q_heads = spec.num_kv_heads = test.num_kv_heads;
  spec.head_dim = spec.value_dim = test.dim;
  spec.kv.dtype = test.dtype;
  spec.kv.scales = test.granularity;
  problem.kv_lens = {2};
  problem.q_ends = {1};

  Stored stored;
  const std::size_t row_size = static_cast<std::size_t>(test.num_kv_heads * test.dim);
  stored.k.assign(4 * row_size * static_cast<std::size_t>(dtype_bytes(test.dtype)), 0xaa);
  stored.v = stored.k;
  stored.k_scales = stored.v_scales = test.scales;
  const auto view = [&](std::vector<std::uint8_t>& data) {
    return MutableTensorView(data.data(), test.dtype, {2, 2, test.num_kv_heads, test.dim});
  };
  KvCacheView cache = view_kv(spec, KvOrder::kBlockTokenHeadDim, view(stored.k), view(stored.v));
  cache.k_scales = strided_scales(test.granularity, stored.k_scales, test.num_kv_heads);
  cache.v_scales = strided_scales(test.granularity, stored.v_scales, test.num_kv_heads);

  const std::int64_t num_new = static_cast<std::int64_t>(test.slots.size());
  const TensorView rows(test.rows.data(), DType::kF32, {num_new, test.num_kv_heads, test.dim});
  const std::vector<float> q(row_size, 0.0F);
  stored.attended.assign(row_size, kNaN);
  BatchView batch = problem.batch();
  batch.kv.slots = test.slots;
  const TinyBackend backend(spec);
  backend->prepare(*backend.prepared, batch);
  backend->append(*backend.prepared, {rows, rows}, cache);
  backend->attend(
      *backend.prepared, {}, TensorView(q.data(), DType::kF32, {1, test.num_kv_heads, test.dim}),
      cache,
      {.out = {stored.attended.data(), DType::kF32, {1, test.num_kv_heads, test.dim}}, .lse = {}});
  return stored;
}

using Bytes = std::vector<std::uint8_t>;

// x / 0.5: 2.4 -> 2, -400 -> -128, 0.5 -> 0 and 1.5 -> 2 (ties to even), inf -> 127, NaN -> 0.
TEST(ReferenceCacheTest, Int8PerTensor) {
  const Stored stored = append({.dtype = DType::kI8,
                                .granularity = ScaleGranularity::kPerTensor,
                                .scales = {0.5F},
                                .num_kv_heads = 1,
                                .dim = 3,
                                .rows = {1.2F, -200, 0.25F, 0.75F, kInf, kNaN},
                                .slots = {0, 1}});
  EXPECT_EQ(stored.k, (Bytes{2, 0x80, 0, 2, 127, 0, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}));
  EXPECT_EQ(stored.v, stored.k);
  expect_values(stored.attended, {1, -0.25F, 0});  // means of (1, 1), (-64, 63.5), (0, 0)
}

// Head 0 by 0.5, head 1 by 2. e4m3: 16 is 0x58, 8 is 0x50, 2 is 0x40, 1000 / 2 saturates to 448.
TEST(ReferenceCacheTest, Float8E4M3PerHead) {
  const Stored stored = append({.dtype = DType::kF8E4M3,
                                .granularity = ScaleGranularity::kPerHead,
                                .scales = {0.5F, 2},
                                .num_kv_heads = 2,
                                .dim = 1,
                                .rows = {8, 4, 4, 1000},
                                .slots = {0, 1}});
  EXPECT_EQ(stored.k, (Bytes{0x58, 0x40, 0x50, 0x7e, 0xaa, 0xaa, 0xaa, 0xaa}));
  expect_values(stored.attended, {6, 450});  // (8 + 4) / 2, (4 + 896) / 2
}

// e5m2 by (token, head): amax / 57344. (1, -2) becomes (28672, -57344), which are 0x77 and 0xfb; a
// row of zeros takes the scale 1; the amax of (inf, 14336) is 14336, and inf saturates to 57344.
TEST(ReferenceCacheTest, Float8E5M2PerTokenHead) {
  const Stored stored = append({.dtype = DType::kF8E5M2,
                                .granularity = ScaleGranularity::kPerTokenHead,
                                .scales = {7, 7, 7, 7},
                                .num_kv_heads = 1,
                                .dim = 2,
                                .rows = {1, -2, 0, 0, kInf, 14336},
                                .slots = {0, 1, 3}});
  EXPECT_EQ(stored.k, (Bytes{0x77, 0xfb, 0, 0, 0xaa, 0xaa, 0x7b, 0x7b}));
  EXPECT_EQ(stored.k_scales, (std::vector<float>{2.0F / 57344.0F, 1, 7, 0.25F}));
  EXPECT_EQ(stored.v_scales, stored.k_scales);
  expect_values(stored.attended, {0.5F, -1});  // means of (1, 0), (-2, 0)
}

// Every format under every granularity stands for what was appended: 8 and 4 are exact after
// division by 0.5, and largest magnitudes by (token, head).
TEST(ReferenceCacheTest, EveryFormatAndGranularity) {
  for (const DType dtype : {DType::kI8, DType::kF8E4M3, DType::kF8E5M2}) {
    for (const ScaleGranularity granularity :
         {ScaleGranularity::kPerTensor, ScaleGranularity::kPerHead,
          ScaleGranularity::kPerTokenHead}) {
      SCOPED_TRACE(testing::Message()
                   << dtype_name(dtype) << " " << scale_granularity_name(granularity));
      const Stored stored = append({.dtype = dtype,
                                    .granularity = granularity,
                                    .scales = {0.5F, 0.5F, 0.5F, 0.5F},
                                    .num_kv_heads = 1,
                                    .dim = 1,
                                    .rows = {8, 4},
                                    .slots = {0, 1}});
      expect_values(stored.attended, {6});
    }
  }
}

// bf16 keeps 8 bits: 1 + 2^-8 is a tie and goes down to 1 (0x3f80), 1 + 3 * 2^-8 up to 0x3f82.
TEST(ReferenceCacheTest, BFloat16HasNoScale) {
  const Stored stored = append({.dtype = DType::kBF16,
                                .granularity = ScaleGranularity::kNone,
                                .scales = {},
                                .num_kv_heads = 1,
                                .dim = 1,
                                .rows = {1.00390625F, 1.01171875F},
                                .slots = {0, 1}});
  EXPECT_EQ(stored.k, (Bytes{0x80, 0x3f, 0x82, 0x3f, 0xaa, 0xaa, 0xaa, 0xaa}));
}

// The second row is not stored; slots may come in any order.
TEST(ReferenceCacheTest, SlotMinusOneStoresNothing) {
  const Stored stored = append({.dtype = DType::kI8,
                                .granularity = ScaleGranularity::kPerTensor,
                                .scales = {1},
                                .num_kv_heads = 1,
                                .dim = 1,
                                .rows = {1, 2, 3},
                                .slots = {2, -1, 0}});
  EXPECT_EQ(stored.k, (Bytes{3, 0xaa, 1, 0xaa}));
  EXPECT_EQ(stored.v, (Bytes{3, 0xaa, 1, 0xaa}));
}

// With V inside K one row is stored, and attend stores what it is given before it looks.
TEST(ReferenceCacheTest, AttendStoresNewKeysFirst) {
  Problem problem;
  problem.spec.head_dim = 2;
  problem.spec.kv.v_in_k = true;
  problem.kv_lens = {2};
  problem.q_ends = {1};
  problem.k = {8, 0, kNaN, kNaN};
  const std::vector<std::int64_t> slots{1};
  const std::vector<float> new_k{4, kLn3};
  const std::vector<float> q{0, 1};
  float out = kNaN;
  BatchView batch = problem.batch();
  batch.kv.slots = slots;
  const TinyBackend backend(problem.spec);
  backend->prepare(*backend.prepared, batch);
  backend->attend(*backend.prepared, {}, TensorView(q.data(), DType::kF32, {1, 1, 2}),
                  {problem.cache(), {TensorView(new_k.data(), DType::kF32, {1, 1, 2}), {}}},
                  {.out = {&out, DType::kF32, {1, 1, 1}}, .lse = {}});
  EXPECT_NEAR(out, 5, 1e-5);
  expect_values(problem.k, {8, 0, 4, kLn3});
}

// One row and one head, dim 1.
struct PartialValue {
  float out;
  float lse;
};

Result merge(const std::vector<PartialValue>& values, const std::vector<float>& sinks) {
  std::vector<Partial> partials;
  for (const PartialValue& value : values) {
    partials.push_back(
        {.out = {&value.out, DType::kF32, {1, 1, 1}}, .lse = {&value.lse, DType::kF32, {1, 1}}});
  }
  Result result{{kNaN}, {kNaN}};
  make_reference_backend({})->merge(partials, sinks,
                                    {.out = {result.out.data(), DType::kF32, {1, 1, 1}},
                                     .lse = {result.lse.data(), DType::kF32, {1, 1}}});
  return result;
}

// The three keys of the weights 1, 2, 5 as {1} and {2, 5}, and as {1}, {2} and {5}.
TEST(ReferenceCacheTest, MergeIsAttentionOverTheUnion) {
  for (const Result& result :
       {merge({{8, 0}, {13.0F / 7, kLn7}}, {}), merge({{1, kLn5}, {8, 0}, {4, kLn2}}, {})}) {
    expect_values(result.out, {21.0F / 8});
    expect_values(result.lse, {kLn8});
  }
}

// A partial that saw no key changes nothing, whatever its output holds.
TEST(ReferenceCacheTest, EmptyPartialsAreTheIdentity) {
  const Result result = merge({{kNaN, -kInf}, {13.0F / 7, kLn7}, {kInf, -kInf}}, {});
  expect_values(result.out, {13.0F / 7});
  expect_values(result.lse, {kLn7});
}

TEST(ReferenceCacheTest, MergeOfNothingSeesNothing) {
  const Result result = merge({{kNaN, -kInf}, {1, -kInf}}, {kLn8});
  expect_values(result.out, {0});
  expect_values(result.lse, {-kInf});
}

// The sink equals the lse of the union, so it halves the output once; lse stays.
TEST(ReferenceCacheTest, MergeTakesTheSink) {
  const Result result = merge({{8, 0}, {13.0F / 7, kLn7}}, {kLn8});
  expect_values(result.out, {21.0F / 16});
  expect_values(result.lse, {kLn8});
}

// Partials in f16, out in bf16, two rows and two heads: 3/4 of 4 and 1/4 of 8 are 5.
TEST(ReferenceCacheTest, MergeConverts) {
  const std::array<Float16, 4> first{{{0x4400}, {0x4400}, {0x4400}, {0x4400}}};
  const std::array<Float16, 4> second{{{0x4800}, {0x4800}, {0x4800}, {0x4800}}};
  const std::array<float, 4> first_lse{kLn3, 0, kLn3, -kInf};
  const std::array<float, 4> second_lse{0, kLn3, -kInf, 0};
  const std::array<Partial, 2> partials{
      Partial{{first.data(), DType::kF16, {2, 2, 1}}, {first_lse.data(), DType::kF32, {2, 2}}},
      Partial{{second.data(), DType::kF16, {2, 2, 1}}, {second_lse.data(), DType::kF32, {2, 2}}}};
  std::array<BFloat16, 4> out{};
  make_reference_backend({})->merge(partials, {},
                                    {.out = {out.data(), DType::kBF16, {2, 2, 1}}, .lse = {}});
  EXPECT_EQ(to_float(out[0]), 5);  // (3 * 4 + 8) / 4
  EXPECT_EQ(to_float(out[1]), 7);  // (4 + 3 * 8) / 4
  EXPECT_EQ(to_float(out[2]), 4);
  EXPECT_EQ(to_float(out[3]), 8);
}

}  // namespace
}  // namespace quire
