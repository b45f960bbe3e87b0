// SPDX-License-Identifier: Apache-2.0
// What merge and the copies of blocks refuse, each before it writes anything.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "attention/validate_fixture.h"

namespace quire::testing {
namespace {

constexpr Device kElsewhere{DeviceKind::kCustom, 1};

const Case kMergeCases[] = {
    {"out_rank", "merge", [](Step& s) { s.merged.out.rank = 2; }, "out: needs rank 3, has 2"},
    {"out_dtype", "merge", [](Step& s) { s.merged.out.dtype = DType::kI8; },
     "out: needs f32, f16 or bf16, has i8"},
    {"out_overlaps", "merge", [](Step& s) { s.merged.out.strides[0] = 23; },
     "out: elements overlap, strides: [23, 6, 1]"},
    {"lse_in_out", "merge", [](Step& s) { s.merged.lse.data = s.merged.out.data; },
     "lse: overlaps out"},
    {"lse_shape", "merge", [](Step& s) { s.merged.lse.shape[0] = 7; },
     "lse: needs shape [8, 4], has [7, 4]"},
    {"partial_shape", "merge", [](Step& s) { s.partials[1].out.shape[2] = 5; },
     "partials[1].out: needs shape [8, 4, 6], has [8, 4, 5]"},
    {"partial_dtypes_differ", "merge", [](Step& s) { s.partials[1].out.dtype = DType::kF16; },
     "partials[1].out: needs f32, has f16"},
    {"partial_without_lse", "merge", [](Step& s) { s.partials[0].lse = {}; },
     "partials[0].lse: needs rank 2, has 0"},
    {"partial_lse_dtype", "merge", [](Step& s) { s.partials[0].lse.dtype = DType::kBF16; },
     "partials[0].lse: needs f32, has bf16"},
    {"partial_elsewhere", "merge", [](Step& s) { s.partials[1].lse.device = kElsewhere; },
     "partials[1].lse: on custom 1, but the backend computes on host"},
    {"partial_is_output", "merge", [](Step& s) { s.partials[1].out = s.merged.out; },
     "out: overlaps partials[1].out"},
    {"partial_lse_is_output", "merge", [](Step& s) { s.partials[0].lse = s.merged.lse; },
     "lse: overlaps partials[0].lse"},
    {"sinks_size", "merge", [](Step& s) { s.merge_sinks.size = 3; }, "sinks: needs 4 heads, has 3"},
    {"sink_nan", "merge",
     [](Step& s) {
       s.params.sinks = {};
       s.sinks[1] = std::nanf("");
     },
     "sinks: head 1 is not a number: nan"},
};

const Case kCopyCases[] = {
    {"layers", "copy_blocks", [](Step& s) { s.dst.pop_back(); },
     "dst: needs 2 layers as src, has 1"},
    {"elsewhere", "copy_blocks", [](Step& s) { s.dst[1].device = kElsewhere; },
     "dst[1]: on custom 1, neither on the host nor where the backend computes, host"},
    {"src_null", "copy_blocks", [](Step& s) { s.src[1].k = nullptr; },
     "src[1].k: null, num_blocks 10"},
    {"src_block_size", "copy_blocks", [](Step& s) { s.src[1].format.block_size = 0; },
     "src[1].format.block_size: not positive: 0"},
    {"src_dtype", "copy_blocks", [](Step& s) { s.src[0].format.dtype = static_cast<DType>(9); },
     "src[0].format.dtype: unknown: 9"},
    {"src_granularity", "copy_blocks",
     [](Step& s) { s.src[0].format.scales = static_cast<ScaleGranularity>(9); },
     "src[0].format.scales: unknown: 9"},
    {"src_v_in_k", "copy_blocks",
     [](Step& s) {
       s.src[1].format.v_in_k = true;
       s.src[1].value_dim = 9;
     },
     "src[1].value_dim: exceeds head_dim 8 with v_in_k: 9"},
    {"dst_overlaps", "copy_blocks", [](Step& s) { s.dst[0].v_strides.block = 47; },
     "dst[0]: elements of V overlap: the stride of block is 47, what lies inside it covers 48"},
    {"heads", "copy_blocks", [](Step& s) { s.dst[1].num_kv_heads = 1; },
     "dst[1].num_kv_heads: needs 2 as src, has 1"},
    {"head_dim", "copy_blocks", [](Step& s) { s.dst[0].head_dim = 7; },
     "dst[0].head_dim: needs 8 as src, has 7"},
    {"value_dim", "copy_blocks", [](Step& s) { s.dst[0].value_dim = 5; },
     "dst[0].value_dim: needs 6 as src, has 5"},
    {"dtype", "copy_blocks", [](Step& s) { s.dst[0].format.dtype = DType::kF16; },
     "dst[0].format.dtype: needs f32 as src, has f16"},
    {"block_size", "copy_blocks", [](Step& s) { s.dst[0].format.block_size = 2; },
     "dst[0].format.block_size: needs 4 as src, has 2"},
    {"granularity", "copy_blocks",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerTokenHead);
       s.dst[1].format.scales = ScaleGranularity::kPerTensor;
       s.dst[1].k_scales.strides = s.dst[1].v_scales.strides = {};
     },
     "dst[1].format.scales: needs per-token-head as src, has per-tensor"},
    {"layout", "copy_blocks",
     [](Step& s) {
       s.dst[1].format.layout = KvLayoutId::kFirstPrivate;
       s.dst[1].opaque_k_bytes = 64;
     },
     "dst[1].format.layout: a copy needs equal ones: from plain to private 256"},
    {"tiles_do_not_fit", "copy_blocks",
     [](Step& s) { s.src[0].format.layout = KvLayoutId::kPairTiled; },
     "src[0].format.layout: pair-tiled does not fit block_size, head_dim and value_dim: 4, 8, 6"},
    {"source_beyond", "copy_blocks", [](Step& s) { s.copies[2].src = 10; },
     "copies: pair 2 (10 -> 1): source not in [0, 10): 10"},
    {"destination_negative", "copy_blocks", [](Step& s) { s.copies[1].dst = -1; },
     "copies: pair 1 (0 -> -1): destination not in [0, 10): -1"},
    {"smallest_layer_counts", "copy_blocks", [](Step& s) { s.src[1].num_blocks = 9; },
     "copies: pair 2 (9 -> 1): source not in [0, 9): 9"},
    {"destination_twice", "copy_blocks", [](Step& s) { s.copies[2].dst = 4; },
     "copies: pairs 0 and 2 have the same destination: 4"},
    {"both_source_and_destination", "copy_blocks",
     [](Step& s) {
       s.dst[1] = s.src[1];
       s.copies[2].dst = 0;
     },
     "copies: source of pair 0 is the destination of pair 2 in the same cache: 0"},
    {"both_in_a_shifted_view", "copy_blocks",
     [](Step& s) {
       s.dst = s.src;
       for (KvCacheView& layer : s.dst)
         layer.k = static_cast<float*>(layer.k) + 64;  // one block on
       for (KvCacheView& layer : s.dst) layer.num_blocks = 9;
       s.copies = {{3, 1}, {2, 5}};
     },
     "copies: source of pair 1 is the destination of pair 0 in the same cache: 1"},
    {"second_misaligned", "copy_blocks",
     [](Step& s) { s.dst[1].k = static_cast<char*>(s.dst[1].k) + 1; },
     "dst[1].k: not aligned to 4 bytes: 0x*"},
    {"second_v_is_k", "copy_blocks", [](Step& s) { s.dst[1].v = s.dst[1].k; },
     "dst[1]: K and V overlap: V begins 0 elements after K, which covers 8"},
    {"second_without_scales", "copy_blocks",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerHead);
       s.src[1].v_scales.data = nullptr;
     },
     "src[1].v_scales: missing, the format has per-head"},
    {"second_scales_misaligned", "copy_blocks",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerHead);
       for (KvScales* scales : {&s.src[1].k_scales, &s.src[1].v_scales}) {
         auto* bytes = reinterpret_cast<char*>(scales->data);
         scales->data = reinterpret_cast<float*>(bytes + 1);
       }
     },
     "src[1].k_scales: not aligned to 4 bytes: 0x*"},
    {"second_scales_shared", "copy_blocks",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerTokenHead);
       s.dst[1].v_scales = s.dst[1].k_scales;
     },
     "dst[1].v_scales: the same memory as k_scales"},
    {"layers_are_one", "copy_blocks", [](Step& s) { s.dst[1] = s.dst[0]; },
     "dst: layers 0 and 1 are the same memory"},
    {"layers_are_one_out_of_order", "copy_blocks",
     [](Step& s) {
       // One more layer than fits a set of addresses, the highest first; the last but one again.
       const KvCacheView low = s.dst[0];
       s.dst.assign(300, low);
       s.src.assign(300, s.src[0]);
       for (std::size_t i = 0; i < 300; ++i) {
         s.dst[i].k = reinterpret_cast<void*>(std::uintptr_t{1} << 44 | (300 - i) << 21);
       }
       s.dst[299].k = s.dst[298].k;
     },
     "dst: layers 298 and 299 are the same memory"},
    {"far_layers_are_one", "copy_blocks",
     [](Step& s) {
       const KvCacheView low = s.dst[0];
       s.dst.assign(300, low);
       s.src.assign(300, s.src[0]);
       for (std::size_t i = 0; i < 300; ++i) {
         s.dst[i].k = reinterpret_cast<void*>(std::uintptr_t{1} << 44 | (300 - i) << 21);
       }
       s.dst[299].k = s.dst[290].k = s.dst[7].k;
     },
     "dst: layers 7 and 290 are the same memory"},
    {"region_begins_outside", "copy_region", [](Step& s) { s.region.first_token = 5; },
     "copy.first_token: not in [0, 4]: 5"},
    {"region_ends_outside", "copy_region", [](Step& s) { s.region.num_tokens = 4; },
     "copy.num_tokens: not in [0, 3] after token 1: 4"},
    {"region_block_beyond", "copy_region", [](Step& s) { s.region.blocks.dst = 10; },
     "copies: pair 0 (2 -> 10): destination not in [0, 10): 10"},
    {"region_onto_itself", "copy_region",
     [](Step& s) {
       s.dst = s.src;
       s.region.blocks.dst = 2;
     },
     "copies: source of pair 0 is the destination of pair 0 in the same cache: 2"},
    {"region_of_opaque", "copy_region",
     [](Step& s) {
       for (KvCacheView* view : {&s.src[0], &s.src[1], &s.dst[0], &s.dst[1]}) {
         view->format.layout = static_cast<KvLayoutId>(300);
         view->opaque_k_bytes = 32;
         view->opaque_v_bytes = 24;
       }
     },
     "src[0].format.layout: its tokens are opaque: private 300"},
};

