// SPDX-License-Identifier: Apache-2.0
// The reference by hand: scores, masks and softmax. See pen_and_paper.h for how to read a case.
#include "backends/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "backends/reference/pen_and_paper.h"

namespace quire {
namespace {

// Row i sees the keys up to i: sums of weights 1, 3, 8.
TEST(ReferenceTest, Causal) {
  const Result result = Problem::three_keys(3).attend();
  expect_values(result.out, {8, 16.0F / 3, 21.0F / 8});
  expect_values(result.lse, {0, kLn3, kLn8});
}

// The last of three keys is the query's own: decode sees all.
TEST(ReferenceTest, DecodeSeesEveryKey) {
  const Result result = Problem::three_keys(1).attend();
  expect_values(result.out, {21.0F / 8});
  expect_values(result.lse, {kLn8});
}

// Five queries, three keys: positions -2, -1, 0, 1, 2. The first two see nothing.
TEST(ReferenceTest, NegativePositionsSeeNothing) {
  const Result result = Problem::three_keys(5).attend();
  expect_values(result.out, {0, 0, 8, 16.0F / 3, 21.0F / 8});
  expect_values(result.lse, {-kInf, -kInf, 0, kLn3, kLn8});
}

TEST(ReferenceTest, NoKeysAtAll) {
  Problem problem = Problem::three_keys(2);
  problem.kv_lens = {0};
  problem.spec.mask.causal = false;
  const Result result = problem.attend();
  expect_values(result.out, {0, 0});
  expect_values(result.lse, {-kInf, -kInf});
}

// scale * q.k with dim 2: q = (1, 2), k0 = (0, 0), k1 = (ln 3, ln 3): q.k1 = 3 ln 3, scale 1/3.
TEST(ReferenceTest, ScaleAndDotProduct) {
  Problem problem;
  problem.spec.head_dim = 2;
  problem.params.scale = 1.0F / 3;
  problem.q = {1, 2};
  problem.q_ends = {1};
  problem.kv_lens = {2};
  problem.k = {0, 0, kLn3, kLn3};
  problem.v = {4, 8};
  const Result result = problem.attend();
  expect_values(result.out, {7});  // (4 + 3 * 8) / 4
  expect_values(result.lse, {kLn4});
}

// Scores of 1000 overflow exp() unless the largest is subtracted first.
TEST(ReferenceTest, LargeScores) {
  Problem problem = Problem::three_keys(1);
  problem.kv_lens = {2};
  problem.k = {1000, 1000, 0, 0};
  const Result result = problem.attend();
  expect_values(result.out, {6});
  expect_values(result.lse, {1000 + kLn2});
}

// left 1: position 2 sees keys 1 and 2, of the weights 2 and 5.
TEST(ReferenceTest, WindowLeft) {
  Problem problem = Problem::three_keys(3);
  problem.spec.mask.window_left = 1;
  const Result result = problem.attend();
  expect_values(result.out, {8, 16.0F / 3, 13.0F / 7});
  expect_values(result.lse, {0, kLn3, kLn7});
}

// Not causal, left 0, right 1: row i sees keys i and i + 1.
TEST(ReferenceTest, WindowRight) {
  Problem problem = Problem::three_keys(3);
  problem.spec.mask = {.causal = false, .window_left = 0, .window_right = 1};
  const Result result = problem.attend();
  expect_values(result.out, {16.0F / 3, 13.0F / 7, 1});
  expect_values(result.lse, {kLn3, kLn7, kLn5});
}

// Chunks {0, 1} and {2, 3}: position 2 sees only itself.
TEST(ReferenceTest, Chunk) {
  Problem problem = Problem::three_keys(3);
  problem.spec.mask.chunk = 2;
  const Result result = problem.attend();
  expect_values(result.out, {8, 16.0F / 3, 1});
  expect_values(result.lse, {0, kLn3, kLn5});
}

// Not causal, positions -1, 0, 1, 2: floor(-1 / 2) is -1, so -1 is in no chunk of a key.
TEST(ReferenceTest, ChunkOfANegativePosition) {
  Problem problem = Problem::three_keys(4);
  problem.spec.mask = {.causal = false, .chunk = 2};
  const Result result = problem.attend();
  expect_values(result.out, {0, 16.0F / 3, 16.0F / 3, 1});
  expect_values(result.lse, {-kInf, kLn3, kLn3, kLn5});
}

// A slope of ln 2 halves a weight per step of distance. Position 2: 1/4, 2/2, 5: sum 25/4, values
// 8/4 + 4 + 5 = 11. The second head has the slope 0.
TEST(ReferenceTest, Alibi) {
  Problem problem = Problem::three_keys(1);
  problem.spec.features.alibi = true;
  problem.spec.num_q_heads = 2;
  problem.q = {1, 1};
  const std::vector<float> slopes{kLn2, 0};
  problem.params.alibi_slopes = slopes;
  const Result result = problem.attend();
  expect_values(result.out, {11 * 4.0F / 25, 21.0F / 8});
  expect_values(result.lse, {std::log(6.25F), kLn8});
}

// The distance counts both ways. Row 0: 1, 2/2, 5/4: sum 13/4, values 8 + 4 + 5/4 = 53/4.
TEST(ReferenceTest, AlibiLooksForwardToo) {
  Problem problem = Problem::three_keys(3);
  problem.spec.features.alibi = true;
  problem.spec.mask.causal = false;
  const std::vector<float> slopes{kLn2};
  problem.params.alibi_slopes = slopes;
  const Result result = problem.attend();
  EXPECT_NEAR(result.out[0], 53.0F / 13, 1e-5F);
  EXPECT_NEAR(result.lse[0], std::log(13.0F / 4), 1e-6F);
}

// tanh(ln(3) / 2) = (3 - 1) / (3 + 1) = 1/2: the score ln 3 under the cap 2 becomes 1.
TEST(ReferenceTest, Softcap) {
  Problem problem = Problem::three_keys(1);
  problem.spec.features.softcap = true;
  problem.params.softcap = 2;
  problem.kv_lens = {2};
  problem.k = {0, kLn3};
  const Result result = problem.attend();
  const float e = std::exp(1.0F);
  expect_values(result.out, {(8 + 4 * e) / (1 + e)});
  expect_values(result.lse, {std::log(1 + e)});
}

// The cap comes first: key 0 scores 1 - ln 2 * 1 + ln 8, weight 4 e; key 1 scores 0, weight 1.
TEST(ReferenceTest, SoftcapThenAlibiThenBias) {
  Problem problem = Problem::three_keys(1);
  problem.spec.features = {.softcap = true, .alibi = true, .bias = true, .lse = true};
  problem.params.softcap = 2;
  problem.kv_lens = {2};
  problem.k = {kLn3, 0};
  const std::vector<float> slopes{kLn2};
  const std::vector<float> bias{kLn8, 0};
  problem.params.alibi_slopes = slopes;
  problem.params.bias = TensorView(bias.data(), DType::kF32, {1, 1, 1, 2});
  const Result result = problem.attend();
  const float e = std::exp(1.0F);
  expect_values(result.out, {(8 * 4 * e + 4) / (4 * e + 1)});
  expect_values(result.lse, {std::log(4 * e + 1)});
}

// Row 0 loses key 0 to its bias, row 1 keeps it with twice the weight, row 2 loses all.
TEST(ReferenceTest, BiasHidesKeys) {
  Problem problem = Problem::three_keys(3);
  problem.spec.features.bias = true;
  problem.spec.mask.causal = false;
  problem.k[0] = kNaN;  // rows that lose key 0 must not notice
  problem.v[0] = kInf;
  const std::vector<float> bias{-kInf, 0, 0, -kInf, kLn2, -kInf, -kInf, -kInf, -kInf};
  problem.params.bias = TensorView(bias.data(), DType::kF32, {1, 1, 3, 3});
  const Result result = problem.attend();
  expect_values(result.out, {13.0F / 7, 4, 0});
  expect_values(result.lse, {kLn7, kLn4, -kInf});
}

// Two sequences and two heads share one row of bias through strides of 0; the longer row of bias
// than either sequence needs is not read.
TEST(ReferenceTest, BiasBroadcasts) {
  Problem problem = Problem::three_keys(2);
  problem.spec.features.bias = true;
  problem.spec.num_q_heads = 2;
  problem.q = {1, 1, 1, 1};
  problem.q_begins = {0, 1};
  problem.q_ends = {1, 2};
  problem.kv_lens = {3, 2};
  problem.blocks = {0, 1, 0, 1};
  problem.blocks_per_sequence = 2;
  const std::vector<float> bias{kLn2, 0, -kInf, kNaN};
  problem.params.bias = TensorView(bias.data(), DType::kF32, {2, 2, 2, 4});
  problem.params.bias.strides = {0, 0, 0, 1};
  const Result result = problem.attend();
  expect_values(result.out, {6, 6, 6, 6});  // (2 * 8 + 2 * 4) / 4
  expect_values(result.lse, {kLn4, kLn4, kLn4, kLn4});
}

// Row 0, at position -1, sees nothing. Rows 1 and 2 have the lse 0 and ln 3, so a sink of ln 3
// leaves 1 / (1 + 3) and 1 / (1 + 1) of the output; that of the second head, -inf, leaves all.
TEST(ReferenceTest, SinkScalesOnlyTheOutput) {
  Problem problem = Problem::three_keys(3);
  problem.kv_lens = {2};
  problem.spec.features.sinks = true;
  problem.spec.num_q_heads = 2;
  problem.q = {1, 1, 1, 1, 1, 1};
  const std::vector<float> sinks{kLn3, -kInf};
  problem.params.sinks = sinks;
  const Result result = problem.attend();
  expect_values(result.out, {0, 0, 2, 8, 8.0F / 3, 16.0F / 3});
  expect_values(result.lse, {-kInf, -kInf, 0, 0, kLn3, kLn3});
}

// Four query heads on two kv heads: 0 and 1 read the first, 2 and 3 the second.
TEST(ReferenceTest, HeadGroups) {
  Problem problem;
  problem.spec.num_q_heads = 4;
  problem.spec.num_kv_heads = 2;
  problem.q = {0, 1, 1, 2};
  problem.q_ends = {1};
  problem.kv_lens = {2};
  problem.k = {0, 0, kLn3, kLn2};  // slot 0: heads 0, 1; slot 1: heads 0, 1
  problem.v = {8, 30, 4, 60};
  const Result result = problem.attend();
  // Weights of (key 0, key 1): (1, 1), (1, 3), (1, 2), (1, 4).
  expect_values(result.out, {6, 5, 50, 54});
  expect_values(result.lse, {kLn2, kLn4, kLn3, kLn5});
}

// Cross-attention: every query sees every key, however the lengths compare.
TEST(ReferenceTest, Unaligned) {
  Problem problem = Problem::three_keys(4);
  problem.spec.alignment = Alignment::kUnaligned;
  problem.spec.mask.causal = false;
  const Result result = problem.attend();
  expect_values(result.out, {21.0F / 8, 21.0F / 8, 21.0F / 8, 21.0F / 8});
  expect_values(result.lse, {kLn8, kLn8, kLn8, kLn8});
}

// One old key, then a and its two children b and c. c sees the old key, a and itself, not b.
Problem tree_problem() {
  Problem problem;
  problem.spec.features.tree_mask = true;
  problem.k = {0, kLn2, kLn5, kLn3};
  problem.v = {8, 4, 1, 2};
  problem.kv_lens = {4};
  problem.q_ends = {3};
  problem.q = {1, 1, 1};
  problem.tree_bits = {0b001, 0b011, 0b101};
  problem.tree_begins = {0};
  return problem;
}

TEST(ReferenceTest, TreeMask) {
  const Result result = tree_problem().attend();
  // a: weights 1, 2. b: 1, 2, 5. c: 1, 2, 3 of the values 8, 4, 2.
  expect_values(result.out, {16.0F / 3, 21.0F / 8, 22.0F / 6});
  expect_values(result.lse, {kLn3, kLn8, std::log(6.0F)});
}

// Depths 0, 1, 1 put b and c at position 2. ALiBi of slope ln 2: c weighs the old key 1/4, a 2/2
// and itself 3.
TEST(ReferenceTest, TreeDepthsArePositions) {
  Problem problem = tree_problem();
  problem.tree_depths = {0, 1, 1};
  problem.spec.features.alibi = true;
  const std::vector<float> slopes{kLn2};
  problem.params.alibi_slopes = slopes;
  const Result result = problem.attend();
  // a: 1/2, 2. b: 1/4, 1, 5. c: 1/4, 1, 3.
  expect_values(result.out, {12 / 2.5F, 11 / 6.25F, 12 / 4.25F});
  expect_values(result.lse, {std::log(2.5F), std::log(6.25F), std::log(4.25F)});
}

// Window left 1: positions 1, 2, 2 by depth, so b and c no longer see the old key at 0, and c still
// sees a at 1; by row number c would be at 3 and lose a too.
TEST(ReferenceTest, WindowsGoByDepth) {
  Problem problem = tree_problem();
  problem.tree_depths = {0, 1, 1};
  problem.spec.mask.window_left = 1;
  const Result result = problem.attend();
  expect_values(result.out, {16.0F / 3, 13.0F / 7, 14.0F / 5});
  expect_values(result.lse, {kLn3, kLn7, kLn5});
}

// A sequence of a tree batch without bits of its own is plainly causal, depths or not.
TEST(ReferenceTest, NoTreeBitsIsCausal) {
  Problem problem = tree_problem();
  problem.tree_begins = {-1};
  problem.tree_depths = {0, 0, 0};
  const Result result = problem.attend();
  expect_values(result.out, {16.0F / 3, 21.0F / 8, 27.0F / 11});
  expect_values(result.lse, {kLn3, kLn8, std::log(11.0F)});
}

// A NaN that a row does see reaches its output and its lse.
TEST(ReferenceTest, VisibleNaNShows) {
  Problem problem = Problem::three_keys(3);
  problem.k[2] = kNaN;
  const Result result = problem.attend();
  EXPECT_NEAR(result.out[1], 16.0F / 3, 1e-5F);
  EXPECT_TRUE(std::isnan(result.out[2]));
  EXPECT_TRUE(std::isnan(result.lse[2]));
}

// A score of -inf hides its key like a bias of -inf: the infinite key does not spoil 0 * v.
TEST(ReferenceTest, InfinitelySmallScoresHide) {
  Problem problem = Problem::three_keys(1);
  problem.k[0] = -kInf;
  problem.v[0] = kNaN;
  const Result result = problem.attend();
  expect_values(result.out, {13.0F / 7});
  expect_values(result.lse, {kLn7});
}

TEST(ReferenceTest, DescribesItself) {
  const auto backend = make_reference_backend({});
  EXPECT_EQ(backend->info().name, "reference");
  EXPECT_TRUE(backend->info().device.is_host());
  EXPECT_TRUE(backend->info().batch_invariant);
  AttentionSpec spec = Problem().spec;
  EXPECT_TRUE(backend->supports(spec).ok());
  spec.kv.layout = KvLayoutId::kFirstPrivate;
  EXPECT_EQ(backend->supports(spec).reasons.size(), 1U);
}

}  // namespace
}  // namespace quire
