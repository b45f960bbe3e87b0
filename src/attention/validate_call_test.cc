// SPDX-License-Identifier: Apache-2.0
// What append, attend, merge and the copies refuse, each before it writes anything.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "attention/validate.h"
#include "attention/validate_fixture.h"

namespace quire::testing {
namespace {

constexpr Device kElsewhere{DeviceKind::kCustom, 1};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const Case kAppendCases[] = {
    {"k_rank", "append", [](Step& s) { s.new_kv.k.rank = 2; }, "new_kv.k: needs rank 3, has 2"},
    {"k_rows", "append", [](Step& s) { s.new_kv.k.shape[0] = 5; },
     "new_kv.k: needs shape [6, 2, 8], has [5, 2, 8]"},
    {"v_dim", "append", [](Step& s) { s.new_kv.v.shape[2] = 8; },
     "new_kv.v: needs shape [6, 2, 6], has [6, 2, 8]"},
    {"k_dtype", "append", [](Step& s) { s.new_kv.k.dtype = DType::kI8; },
     "new_kv.k: needs f32, f16 or bf16, has i8"},
    {"v_dtype_differs", "append", [](Step& s) { s.new_kv.v.dtype = DType::kF16; },
     "new_kv.v: needs f32, has f16"},
    {"k_dim_stride", "append", [](Step& s) { s.new_kv.k.strides[2] = 2; },
     "new_kv.k: needs stride 1 in the last axis, has 2"},
    {"k_strides_overflow", "append",
     [](Step& s) { s.new_kv.k.strides[0] = std::numeric_limits<std::int64_t>::max() / 4; },
     "new_kv.k: offsets exceed 64 bits, strides: [2305843009213693951, 8, 1]"},
    {"k_elsewhere", "append", [](Step& s) { s.new_kv.k.device = kElsewhere; },
     "new_kv.k: on custom 1, but the backend computes on host"},
    {"k_misaligned", "append",
     [](Step& s) { s.new_kv.k.data = static_cast<const char*>(s.new_kv.k.data) + 2; },
     "new_kv.k: not aligned to 4 bytes: 0x*"},
    {"k_null", "append", [](Step& s) { s.new_kv.k.data = nullptr; }, "new_kv.k: null"},
    {"v_missing", "append", [](Step& s) { s.new_kv.v = {}; }, "new_kv.v: needs rank 3, has 0"},
    {"v_given_with_v_in_k", "append",
     [](Step& s) {
       s.spec.kv.v_in_k = true;
       s.cache.format.v_in_k = true;
     },
     "new_kv.v: given, but V is a part of K with v_in_k"},
    {"cache_elsewhere", "append", [](Step& s) { s.cache.device = kElsewhere; },
     "cache: on custom 1, but the backend computes on host"},
    {"cache_heads", "append", [](Step& s) { s.cache.num_kv_heads = 1; },
     "cache.num_kv_heads: needs 2 as the spec, has 1"},
    {"cache_head_dim", "append", [](Step& s) { s.cache.head_dim = 4; },
     "cache.head_dim: needs 8 as the spec, has 4"},
    {"cache_no_value_dim", "append", [](Step& s) { s.cache.value_dim = 0; },
     "cache.value_dim: not in [1, 4096]: 0"},
    {"cache_dtype", "append", [](Step& s) { s.cache.format.dtype = DType::kF16; },
     "cache.format.dtype: needs f32 as the spec, has f16"},
    {"cache_block_size", "append", [](Step& s) { s.cache.format.block_size = 2; },
     "cache.format.block_size: needs 4 as the spec, has 2"},
    {"cache_v_in_k", "append",
     [](Step& s) {
       s.cache.format.v_in_k = true;
       s.cache.v = s.cache.k;
       s.cache.v_strides = s.cache.k_strides;
     },
     "cache.format.v_in_k: needs 0 as the spec, has 1"},
    {"cache_layout", "append",
     [](Step& s) {
       s.cache.format.layout = KvLayoutId::kFirstPrivate;
       s.cache.opaque_k_bytes = s.cache.k_strides.block;
     },
     "cache.format.layout: needs plain as the spec, has private 256"},
    {"cache_unknown_layout", "append",
     [](Step& s) { s.cache.format.layout = static_cast<KvLayoutId>(2); },
     "cache.format.layout: unknown: 2"},
    {"cache_negative_blocks", "append", [](Step& s) { s.cache.num_blocks = -1; },
     "cache.num_blocks: not in [0, 288230376151711743]: -1"},
    {"cache_k_null", "append", [](Step& s) { s.cache.k = nullptr; },
     "cache.k: null, num_blocks 10"},
    {"cache_v_null", "append", [](Step& s) { s.cache.v = nullptr; },
     "cache.v: null, num_blocks 10"},
    {"cache_misaligned", "append", [](Step& s) { s.cache.k = static_cast<char*>(s.cache.k) + 1; },
     "cache.k: not aligned to 4 bytes: 0x*"},
    {"cache_tokens_overlap", "append", [](Step& s) { s.cache.k_strides.token = 7; },
     "cache: elements of K overlap: the stride of token is 7, what lies inside it covers 8"},
    {"cache_v_is_k", "append", [](Step& s) { s.cache.v = s.cache.k; },
     "cache: K and V overlap: V begins 0 elements after K, which covers 8"},
    {"cache_strides_overflow", "append",
     [](Step& s) { s.cache.k_strides.block = std::int64_t{1} << 61; },
     "cache: offset of a cache element does not fit in 64 bits: 2305843009213693952 * 9"},
    {"v_in_k_elsewhere", "append",
     [](Step& s) {
       s.spec.kv.v_in_k = true;
       s.cache.format.v_in_k = true;
       s.new_kv.v = {};
     },
     "cache.v: differs from k with v_in_k"},
    {"v_in_k_strides", "append",
     [](Step& s) {
       s.spec.kv.v_in_k = true;
       s.cache.format.v_in_k = true;
       s.new_kv.v = {};
       s.cache.v = s.cache.k;
     },
     "cache.v_strides: differ from k_strides with v_in_k"},
    {"v_in_k_scales", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerHead);
       s.spec.kv.v_in_k = true;
       s.cache.format.v_in_k = true;
       s.new_kv.v = {};
       s.cache.v = s.cache.k;
       s.cache.v_strides = s.cache.k_strides;
     },
     "cache.v_scales: differ from k_scales with v_in_k"},
    {"slot_beyond_cache", "append", [](Step& s) { s.slots[3] = 40; },
     "kv.slots: index 3 holds slot 40, not below the slots of the cache: 40"},
    {"scales_not_of_format", "append", [](Step& s) { s.cache.v_scales.data = s.slopes.data(); },
     "cache.v_scales: given, but the format has none"},
    {"scales_missing", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerTensor);
       s.cache.k_scales.data = nullptr;
     },
     "cache.k_scales: missing, the format has per-tensor"},
    {"scales_of_other_granularity", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerHead);
       s.cache.format.scales = ScaleGranularity::kPerTokenHead;
       s.cache.k_scales.strides = s.cache.v_scales.strides = {.block = 8, .head = 4, .token = 1};
     },
     "cache.format.scales: needs per-head as the spec, has per-token-head"},
    {"tensor_scale_with_strides", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerTensor);
       s.cache.k_scales.strides.head = 1;
     },
     "cache.k_scales.strides: per-tensor needs 0 for head, has: 1"},
    {"head_scale_with_strides", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerHead);
       s.cache.v_scales.strides.block = 2;
     },
     "cache.v_scales.strides: per-head needs 0 for block and token, has: 2, 0"},
    {"scales_misaligned", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerTensor);
       const auto address = reinterpret_cast<std::uintptr_t>(s.cache.k_scales.data);
       s.cache.k_scales.data = reinterpret_cast<float*>(address + 2);
     },
     "cache.k_scales: not aligned to 4 bytes: 0x*"},
    {"scale_strides_overflow", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerHead);
       s.cache.k_scales.strides.head = std::int64_t{1} << 61;
     },
     "cache.k_scales.strides: offsets exceed 64 bits, block, head and token: "
     "0, 2305843009213693952, 0"},
    {"token_scales_overlap", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerTokenHead);
       s.cache.k_scales.strides.block = 7;
     },
     "cache.k_scales.strides: scales overlap, block, head and token: 7, 4, 1"},
    {"token_scales_shared", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerTokenHead);
       s.cache.v_scales = s.cache.k_scales;
     },
     "cache.v_scales: the same memory as k_scales"},
    {"scale_is_zero", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerHead);
       s.k_scale_data[1] = 0.0F;
     },
     "cache.k_scales: head 1 has a scale that is not finite and positive: 0"},
    {"scale_is_infinite", "append",
     [](Step& s) {
       s.quantize(ScaleGranularity::kPerTensor);
       s.v_scale_data[0] = kInfinity;
     },
     "cache.v_scales: head 0 has a scale that is not finite and positive: inf"},
};

