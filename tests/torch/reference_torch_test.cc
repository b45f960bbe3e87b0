// SPDX-License-Identifier: Apache-2.0
// The reference backend against PyTorch's own attention in double precision.
//
// Random batches are built as tensors, scattered over shuffled blocks for quire, and attended by
// scaled_dot_product_attention with an explicit additive mask. Nothing of quire's masks, offsets or
// positions is used on that side: a mask is a comparison of two ranges of positions. Softcap and
// sinks, which that function does not have, are spelled out as softmax over explicit scores.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/reference/reference.h"
#include "quire/backend.h"
#include "random_batch.h"

namespace quire {
namespace {

// What PyTorch says of one sequence: out [q_len, num_q_heads, value_dim] and lse [q_len, heads].
struct Expected {
  at::Tensor out;
  at::Tensor lse;
};

// What is added to the scores: 0 or -inf by position, ALiBi and bias. [num_q_heads, q_len, kv_len].
at::Tensor additive_mask(const Scenario& scenario, const TestBatch& batch, std::int64_t s) {
  const AttentionSpec& spec = scenario.spec;
  const TestSequence& sequence = batch.sequences[static_cast<std::size_t>(s)];
  const std::int64_t num_old = sequence.kv_len - sequence.q_len;
  at::Tensor query_pos = at::arange(sequence.q_len, at::kLong) + num_old;
  at::Tensor key_pos = at::arange(sequence.kv_len, at::kLong);
  if (sequence.depths.defined()) {
    query_pos = num_old + sequence.depths;
    key_pos = at::cat({at::arange(num_old, at::kLong), query_pos});
  }
  query_pos = query_pos.unsqueeze(1);
  key_pos = key_pos.unsqueeze(0);
  at::Tensor keep = at::ones({sequence.q_len, sequence.kv_len}, at::kBool);
  const Mask& mask = spec.mask;
  if (mask.causal && sequence.tree.defined()) {
    keep = at::cat({keep.slice(1, 0, num_old), sequence.tree}, 1);
  } else if (mask.causal) {
    keep = keep & (key_pos <= query_pos);
  }
  if (mask.window_left >= 0) keep = keep & (key_pos >= query_pos - mask.window_left);
  if (mask.window_right >= 0) keep = keep & (key_pos <= query_pos + mask.window_right);
  if (mask.chunk > 0) {
    keep =
        keep & (at::div(key_pos, mask.chunk, "floor") == at::div(query_pos, mask.chunk, "floor"));
  }
  at::Tensor added = at::zeros({spec.num_q_heads, sequence.q_len, sequence.kv_len}, at::kDouble);
  if (spec.features.alibi) {
    const at::Tensor distance = (query_pos - key_pos).abs().to(at::kDouble);
    added = added - batch.slopes.to(at::kDouble).reshape({-1, 1, 1}) * distance;
  }
  if (spec.features.bias) {
    added = added + batch.bias[s].slice(1, 0, sequence.q_len).slice(2, 0, sequence.kv_len);
  }
  return added.masked_fill(keep.logical_not(), -kInfinity);
}

Expected expect(const Scenario& scenario, const TestBatch& batch, std::int64_t s) {
  const AttentionSpec& spec = scenario.spec;
  const TestSequence& sequence = batch.sequences[static_cast<std::size_t>(s)];
  if (sequence.q_len == 0 || sequence.kv_len == 0) {
    const std::int64_t num_heads = spec.num_q_heads;
    return {at::zeros({sequence.q_len, num_heads, spec.value_dim}, at::kDouble),
            at::full({sequence.q_len, num_heads}, -kInfinity, at::kDouble)};
  }
  const auto heads_first = [](const at::Tensor& x) {
    return x.to(at::kDouble).permute({1, 0, 2}).unsqueeze(0);
  };
  const at::Tensor q =
      heads_first(batch.q.slice(0, sequence.first_row, sequence.first_row + sequence.q_len));
  const at::Tensor k = heads_first(sequence.k.values()).repeat_interleave(spec.head_group(), 1);
  const at::Tensor v = heads_first(sequence.v.values()).repeat_interleave(spec.head_group(), 1);
  const at::Tensor added = additive_mask(scenario, batch, s).unsqueeze(0);
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scenario.scale;
  if (scenario.softcap > 0) scores = scenario.softcap * at::tanh(scores / scenario.softcap);
  scores = scores + added;
  Expected expected{.out = {}, .lse = at::logsumexp(scores, 3)[0].t()};
  if (spec.features.sinks) {  // a sink is one more key, without a value
    const at::Tensor sink = batch.sinks.to(at::kDouble).reshape({1, -1, 1, 1});
    const at::Tensor column = sink.expand({1, spec.num_q_heads, sequence.q_len, 1});
    const at::Tensor weights = at::softmax(at::cat({scores, column}, 3), 3);
    expected.out = at::matmul(weights.slice(3, 0, sequence.kv_len), v);
  } else if (scenario.softcap > 0) {
    expected.out = at::matmul(at::softmax(scores, 3).nan_to_num(0.0), v);
  } else {
    expected.out = at::scaled_dot_product_attention(q, k, v, added, /*dropout_p=*/0.0,
                                                    /*is_causal=*/false, scenario.scale);
  }
  expected.out = expected.out[0].permute({1, 0, 2});
  return expected;
}

// A reference backend with a batch that holds every case here.
struct Reference {
  static constexpr BatchBounds kBounds{
      .max_sequences = 8, .max_tokens = 128, .max_kv_len = 128, .max_total_kv_len = 1024};

