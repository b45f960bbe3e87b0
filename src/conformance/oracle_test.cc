// SPDX-License-Identifier: Apache-2.0
// The exact result against numbers worked out by hand, and the limits against what they are made
// of.
#include "conformance/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quire::conformance {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One sequence, one head of dim 1: q are given, k are logits, v are values; scale 1.
Problem one_head(const std::vector<float>& q, const std::vector<float>& k,
                 const std::vector<float>& v) {
  Problem p;
  p.spec.num_q_heads = p.spec.num_kv_heads = p.spec.head_dim = p.spec.value_dim = 1;
  p.spec.q_dtype = p.spec.out_dtype = p.spec.kv.dtype = DType::kF32;
  p.spec.kv.block_size = 1;
  ProblemSequence sequence;
  sequence.q_len = std::ssize(q);
  sequence.kv_len = std::ssize(k);
  for (std::int32_t j = 0; j < sequence.kv_len; ++j) sequence.blocks.push_back(j);
  p.sequences = {sequence};
  p.num_tokens = sequence.q_len;
  p.num_blocks = sequence.kv_len;
  p.q = q;
  p.k = {.dim = 1, .source = k, .stored = k, .scales = std::vector<float>(k.size(), 1.0F)};
  p.v = {.dim = 1, .source = v, .stored = v, .scales = std::vector<float>(v.size(), 1.0F)};
  p.v.max_magnitude = 1;
  return p;
}

const float kLog3 = std::log(3.0F);

TEST(Oracle, WeighsKeysByTheirExponentials) {
  // Weights 1 : 3 of values 0 and 1.
  const Expected expected = expect(one_head({1}, {0, kLog3}, {0, 1}));
  EXPECT_NEAR(expected.out[0], 0.75, 1e-7);
  EXPECT_NEAR(expected.lse[0], std::log(4.0), 1e-7);
}

TEST(Oracle, CausalRowsEndAtTheirOwnPosition) {
  // Two queries, three keys: the first sees keys 0 and 1.
  const Expected expected = expect(one_head({0, 0}, {0, 0, 0}, {3, 5, 10}));
  EXPECT_NEAR(expected.out[0], 4.0, 1e-12);
  EXPECT_NEAR(expected.out[1], 6.0, 1e-12);
}

TEST(Oracle, RowsBeforeTheFirstKeyAreEmpty) {
  const Expected expected = expect(one_head({0, 0, 0}, {0}, {7}));
  EXPECT_EQ(expected.out, (std::vector<double>{0, 0, 7}));
  EXPECT_EQ(expected.lse[0], -kInfinity);
  EXPECT_EQ(expected.lse[2], 0);
}

TEST(Oracle, WindowsAndChunksAreInclusive) {
  Problem p = one_head({0}, {0, 0, 0, 0}, {1, 2, 4, 8});
  p.spec.mask = {.causal = true, .window_left = 1};
  EXPECT_NEAR(expect(p).out[0], 6.0, 1e-12);
  p.spec.mask = {.causal = true, .chunk = 3};
  EXPECT_NEAR(expect(p).out[0], 8.0, 1e-12);
}

TEST(Oracle, ScoresAreCappedThenPenalisedThenBiased) {
  Problem p = one_head({1}, {100, 0}, {1, 0});
  p.softcap = 2;
  p.alibi_slopes = {0.5F};  // the first key is one position away
  p.bias = {.num_sequences = 1, .num_heads = 1, .num_queries = 1, .num_keys = 2, .values = {1, 0}};
  // 2 * tanh(50) - 0.5 + 1 = 2.5 against 0.
  EXPECT_NEAR(expect(p).out[0], std::exp(2.5) / (std::exp(2.5) + 1), 1e-12);
}

TEST(Oracle, MinusInfinityHidesAKeyWhateverItHolds) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Problem p = one_head({1}, {nan, 0}, {nan, 3});
  p.bias = {.num_sequences = 1,
            .num_heads = 1,
            .num_queries = 1,
            .num_keys = 2,
            .values = {-kInfinity, 0}};
  EXPECT_EQ(expect(p).out[0], 3);
}

TEST(Oracle, SinksScaleTheOutputAndNotTheLse) {
  Problem p = one_head({1}, {0}, {6});
  p.sinks = {std::log(2.0F)};  // weights 1 : 2
  const Expected expected = expect(p);
  EXPECT_NEAR(expected.out[0], 2.0, 1e-6);
  EXPECT_EQ(expected.lse[0], 0);
}

TEST(Oracle, StoredValuesAreMultipliedByTheirScale) {
  Problem p = one_head({1}, {0, 0}, {3, 5});
  p.v.scales = {2, 0.5F};
  EXPECT_NEAR(expect(p).out[0], (6 + 2.5) / 2, 1e-12);
}

TEST(Oracle, LimitsFollowFromPlainArithmetic) {
  Problem p = one_head({1}, {0, 1, 2}, {1, 0, 0.3F});
  const Limits f32 = expect(p).limits;
  EXPECT_GE(f32.max, 1e-6);
  EXPECT_LE(f32.max, 2e-6);
  EXPECT_EQ(f32.lse, 1e-5);
  // bf16 rounds P and the output: 8 bits of mantissa.
  p.spec.q_dtype = p.spec.out_dtype = DType::kBF16;
  const Limits bf16 = expect(p).limits;
  EXPECT_GT(bf16.max, 1e-4);
  EXPECT_LT(bf16.max, 1e-4 + 2 * 0x1p-8);
  EXPECT_EQ(bf16.lse, 1e-3);
}

TEST(Oracle, MergesPartialsAndSkipsEmptyOnes) {
  const std::vector<PartialData> partials = {
      {.out = {4}, .lse = {0}}, {.out = {0}, .lse = {-kInfinity}}, {.out = {8}, .lse = {kLog3}}};
  const MergeShape shape{.rows = 1, .heads = 1, .dim = 1};
  const Expected expected = expect_merge(partials, {}, shape);
  EXPECT_NEAR(expected.out[0], 7.0, 1e-6);
  EXPECT_NEAR(expected.lse[0], std::log(4.0), 1e-6);
  EXPECT_NEAR(expect_merge(partials, {std::log(4.0F)}, shape).out[0], 3.5, 1e-6);
  const Expected empty = expect_merge({partials[1], partials[1]}, {1.0F}, shape);
  EXPECT_EQ(empty.out[0], 0);
  EXPECT_EQ(empty.lse[0], -kInfinity);
}

}  // namespace
}  // namespace quire::conformance
