// SPDX-License-Identifier: Apache-2.0
// What is refused before and by prepare: specs, bounds, workspaces and the metadata of a batch.
// validate_call_test.cc continues with the calls that follow.
#include "attention/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attention/validate_fixture.h"

namespace quire::testing {
namespace {

constexpr Device kElsewhere{DeviceKind::kCustom, 1};

const Case kSpecCases[] = {
    {"no_heads", "supports", [](Step& s) { s.spec.num_q_heads = 0; },
     "spec.num_q_heads: not in [1, 65536]: 0"},
    {"negative_kv_heads", "supports", [](Step& s) { s.spec.num_kv_heads = -2; },
     "spec.num_kv_heads: not in [1, 65536]: -2"},
    {"heads_do_not_divide", "supports", [](Step& s) { s.spec.num_kv_heads = 3; },
     "spec.num_kv_heads: does not divide num_q_heads 4: 3"},
    {"head_dim_too_large", "supports", [](Step& s) { s.spec.head_dim = 4097; },
     "spec.head_dim: not in [1, 4096]: 4097"},
    {"no_value_dim", "supports", [](Step& s) { s.spec.value_dim = 0; },
     "spec.value_dim: not in [1, 4096]: 0"},
    {"eight_bit_queries", "supports", [](Step& s) { s.spec.q_dtype = DType::kF8E4M3; },
     "spec.q_dtype: not f32, f16 or bf16: f8e4m3"},
    {"unknown_q_dtype", "supports", [](Step& s) { s.spec.q_dtype = static_cast<DType>(77); },
     "spec.q_dtype: not f32, f16 or bf16: dtype 77"},
    {"out_dtype_of_nobody", "supports",
     [](Step& s) {
       s.spec.q_dtype = DType::kBF16;
       s.spec.out_dtype = DType::kF16;
     },
     "spec.out_dtype: neither f32 nor the q_dtype bf16: f16"},
    {"unknown_kv_dtype", "supports", [](Step& s) { s.spec.kv.dtype = static_cast<DType>(6); },
     "spec.kv.dtype: unknown: 6"},
    {"no_block_size", "supports", [](Step& s) { s.spec.kv.block_size = 0; },
     "spec.kv.block_size: not positive: 0"},
    {"unknown_granularity", "supports",
     [](Step& s) { s.spec.kv.scales = static_cast<ScaleGranularity>(4); },
     "spec.kv.scales: unknown: 4"},
    {"scales_without_need", "supports",
     [](Step& s) { s.spec.kv.scales = ScaleGranularity::kPerHead; },
     "spec.kv.scales: dtype f32 takes none: per-head"},
    {"eight_bit_without_scales", "supports", [](Step& s) { s.spec.kv.dtype = DType::kI8; },
     "spec.kv.scales: dtype i8 needs them: none"},
    {"v_larger_than_its_k", "supports",
     [](Step& s) {
       s.spec.kv.v_in_k = true;
       s.spec.value_dim = 9;
     },
     "spec.kv.v_in_k: value_dim exceeds head_dim 8: 9"},
    {"unknown_layout", "supports", [](Step& s) { s.spec.kv.layout = static_cast<KvLayoutId>(200); },
     "spec.kv.layout: unknown: 200"},
    {"tiles_do_not_fit", "supports", [](Step& s) { s.spec.kv.layout = KvLayoutId::kPairTiled; },
     "spec.kv.layout: pair-tiled does not fit block_size, head_dim and value_dim: 4, 8, 6"},
    {"window_below_unlimited", "supports", [](Step& s) { s.spec.mask.window_left = -2; },
     "spec.mask.window_left: not in [-1, 2^62): -2"},
    {"window_overflows", "supports",
     [](Step& s) { s.spec.mask.window_right = std::int64_t{1} << 62; },
     "spec.mask.window_right: not in [-1, 2^62): 4611686018427387904"},
    {"negative_chunk", "supports", [](Step& s) { s.spec.mask.chunk = -1; },
     "spec.mask.chunk: not in [0, 2^62): -1"},
    {"unknown_alignment", "supports", [](Step& s) { s.spec.alignment = static_cast<Alignment>(2); },
     "spec.alignment: unknown: 2"},
    {"causal_cross", "supports",
     [](Step& s) {
       s.use_cross();
       s.spec.mask.causal = true;
     },
     "spec.mask.causal: unaligned attention has no positions"},
    {"windowed_cross", "supports",
     [](Step& s) {
       s.use_cross();
       s.spec.mask.window_left = 7;
     },
     "spec.mask.window_left: unaligned attention has no positions"},
    {"chunked_cross", "supports",
     [](Step& s) {
       s.use_cross();
       s.spec.mask.chunk = 7;
     },
     "spec.mask.chunk: unaligned attention has no positions"},
    {"alibi_cross", "supports",
     [](Step& s) {
       s.use_cross();
       s.spec.features.alibi = true;
     },
     "spec.features.alibi: unaligned attention has no positions"},
    {"tree_cross", "supports",
     [](Step& s) {
       s.use_cross();
       s.spec.features.tree_mask = true;
     },
     "spec.features.tree_mask: unaligned attention has no positions"},
    {"tree_without_causality", "supports", [](Step& s) { s.spec.mask.causal = false; },
     "spec.features.tree_mask: needs mask.causal"},
    {"negative_bound", "make_prepared", [](Step& s) { s.bounds.max_sequences = -1; },
     "bounds.max_sequences: not in [0, 2147483647]: -1"},
    {"tokens_beyond_32_bits", "make_prepared",
     [](Step& s) { s.bounds.max_tokens = std::int64_t{1} << 31; },
     "bounds.max_tokens: not in [0, 2147483647]: 2147483648"},
    {"keys_beyond_32_bits", "make_prepared",
     [](Step& s) { s.bounds.max_kv_len = std::int64_t{1} << 31; },
     "bounds.max_kv_len: not in [0, 2147483647]: 2147483648"},
    {"total_negative", "make_prepared", [](Step& s) { s.bounds.max_total_kv_len = -1; },
     "bounds.max_total_kv_len: negative: -1"},
    {"total_below_one", "make_prepared", [](Step& s) { s.bounds.max_total_kv_len = 63; },
     "bounds.max_total_kv_len: less than max_kv_len 64: 63"},
    {"total_overflows", "make_prepared",
     [](Step& s) { s.bounds.max_total_kv_len = std::int64_t{1} << 60; },
     "bounds.max_total_kv_len: f32 values of 4 heads do not fit 64-bit sizes: "
     "1152921504606846976"},
    {"workspace_too_small", "make_prepared", [](Step& s) { s.missing_workspace_bytes = 1; },
     "workspace.host: needs 228 bytes, has 227"},
};

const Case kBatchCases[] = {
    {"too_many_sequences", "prepare", [](Step& s) { s.bounds.max_sequences = 3; },
     "queries.begins: 4 sequences, more than max_sequences 3"},
    {"ends_missing", "prepare", [](Step& s) { s.batch.queries.ends.size = 3; },
     "queries.ends: needs 4 ends, has 3"},
    {"lens_missing", "prepare", [](Step& s) { s.batch.kv.lens.size = 2; },
     "kv.lens: needs 4 lengths, has 2"},
    {"negative_size", "prepare", [](Step& s) { s.batch.kv.slots.size = -1; },
     "kv.slots: negative size: -1"},
    {"null_array", "prepare", [](Step& s) { s.batch.kv.lens.data = nullptr; },
     "kv.lens: null, size 4"},
    {"misaligned_array", "prepare",
     [](Step& s) {
       const auto address = reinterpret_cast<std::uintptr_t>(s.slots.data());
       s.batch.kv.slots.data = reinterpret_cast<const std::int64_t*>(address + 4);
     },
     "kv.slots: not aligned to 8 bytes: 0x*"},
    {"two_devices", "prepare", [](Step& s) { s.batch.kv.lens.device = kElsewhere; },
     "kv.lens: on custom 1, but queries.begins on host"},
    {"negative_begin", "prepare", [](Step& s) { s.begins[0] = -1; },
     "queries.begins: sequence 0 begins at a negative row: -1"},
    {"overlapping_rows", "prepare", [](Step& s) { s.begins[1] = 2; },
     "queries.begins: sequence 1 begins at row 2, before the end of the previous one at 3"},
    {"end_before_begin", "prepare", [](Step& s) { s.ends[3] = 4; },
     "queries.ends: sequence 3 ends at row 4, before its begin at 5"},
    {"too_many_rows", "prepare", [](Step& s) { s.bounds.max_tokens = 6; },
     "queries.ends: sequence 3 ends at row 7, more than max_tokens 6"},
    {"negative_length", "prepare", [](Step& s) { s.lens[2] = -1; },
     "kv.lens: sequence 2 has a negative length: -1"},
    {"too_many_keys", "prepare", [](Step& s) { s.lens[2] = 65; },
     "kv.lens: sequence 2 has 65 keys, more than max_kv_len 64"},
    {"too_many_keys_in_all", "prepare",
     [](Step& s) {
       s.bounds.max_kv_len = 10;
       s.bounds.max_total_kv_len = 26;
     },
     "kv.lens: 27 keys in all, more than max_total_kv_len 26"},
    {"unknown_table_kind", "prepare",
     [](Step& s) { s.batch.kv.blocks.kind = static_cast<BlockTables::Kind>(3); },
     "kv.blocks.kind: unknown: 3"},
    {"negative_row_stride", "prepare", [](Step& s) { s.batch.kv.blocks.row_stride = -1; },
     "kv.blocks.row_stride: negative: -1"},
    {"table_too_small", "prepare", [](Step& s) { s.batch.kv.blocks.indices.size = 11; },
     "kv.blocks.indices: too few for 4 rows of 3: 11"},
    {"rows_too_short", "prepare", [](Step& s) { s.batch.kv.blocks.row_stride = 2; },
     "kv.blocks: sequence 1 needs 3 table entries for 10 keys, has 2"},
    {"negative_block", "prepare", [](Step& s) { s.indices[4] = -7; },
     "kv.blocks: sequence 1, table entry 1: negative block: -7"},
    {"begins_missing", "prepare",
     [](Step& s) {
       s.use_indexed();
       s.batch.kv.blocks.begins.size = 4;
     },
     "kv.blocks.begins: needs 5 offsets, has 4"},
    {"negative_table_begin", "prepare",
     [](Step& s) {
       s.use_indexed();
       s.index_begins[0] = -1;
     },
     "kv.blocks.begins: negative offset at index 0: -1"},
    {"table_begins_fall", "prepare",
     [](Step& s) {
       s.use_indexed();
       s.index_begins[3] = 5;
     },
     "kv.blocks.begins: sequence 2 ends at 5, before its begin at 6"},
    {"table_ends_outside", "prepare",
     [](Step& s) {
       s.use_indexed();
       s.index_begins[4] = 13;
     },
     "kv.blocks.indices: needs 13 entries, has 12"},
    {"indexed_row_too_short", "prepare",
     [](Step& s) {
       s.use_indexed();
       s.index_begins[2] = 5;
     },
     "kv.blocks: sequence 1 needs 3 table entries for 10 keys, has 2"},
    {"ragged_with_blocks", "prepare",
     [](Step& s) {
       s.use_ragged();
       s.spec.kv.block_size = 4;
     },
     "kv.blocks.rows: ragged K and V need spec.kv.block_size 1: 4"},
    {"ragged_rows_missing", "prepare",
     [](Step& s) {
       s.use_ragged();
       s.batch.kv.blocks.rows.size = 5;
     },
     "kv.blocks.rows: needs 4 rows, has 5"},
    {"negative_ragged_row", "prepare",
     [](Step& s) {
       s.use_ragged();
       s.rows[3] = -1;
     },
     "kv.blocks.rows: sequence 3 begins at a negative row: -1"},
    {"ragged_row_overflows", "prepare",
     [](Step& s) {
       s.use_ragged();
       s.rows[1] = std::numeric_limits<std::int64_t>::max() - 9;
     },
     "kv.blocks.rows: sequence 1 with 10 keys does not fit 64-bit rows: 9223372036854775798"},
    {"too_many_slots", "prepare",
     [](Step& s) {
       s.slots.assign(17, -1);
       s.batch.kv.slots = s.slots;
     },
     "kv.slots: 17 slots, more than max_tokens 16"},
    {"slot_below_none", "prepare", [](Step& s) { s.slots[2] = -2; },
     "kv.slots: index 2 holds a slot below -1: -2"},
    {"slot_written_twice", "prepare", [](Step& s) { s.slots[5] = 21; },
     "kv.slots: indices 1 and 5 hold the same slot: 21"},
    {"undeclared_tree", "prepare", [](Step& s) { s.spec.features.tree_mask = false; },
     "tree_mask.begins: the spec does not declare a tree mask"},
    {"tree_begins_missing", "prepare", [](Step& s) { s.batch.tree_mask.begins.size = 3; },
     "tree_mask.begins: needs 4 offsets, has 3"},
    {"tree_bits_alone", "prepare", [](Step& s) { s.batch.tree_mask.begins = {}; },
     "tree_mask.bits: given without tree_mask.begins, size 2"},
    {"tree_depths_alone", "prepare",
     [](Step& s) {
       s.batch.tree_mask.begins = {};
       s.batch.tree_mask.bits = {};
     },
     "tree_mask.depths: given without tree_mask.begins, size 7"},
    {"tree_offset_below_none", "prepare", [](Step& s) { s.tree_begins[0] = -2; },
     "tree_mask.begins: sequence 0 has an offset below -1: -2"},
    {"tree_bits_too_few", "prepare", [](Step& s) { s.tree_begins[3] = 1; },
     "tree_mask.bits: sequence 3 needs 2 bytes at offset 1, has 2"},
    {"tree_larger_than_keys", "prepare", [](Step& s) { s.lens[3] = 1; },
     "tree_mask.begins: sequence 3 has 2 queries, more than its keys: 1"},
    {"tree_depths_too_few", "prepare", [](Step& s) { s.batch.tree_mask.depths.size = 6; },
     "tree_mask.depths: needs 7 rows, has 6"},
    {"tree_depth_out_of_range", "prepare", [](Step& s) { s.tree_depths[6] = 2; },
     "tree_mask.depths: sequence 3, query 1: not in [0, 2): 2"},
    {"stream_on_host", "prepare", [](Step& s) { s.stream.handle = &s; },
     "stream: the host takes only the default one"},
};

class BadSpec : public ::testing::TestWithParam<Case> {};
TEST_P(BadSpec, IsRefused) {
  expect_refused(GetParam());
}

class BadBatch : public ::testing::TestWithParam<Case> {};
TEST_P(BadBatch, IsRefused) {
  expect_refused(GetParam());
}

std::string case_name(const ::testing::TestParamInfo<Case>& tested) {
  return tested.param.name;
}
INSTANTIATE_TEST_SUITE_P(Validate, BadSpec, ::testing::ValuesIn(kSpecCases), case_name);
INSTANTIATE_TEST_SUITE_P(Validate, BadBatch, ::testing::ValuesIn(kBatchCases), case_name);

}  // namespace
}  // namespace quire::testing