  std::unique_ptr<AttentionBackend> backend = make_reference_backend({});
  WorkspaceBuffer workspace;
  std::unique_ptr<PreparedBatch> prepared;

  explicit Reference(const AttentionSpec& spec)
      : workspace(backend->memory(), backend->workspace(spec, kBounds)),
        prepared(backend->make_prepared(spec, kBounds, workspace.view())) {}
};

// All arithmetic is in double on both sides, so that all but the one rounding to f32 is far below
// these limits; `size` is that of the values.
void expect_close(const at::Tensor& actual, const at::Tensor& expected, double size) {
  const at::Tensor finite = expected.isfinite();
  EXPECT_TRUE(at::equal(actual.isfinite(), finite));
  const at::Tensor wanted = expected.masked_fill(finite.logical_not(), 0);
  const at::Tensor got = actual.to(at::kDouble).masked_fill(finite.logical_not(), 0);
  const at::Tensor excess = (got - wanted).abs() - wanted.abs() * 0x1p-24 - size * 1e-12;
  EXPECT_TRUE((excess <= 0).all().item<bool>()) << "largest excess " << excess.max();
}

// Rows of no sequence must still hold the NaN they began with.
void expect_untouched(const TestBatch& batch, const at::Tensor& out, const at::Tensor& lse) {
  at::Tensor free_rows = at::ones({out.size(0)}, at::kBool);
  for (const TestSequence& sequence : batch.sequences) {
    free_rows.slice(0, sequence.first_row, sequence.first_row + sequence.q_len).fill_(false);
  }
  EXPECT_TRUE(out.index({free_rows}).isnan().all().item<bool>());
  EXPECT_TRUE(lse.index({free_rows}).isnan().all().item<bool>());
}

void compare(const Scenario& scenario) {
  const AttentionSpec& spec = scenario.spec;
  SCOPED_TRACE(testing::Message() << to_string(spec) << ", seed " << scenario.seed);
  const TestBatch batch = random_batch(scenario);
  PagedBatch paged = scatter_batch(scenario, batch);
  AttentionParams params;
  params.scale = scenario.scale;
  params.softcap = scenario.softcap;
  if (spec.features.alibi) params.alibi_slopes = view_array(batch.slopes);
  if (spec.features.sinks) params.sinks = view_array(batch.sinks);
  if (spec.features.bias) params.bias = view_tensor(batch.bias);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor out =
      at::full({batch.q.size(0), spec.num_q_heads, spec.value_dim}, nan, at::kFloat);
  const at::Tensor lse = at::full({batch.q.size(0), spec.num_q_heads}, nan, at::kFloat);

  const Reference reference(spec);
  reference.backend->prepare(*reference.prepared, view_batch(scenario, paged));
  reference.backend->attend(*reference.prepared, params, view_tensor(batch.q),
                            view_cache(spec, batch, paged),
                            {.out = view_tensor(out), .lse = view_tensor(lse)});

  for (std::int64_t s = 0; s < std::ssize(batch.sequences); ++s) {
    const TestSequence& sequence = batch.sequences[static_cast<std::size_t>(s)];
    const Expected expected = expect(scenario, batch, s);
    const std::int64_t end = sequence.first_row + sequence.q_len;
    expect_close(out.slice(0, sequence.first_row, end), expected.out, 10);
    expect_close(lse.slice(0, sequence.first_row, end), expected.lse, 10);
  }
  expect_untouched(batch, out, lse);
}

AttentionSpec plain_spec() {
  AttentionSpec spec;
  spec.num_q_heads = 2;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  spec.value_dim = 16;
  spec.q_dtype = DType::kF32;
  spec.out_dtype = DType::kF32;
  spec.kv.dtype = DType::kF32;
  spec.kv.block_size = 4;
  spec.features.lse = true;
  return spec;
}

// One way to depart from the plain scenario.
struct Departure {
  const char* name;
  void (*apply)(Scenario& scenario);
};

constexpr std::array kDepartures{
    Departure{"Plain", [](Scenario&) {}},
    Departure{"NotCausal", [](Scenario& s) { s.spec.mask.causal = false; }},
    Departure{"WindowLeft", [](Scenario& s) { s.spec.mask.window_left = 7; }},
    Departure{"WindowRight",
              [](Scenario& s) {
                s.spec.mask.causal = false;
                s.spec.mask.window_right = 3;
              }},
    Departure{"Chunk", [](Scenario& s) { s.spec.mask.chunk = 5; }},
    Departure{"Alibi", [](Scenario& s) { s.spec.features.alibi = true; }},
    Departure{"Bias", [](Scenario& s) { s.spec.features.bias = true; }},
    Departure{"Sinks", [](Scenario& s) { s.spec.features.sinks = true; }},
    Departure{"Softcap",
              [](Scenario& s) {
                s.spec.features.softcap = true;
                s.softcap = 1.5F;
              }},
    Departure{"HeadGroups", [](Scenario& s) { s.spec.num_q_heads = 6; }},
    Departure{"OneKvHead", [](Scenario& s) { s.spec.num_kv_heads = 1; }},
    Departure{"NarrowValues", [](Scenario& s) { s.spec.value_dim = 5; }},
    Departure{"WideValues", [](Scenario& s) { s.spec.value_dim = 24; }},
    Departure{"ValuesInKeys",
              [](Scenario& s) {
                s.spec.value_dim = 12;
                s.spec.kv.v_in_k = true;
              }},
    Departure{"Unaligned",
              [](Scenario& s) {
                s.spec.alignment = Alignment::kUnaligned;
                s.spec.mask = {.causal = false};
                s.spec.features.alibi = false;
                s.spec.features.tree_mask = false;
              }},
    Departure{"Tree",
              [](Scenario& s) {
                s.spec.features.tree_mask = true;
                s.spec.alignment = Alignment::kAligned;
                s.spec.mask.causal = true;
              }},
    Departure{"Ragged",
              [](Scenario& s) {
                s.spec.kv.block_size = 1;
                s.ragged = true;
              }},
    Departure{"Scale", [](Scenario& s) { s.scale = -0.9F; }},
    Departure{"F16", [](Scenario& s) { s.spec.kv.dtype = DType::kF16; }},
    Departure{"BF16", [](Scenario& s) { s.spec.kv.dtype = DType::kBF16; }},
};

constexpr std::array kQuantized{DType::kI8, DType::kF8E4M3, DType::kF8E5M2};
constexpr std::array kGranularities{ScaleGranularity::kPerTensor, ScaleGranularity::kPerHead,
                                    ScaleGranularity::kPerTokenHead};

class ReferenceTorchTest : public testing::Test {
 protected:
  // The tensors are tiny: waking threads would take most of the time.
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_F(ReferenceTorchTest, EachDepartureAlone) {
  for (const Departure& departure : kDepartures) {
    SCOPED_TRACE(departure.name);
    for (unsigned seed = 0; seed < 20; ++seed) {
      Scenario scenario{.spec = plain_spec(), .seed = seed};
      departure.apply(scenario);
      compare(scenario);
    }
  }
}

TEST_F(ReferenceTorchTest, QuantizedCaches) {
  for (const DType dtype : kQuantized) {
    for (const ScaleGranularity granularity : kGranularities) {
      for (unsigned seed = 0; seed < 10; ++seed) {
        Scenario scenario{.spec = plain_spec(), .seed = seed};
        scenario.spec.kv.dtype = dtype;
        scenario.spec.kv.scales = granularity;
        compare(scenario);
      }
    }
  }
}

// Five departures at a time, and sometimes 8 bits. Later ones overrule what they contradict.
TEST_F(ReferenceTorchTest, RandomCombinations) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Scenario scenario{.spec = plain_spec(), .seed = seed};
    if (random() % 2 == 0) {
      scenario.spec.kv.dtype = kQuantized[random() % kQuantized.size()];
      scenario.spec.kv.scales = kGranularities[random() % kGranularities.size()];
    }
    for (int i = 0; i < 5; ++i) {
      Scenario departed = scenario;
      kDepartures[random() % kDepartures.size()].apply(departed);
      const auto backend = make_reference_backend({});
      try {
        if (backend->supports(departed.spec).ok()) scenario = departed;
      } catch (const Error&) {  // contradicts what is there already
      }
    }
    compare(scenario);
  }
}

// Appends 12 rows, one of them to no slot, and compares every byte of the cache and its scales.
void compare_append(DType dtype, ScaleGranularity granularity) {
  SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " "
                                  << scale_granularity_name(granularity));
  constexpr std::int64_t kRows = 12;
  Scenario scenario{.spec = plain_spec()};
  AttentionSpec& spec = scenario.spec;
  spec.value_dim = 10;
  spec.kv.dtype = dtype;
  spec.kv.scales = granularity;
  at::manual_seed(1);
  TestBatch batch;
  batch.k_scales = random_scales(granularity, spec.num_kv_heads);
  batch.v_scales = random_scales(granularity, spec.num_kv_heads);
  batch.q = at::zeros({0, spec.num_q_heads, spec.head_dim});
  batch.max_kv_len = kRows;
  batch.sequences.push_back(TestSequence{});
  PagedBatch paged = scatter_batch(scenario, batch);  // a cache without contents