const Case kAttendCases[] = {
    {"scale", "attend", [](Step& s) { s.params.scale = kNan; }, "params.scale: not finite: nan"},
    {"softcap_negative", "attend", [](Step& s) { s.params.softcap = -1.0F; },
     "params.softcap: not finite and non-negative: -1"},
    {"softcap_undeclared", "attend", [](Step& s) { s.spec.features.softcap = false; },
     "params.softcap: the spec does not declare it: 30"},
    {"alibi_undeclared", "attend", [](Step& s) { s.spec.features.alibi = false; },
     "params.alibi_slopes: the spec does not declare them"},
    {"alibi_size", "attend", [](Step& s) { s.params.alibi_slopes.size = 2; },
     "params.alibi_slopes: needs 4 heads, has 2"},
    {"alibi_null", "attend", [](Step& s) { s.params.alibi_slopes.data = nullptr; },
     "params.alibi_slopes: null"},
    {"alibi_infinite", "attend", [](Step& s) { s.slopes[2] = kInfinity; },
     "params.alibi_slopes: head 2 is not finite: inf"},
    {"sinks_undeclared", "attend", [](Step& s) { s.spec.features.sinks = false; },
     "params.sinks: the spec does not declare them"},
    {"sinks_elsewhere", "attend", [](Step& s) { s.params.sinks.device = kElsewhere; },
     "params.sinks: on custom 1, but the backend computes on host"},
    {"sinks_nan", "attend", [](Step& s) { s.sinks[3] = kNan; },
     "params.sinks: head 3 is not a number: nan"},
    {"bias_undeclared", "attend", [](Step& s) { s.spec.features.bias = false; },
     "params.bias: the spec does not declare it"},
    {"bias_rank", "attend", [](Step& s) { s.params.bias.rank = 3; },
     "params.bias: needs rank 4, has 3"},
    {"bias_shape", "attend", [](Step& s) { s.params.bias.shape[3] = 9; },
     "params.bias: needs shape [>= 4, 4, >= 3, >= 10], has [4, 4, 3, 9]"},
    {"bias_dtype", "attend", [](Step& s) { s.params.bias.dtype = DType::kBF16; },
     "params.bias: needs f32, has bf16"},
    {"q_rows", "attend", [](Step& s) { s.q.shape[0] = 6; },
     "q: needs shape [>= 7, 4, 8], has [6, 4, 8]"},
    {"q_dtype", "attend", [](Step& s) { s.q.dtype = DType::kF16; }, "q: needs f32, has f16"},
    {"q_dim_stride", "attend", [](Step& s) { s.q.strides[2] = 0; },
     "q: needs stride 1 in the last axis, has 0"},
    {"q_null", "attend", [](Step& s) { s.q.data = nullptr; }, "q: null"},
    {"out_heads", "attend", [](Step& s) { s.output.out.shape[1] = 2; },
     "out: needs shape [>= 7, 4, 6], has [8, 2, 6]"},
    {"out_dtype", "attend", [](Step& s) { s.output.out.dtype = DType::kBF16; },
     "out: needs f32, has bf16"},
    {"out_overlaps", "attend", [](Step& s) { s.output.out.strides[1] = 5; },
     "out: elements overlap, strides: [24, 5, 1]"},
    {"out_broadcasts", "attend", [](Step& s) { s.output.out.strides[0] = 0; },
     "out: elements overlap, strides: [0, 6, 1]"},
    {"lse_in_out", "attend", [](Step& s) { s.output.lse.data = s.output.out.data; },
     "lse: overlaps out"},
    {"out_in_cache", "attend", [](Step& s) { s.output.out.data = s.cache.k; },
     "out: overlaps the cache"},
    {"lse_in_cache", "attend", [](Step& s) { s.output.lse.data = s.cache.v; },
     "lse: overlaps the cache"},
    {"lse_undeclared", "attend", [](Step& s) { s.spec.features.lse = false; },
     "lse: the spec does not declare it"},
    {"lse_rank", "attend", [](Step& s) { s.output.lse.rank = 1; }, "lse: needs rank 2, has 1"},
    {"lse_dtype", "attend", [](Step& s) { s.output.lse.dtype = DType::kF16; },
     "lse: needs f32, has f16"},
    {"lse_overlaps", "attend", [](Step& s) { s.output.lse.strides[0] = 3; },
     "lse: elements overlap, strides: [3, 1]"},
    {"block_beyond_cache", "attend", [](Step& s) { s.indices[10] = 10; },
     "kv.blocks: sequence 3, table entry 1 holds block 10, not below the blocks of the cache: 10"},
    {"ragged_row_beyond", "attend",
     [](Step& s) {
       s.use_ragged();
       s.rows[3] = 32;
     },
     "kv.blocks.rows: sequence 3 ends at row 41, more than the rows of K and V: 40"},
    {"stored_k_rows", "attend",
     [](Step& s) {
       s.attend_stores = true;
       s.new_kv.k.shape[0] = 7;
     },
     "new_kv.k: needs shape [6, 2, 8], has [7, 2, 8]"},
    {"stored_slot_beyond_cache", "attend",
     [](Step& s) {
       s.attend_stores = true;
       s.slots[0] = 99;
     },
     "kv.slots: index 0 holds slot 99, not below the slots of the cache: 40"},
    {"stored_before_bad_out", "attend",
     [](Step& s) {
       s.attend_stores = true;
       s.output.out.data = nullptr;
     },
     "out: null"},
    {"stored_v_alone", "attend",
     [](Step& s) {
       s.attend_stores = true;
       s.new_kv.k = {};
     },
     "new_kv.v: given without new_kv.k"},
};

class BadAppend : public ::testing::TestWithParam<Case> {};
TEST_P(BadAppend, IsRefused) {
  expect_refused(GetParam());
}

class BadAttend : public ::testing::TestWithParam<Case> {};
TEST_P(BadAttend, IsRefused) {
  expect_refused(GetParam());
}

std::string case_name(const ::testing::TestParamInfo<Case>& tested) {
  return tested.param.name;
}
INSTANTIATE_TEST_SUITE_P(Validate, BadAppend, ::testing::ValuesIn(kAppendCases), case_name);
INSTANTIATE_TEST_SUITE_P(Validate, BadAttend, ::testing::ValuesIn(kAttendCases), case_name);

}  // namespace
}  // namespace quire::testing