class BadMerge : public ::testing::TestWithParam<Case> {};
TEST_P(BadMerge, IsRefused) {
  expect_refused(GetParam());
}

class BadCopy : public ::testing::TestWithParam<Case> {};
TEST_P(BadCopy, IsRefused) {
  expect_refused(GetParam());
}

std::string case_name(const ::testing::TestParamInfo<Case>& tested) {
  return tested.param.name;
}
INSTANTIATE_TEST_SUITE_P(Validate, BadMerge, ::testing::ValuesIn(kMergeCases), case_name);
INSTANTIATE_TEST_SUITE_P(Validate, BadCopy, ::testing::ValuesIn(kCopyCases), case_name);

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ValidateCopy, ExportAndImportNeedOnePlainEnd) {
  Step step;
  std::vector<KvCacheView> opaque = step.dst;
  for (KvCacheView& layer : opaque) {
    layer.format.layout = KvLayoutId::kFirstPrivate;
    layer.opaque_k_bytes = 64;
    layer.opaque_v_bytes = 48;
  }
  RecordingBackend backend;
  backend.export_blocks(opaque, step.src, step.copies);
  backend.import_blocks(step.src, opaque, step.copies);
  EXPECT_EQ(backend.calls, (std::vector<std::string>{"copy_blocks", "copy_blocks"}));
  EXPECT_EQ(message_of([&] { backend.export_blocks(step.src, opaque, step.copies); }),
            "dst[0].format.layout: export needs a plain dst: from plain to private 256");
  EXPECT_EQ(message_of([&] { backend.import_blocks(opaque, step.src, step.copies); }),
            "dst[0].format.layout: import needs a plain src: from private 256 to plain");
  std::vector<KvCacheView> larger = opaque;
  larger[1].opaque_k_bytes = 65;
  EXPECT_EQ(message_of([&] { backend.copy_blocks(larger, opaque, step.copies); }),
            "src[1].k_strides.block: less than the 65 bytes of a block: 64");
  larger[1].k_strides.block = 65;
  EXPECT_EQ(message_of([&] { backend.copy_blocks(larger, opaque, step.copies); }),
            "dst[1].opaque_k_bytes: needs 65 as src, has 64");
  const auto copy_message = [&] {
    return message_of([&] { backend.copy_blocks(larger, larger, step.copies); });
  };
  larger[1].k_strides.block = std::int64_t{1} << 61;
  EXPECT_EQ(copy_message(), "src[1].k_strides.block: offsets exceed 64 bits: 2305843009213693952");
  larger[0].opaque_v_bytes = -1;
  EXPECT_EQ(copy_message(), "src[0].opaque_v_bytes: not positive: -1");
  larger[0].k = nullptr;
  EXPECT_EQ(copy_message(), "src[0].k: null, num_blocks 10");
  EXPECT_EQ(backend.calls.size(), 2U);
}