  const auto random_rows = [&](int dim) {
    at::Tensor rows = at::randn({kRows, spec.num_kv_heads, dim}) * 2;
    rows[2].zero_();
    rows[3][0][1] = kInfinity;
    rows[3][1][2] = -kInfinity;
    rows[4].mul_(1e-30);
    return rows;
  };
  const at::Tensor k = random_rows(spec.head_dim);
  const at::Tensor v = random_rows(spec.value_dim);
  PagedBatch expected = paged;
  const at::Tensor slots = at::randperm(paged.k.size(0), at::kLong).slice(0, 0, kRows).clone();
  const auto scatter_to = [&](const Stored& rows, const at::Tensor& bytes,
                              const at::Tensor& scales) {
    const at::Tensor codes = rows.codes.contiguous().view(at::kByte).reshape({kRows, -1});
    return std::pair(bytes.index_copy(0, slots.slice(0, 1), codes.slice(0, 1)),
                     scales.index_copy(0, slots.slice(0, 1), rows.scales.squeeze(2).slice(0, 1)));
  };
  std::tie(expected.k, expected.k_scales) =
      scatter_to(quantize(spec.kv, k, batch.k_scales), paged.k, paged.k_scales);
  std::tie(expected.v, expected.v_scales) =
      scatter_to(quantize(spec.kv, v, batch.v_scales), paged.v, paged.v_scales);
  slots[0] = -1;

