// SPDX-License-Identifier: Apache-2.0
// Tensors that lie in each other: what shares an element is refused, what only interleaves is not.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "attention/validate_fixture.h"

namespace quire::testing {
namespace {

constexpr int kHeadDim = 8;
constexpr int kValueDim = 6;

float* after(const void* data, std::int64_t elements) {
  return static_cast<float*>(const_cast<void*>(data)) + elements;
}

// Out where q is, with the strides of q.
void put_out_on_q(Step& s, std::int64_t elements) {
  s.output.out.data = after(s.q.data, elements);
  s.output.out.strides = s.q.strides;
}

// The array moves into memory that is written.
template <class T>
void put_in(std::vector<float>& written, ArrayView<T>& array) {
  std::memcpy(written.data() + 2, array.data, static_cast<std::size_t>(array.size) * sizeof(T));
  array.data = reinterpret_cast<const T*>(written.data() + 2);
}

const Case kCases[] = {
    {"out_one_row_behind_q", "attend", [](Step& s) { put_out_on_q(s, 4 * kHeadDim); },
     "out: overlaps q, and is not q element for element"},
    {"out_one_row_before_q", "attend", [](Step& s) { put_out_on_q(s, -4 * kHeadDim); },
     "out: overlaps q, and is not q element for element"},
    {"out_one_head_behind_q", "attend", [](Step& s) { put_out_on_q(s, kHeadDim); },
     "out: overlaps q, and is not q element for element"},
    {"out_one_element_behind_q", "attend", [](Step& s) { put_out_on_q(s, 1); },
     "out: overlaps q, and is not q element for element"},
    {"out_dense_on_q", "attend", [](Step& s) { s.output.out.data = after(s.q.data, 0); },
     "out: overlaps q, and is not q element for element"},
    {"out_is_the_last_row_of_q", "attend",
     [](Step& s) { s.output.out.data = after(s.q.data, 6 * 4 * kHeadDim); },
     "out: overlaps q, and is not q element for element"},
    {"out_on_q_of_heads_that_overlap", "attend",
     [](Step& s) {
       s.q.strides = {4 * kHeadDim, kValueDim, 1};
       put_out_on_q(s, 0);
     },
     "out: overlaps q, and is not q element for element"},
    {"lse_in_q", "attend", [](Step& s) { s.output.lse.data = after(s.q.data, 0); },
     "lse: overlaps q"},
    {"out_in_new_k", "attend",
     [](Step& s) {
       s.attend_stores = true;
       s.new_kv.k.data = s.out_data.data() + 7;
     },
     "out: overlaps new_kv.k"},
    {"lse_in_new_v", "attend",
     [](Step& s) {
       s.attend_stores = true;
       s.new_kv.v.data = s.lse_data.data() + 3;
     },
     "lse: overlaps new_kv.v"},
    {"out_in_bias", "attend", [](Step& s) { s.output.out.data = after(s.params.bias.data, 7); },
     "out: overlaps params.bias"},
    {"lse_in_slopes", "attend", [](Step& s) { put_in(s.lse_data, s.params.alibi_slopes); },
     "lse: overlaps params.alibi_slopes"},
    {"lse_in_sinks", "attend", [](Step& s) { put_in(s.lse_data, s.params.sinks); },
     "lse: overlaps params.sinks"},
    {"out_in_k_scales", "attend",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerHead);
       s.out_data[9] = s.out_data[10] = 1.0F;
       s.cache.k_scales.data = s.out_data.data() + 9;
     },
     "out: overlaps cache.k_scales"},
    {"lse_in_v_scales", "attend",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerTokenHead);
       s.cache.v_scales.data = s.lse_data.data() + 3;
     },
     "lse: overlaps cache.v_scales"},
    {"out_in_begins", "attend", [](Step& s) { put_in(s.out_data, s.batch.queries.begins); },
     "out: overlaps queries.begins"},
    {"out_in_ends", "attend", [](Step& s) { put_in(s.out_data, s.batch.queries.ends); },
     "out: overlaps queries.ends"},
    {"out_in_lens", "attend", [](Step& s) { put_in(s.out_data, s.batch.kv.lens); },
     "out: overlaps kv.lens"},
    {"out_in_table", "attend", [](Step& s) { put_in(s.out_data, s.batch.kv.blocks.indices); },
     "out: overlaps kv.blocks.indices"},
    {"out_in_table_begins", "attend",
     [](Step& s) {
       s.use_indexed();
       put_in(s.out_data, s.batch.kv.blocks.begins);
     },
     "out: overlaps kv.blocks.begins"},
    {"out_in_slots", "attend", [](Step& s) { put_in(s.out_data, s.batch.kv.slots); },
     "out: overlaps kv.slots"},
    {"out_in_tree_depths", "attend", [](Step& s) { put_in(s.out_data, s.batch.tree_mask.depths); },
     "out: overlaps tree_mask.depths"},
    {"sinks_in_merged_lse", "merge",
     [](Step& s) {
       s.merge_sinks = {s.merged_lse_data.data() + 3, 4};
     },
     "lse: overlaps sinks"},
    {"merged_on_one_partial_row", "merge",
     [](Step& s) { s.partials[0].out.data = s.merged_out_data.data() + 7 * 4 * kValueDim; },
     "out: overlaps partials[0].out"},
};