// Layers that the caller allocated one by one, in any order, are as good as one behind the other;
// empty ones need no memory of their own.
TEST(ValidateCopy, TakesLayersInAnyOrder) {
  Step step;
  for (const std::size_t num_layers : {std::size_t{2}, std::size_t{255}, std::size_t{700}}) {
    std::vector<KvCacheView> layers(num_layers, step.dst[0]);
    for (std::size_t i = 0; i < num_layers; ++i) {
      // Only addresses are looked at.
      layers[i].k = reinterpret_cast<void*>(std::uintptr_t{1} << 44 | (i * 277 % 701 + 1) << 21);
    }
    const auto message = [&] {
      return message_of(
          [&] { validate_copy_blocks(layers, layers, {}, CopyKind::kSameLayout, Device{}); });
    };
    EXPECT_EQ(message(), "");
    for (KvCacheView& layer : layers) layer.num_blocks = 0;
    for (KvCacheView& layer : layers) layer.k = nullptr;
    EXPECT_EQ(message(), "");
    layers[1].num_blocks = 1;
    EXPECT_EQ(message(), "dst: layers 0 and 1 are the same memory");
  }
}

// Blocks above one pass of the bit set, and far apart.
TEST(ValidateCopy, FindsConflictsOfLargeCaches) {
  KvCacheView cache;
  std::vector<float> memory(4);  // never touched: only addresses are computed
  cache.k = memory.data();
  cache.v = memory.data();
  cache.k_strides = cache.v_strides = {.block = 1, .head = 1, .token = 1};
  cache.num_kv_heads = cache.head_dim = cache.value_dim = 1;
  cache.format = {.dtype = DType::kF32, .block_size = 1, .v_in_k = true};
  cache.num_blocks = 1'000'000;
  KvCacheView other = cache;
  other.k = other.v = memory.data() + 1;
  const auto check = [&](const KvCacheView& dst, std::vector<BlockCopy> copies) {
    return message_of([&] {
      validate_copy_blocks({&cache, 1}, {&dst, 1}, copies, CopyKind::kSameLayout, Device{});
    });
  };
  EXPECT_EQ(check(other, {{1, 999'999}, {1, 65'535}, {1, 65'536}, {999'999, 1}}), "");
  EXPECT_EQ(check(other, {{1, 999'999}, {1, 65'536}, {2, 999'999}}),
            "copies: pairs 0 and 2 have the same destination: 999999");
  EXPECT_EQ(check(cache, {{1, 999'999}, {999'999, 65'536}}),
            "copies: source of pair 1 is the destination of pair 0 in the same cache: 999999");
  EXPECT_EQ(check(cache, {{1, 999'999}, {1, 999'998}}), "");
}

TEST(ValidateMerge, TakesNoPartialsAndNoLse) {
  Step step;
  step.partials.clear();
  step.merged.lse = {};
  step.merge_sinks = {};
  RecordingBackend backend;
  EXPECT_EQ(run_all(backend, step).message, "");
}

}  // namespace
}  // namespace quire::testing