  const Reference reference(spec);
  BatchView view = view_batch(scenario, paged);
  view.kv.slots = {slots.data_ptr<std::int64_t>(), kRows};
  reference.backend->prepare(*reference.prepared, view);
  reference.backend->append(*reference.prepared, {view_tensor(k), view_tensor(v)},
                            view_cache(spec, batch, paged));
  EXPECT_TRUE(at::equal(paged.k, expected.k));
  EXPECT_TRUE(at::equal(paged.v, expected.v));
  if (granularity != ScaleGranularity::kPerTokenHead) return;
  EXPECT_TRUE(at::equal(paged.k_scales, expected.k_scales));
  EXPECT_TRUE(at::equal(paged.v_scales, expected.v_scales));
}

TEST_F(ReferenceTorchTest, AppendStoresWhatTorchConverts) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    compare_append(dtype, ScaleGranularity::kNone);
  }
  for (const DType dtype : kQuantized) {
    for (const ScaleGranularity granularity : kGranularities) compare_append(dtype, granularity);
  }
}

// Attention over parts of the keys, merged, is attention over all of them.
TEST_F(ReferenceTorchTest, Merge) {
  at::manual_seed(1);
  const auto random = [](std::int64_t rows) { return at::randn({1, 3, rows, 8}, at::kDouble); };
  const at::Tensor q = random(20);
  const at::Tensor k = random(50);
  const at::Tensor v = random(50);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3));
  const auto rows_first = [](const at::Tensor& x) { return x[0].transpose(0, 1).contiguous(); };
  const at::Tensor part_of_key = at::randint(4, {20, 50}, at::kLong);
  std::vector<at::Tensor> owners;
  std::vector<Partial> partials;
  for (std::int64_t part = 0; part < 5; ++part) {  // none has the keys of the last
    const at::Tensor added =
        at::zeros({20, 50}, at::kDouble).masked_fill(part_of_key != part, -kInfinity);
    at::Tensor out = at::scaled_dot_product_attention(q, k, v, added, 0.0, false, 1.0);
    if (part == 4) out = at::full_like(out, std::numeric_limits<double>::quiet_NaN());
    owners.push_back(rows_first(out).to(at::kFloat));
    owners.push_back(rows_first(at::logsumexp(scores + added, 3).unsqueeze(3)).to(at::kFloat));
    const at::Tensor& lse = owners.back();
    partials.push_back({view_tensor(owners[owners.size() - 2]), view_tensor(lse.squeeze(2))});
  }
  const at::Tensor sinks = at::randn({3});
  const at::Tensor all_lse = at::logsumexp(scores, 3)[0].t();
  const at::Tensor all_out =
      rows_first(at::scaled_dot_product_attention(q, k, v, {}, 0.0, false, 1.0));
  const at::Tensor out = at::empty({20, 3, 8});
  const at::Tensor lse = at::empty({20, 3});
  const AttentionOutput output{.out = view_tensor(out), .lse = view_tensor(lse)};
  constexpr double kSize = 1e6;  // the partials themselves were rounded to f32

  const auto backend = make_reference_backend({});
  backend->merge(partials, {}, output);
  expect_close(out, all_out, kSize);
  expect_close(lse, all_lse, kSize);
  backend->merge(partials, view_array(sinks), output);
  expect_close(out, all_out * at::sigmoid(all_lse - sinks).unsqueeze(2), kSize);
  expect_close(lse, all_lse, kSize);
}

}  // namespace
}  // namespace quire