class Overlap : public ::testing::TestWithParam<Case> {};
TEST_P(Overlap, IsRefused) {
  expect_refused(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Validate, Overlap, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

std::string refusal_of(Step& step) {
  RecordingBackend backend;
  const Refusal refusal = run_all(backend, step);
  return refusal.call + ": " + refusal.message;
}

TEST(Apart, OutIsQItself) {
  Step step;
  put_out_on_q(step, 0);  // value_dim is smaller: the end of every head of q stays
  EXPECT_EQ(refusal_of(step), ": ");
  step.q.strides[0] = step.output.out.strides[0] = 64;
  step.q_data.resize(8 * 64);
  step.q.data = step.output.out.data = step.q_data.data();
  EXPECT_EQ(refusal_of(step), ": ");
  step.output.out.strides[0] = 128;
  EXPECT_EQ(refusal_of(step), "attend: out: overlaps q, and is not q element for element");
}

// One row holds q, new K, new V and out of a token: [4 * 8 | 2 * 8 | 2 * 6 | 4 * 6].
TEST(Apart, PackedRows) {
  constexpr std::int64_t kK = 4 * kHeadDim;
  constexpr std::int64_t kV = kK + 2 * kHeadDim;
  constexpr std::int64_t kOut = kV + 2 * kValueDim;
  constexpr std::int64_t kRow = kOut + 4 * kValueDim;
  Step step;
  step.attend_stores = true;
  std::vector<float> rows(8 * kRow);
  const auto place = [&rows](auto& tensor, std::int64_t first) {
    tensor.data = rows.data() + first;
    tensor.strides[0] = kRow;
  };
  place(step.q, 0);
  place(step.new_kv.k, kK);
  place(step.new_kv.v, kV);
  place(step.output.out, kOut);
  EXPECT_EQ(refusal_of(step), ": ");
  step.output.out.data = rows.data() + kOut - 1;
  EXPECT_EQ(refusal_of(step), "attend: out: overlaps new_kv.v");
  put_out_on_q(step, 0);  // in place beside them
  EXPECT_EQ(refusal_of(step), ": ");
}

// K and V without blocks in the rows of out, and rows that no sequence has.
TEST(Apart, RaggedRowsAndFreeRows) {
  Step step;
  step.use_ragged();
  constexpr std::int64_t kRow = 2 * kHeadDim + 2 * kValueDim + 4 * kValueDim;
  std::vector<float> rows(40 * kRow);
  step.cache.k = rows.data();
  step.cache.v = rows.data() + 2 * kHeadDim;
  step.cache.k_strides.block = step.cache.v_strides.block = kRow;
  step.output.out.data = rows.data() + 2 * kHeadDim + 2 * kValueDim;
  step.output.out.strides[0] = kRow;
  step.slots.assign(6, -1);
  EXPECT_EQ(refusal_of(step), ": ");
  step.output.out.data = rows.data() + 2 * kHeadDim + 2 * kValueDim - 1;
  EXPECT_EQ(refusal_of(step), "attend: out: overlaps the cache");

  Step other;  // the eighth row is nobody's
  other.q.data = after(other.output.out.data, 7 * 4 * kValueDim);
  std::vector<float> longer(7 * 4 * kValueDim + 8 * 4 * kHeadDim);
  other.output.out.data = longer.data();
  other.q.data = longer.data() + 7 * 4 * kValueDim;
  EXPECT_EQ(refusal_of(other), ": ");
}

// Partial results and their union, side by side in every row.
TEST(Apart, StackedPartials) {
  Step step;
  constexpr std::int64_t kRow = 4 * kValueDim;
  std::vector<float> rows(8 * 3 * kRow);
  MutableTensorView* written = &step.merged.out;
  written->data = rows.data() + kRow;
  written->strides[0] = 3 * kRow;
  for (std::size_t i = 0; i < 2; ++i) {
    step.partials[i].out = *written;
    step.partials[i].out.data = rows.data() + static_cast<std::int64_t>(i) * 2 * kRow;
  }
  EXPECT_EQ(refusal_of(step), ": ");
  step.partials[1].out.data = rows.data() + 2 * kRow - 1;
  EXPECT_EQ(refusal_of(step), "merge: out: overlaps partials[1].out");
}

}  // namespace
}  // namespace quire::testing
