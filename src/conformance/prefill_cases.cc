// SPDX-License-Identifier: Apache-2.0
// Many queries per sequence: whole prompts, chunks of them, encoders.
#include "conformance/case_builder.h"

namespace quire::conformance {
namespace {

using enum Suite;

// Whole prompts around the sizes of tiles and blocks, and chunks that see a past.
std::vector<SequenceShape> usual() {
  return {{1, 1}, {5, 5}, {16, 16}, {17, 17}, {33, 33}, {20, 75}, {64, 64}};
}

std::vector<SequenceShape> small() {
  return {{7, 7}, {18, 18}, {12, 40}, {3, 60}};
}

CaseBuilder prefill(const std::string& what, Suite suite = kStandard) {
  return {concat("prefill/", what), suite, usual()};
}

CaseBuilder short_prefill(const std::string& what, Suite suite = kStandard) {
  return {concat("prefill/", what), suite, small()};
}

void add_shapes(std::vector<Case>& cases) {
  prefill("basic", kSmoke).add_to(cases);
  for (const int dim : {32, 40, 72, 80, 96, 112, 120, 128, 160, 192, 256, 512}) {
    short_prefill(concat("head_dim/", dim), dim == 72 ? kSmoke : kStandard)
        .dims(dim, dim)
        .add_to(cases);
  }
  for (const auto& [head_dim, value_dim] : {std::pair{192, 128}, {64, 256}, {80, 48}}) {
    short_prefill(concat("value_dim/", head_dim, "_", value_dim))
        .dims(head_dim, value_dim)
        .add_to(cases);
  }
  short_prefill("v_in_k/576_512")
      .dims(576, 512)
      .heads(4, 1)
      .with([](Case& c) { c.spec.kv.v_in_k = true; })
      .add_to(cases);
  for (const int group : {1, 2, 3, 5, 7, 8, 16, 32}) {
    const int kv_heads = group == 1 ? 4 : group == 32 ? 1 : 2;
    short_prefill(concat("group/", group)).heads(group * kv_heads, kv_heads).add_to(cases);
  }
}

void add_lengths(std::vector<Case>& cases) {
  for (const std::int64_t size : {1, 2, 3, 8, 16, 19, 32, 64, 128, 256}) {
    CaseBuilder(concat("prefill/block_size/", size), size == 3 ? kSmoke : kStandard,
                {{size, size},
                 {size + 1, size + 1},
                 {2, size + 2},
                 {size == 1 ? 1 : size - 1, 2 * size},
                 {9, 9},
                 {size / 2 + 1, 3 * size}})
        .heads(4, 2)
        .block_size(static_cast<int>(size))
        .add_to(cases);
  }
  CaseBuilder("prefill/length/more_queries_than_keys", kSmoke,
              {{9, 4}, {5, 0}, {3, 1}, {40, 17}, {17, 16}, {2, 2}})
      .add_to(cases);
  CaseBuilder("prefill/length/more_queries_than_keys_window", kStandard,
              {{9, 4}, {5, 0}, {3, 1}, {40, 17}, {17, 16}, {2, 2}})
      .mask({.window_left = 3})
      .add_to(cases);
  CaseBuilder("prefill/length/more_queries_than_keys_chunk", kStandard,
              {{9, 4}, {5, 0}, {30, 17}, {17, 16}})
      .mask({.chunk = 6})
      .add_to(cases);
  for (const std::int64_t length : {128, 256, 512}) {
    CaseBuilder(concat("prefill/length/", length), kStandard,
                {{length - 1, length - 1}, {length + 1, length + 1}})
        .heads(2, 1)
        .add_to(cases);
  }
  CaseBuilder("prefill/length/past_2048", kStandard, {{33, 2049}, {64, 2100}, {16, 2047}})
      .heads(2, 1)
      .add_to(cases);
  CaseBuilder("prefill/length/past_4096", kFull, {{128, 4097}, {65, 4500}})
      .heads(8, 2)
      .dims(128, 128)
      .add_to(cases);
  CaseBuilder("prefill/length/2048", kFull, {{2049, 2049}}).heads(2, 1).add_to(cases);
}

void add_types(std::vector<Case>& cases) {
  for (const DType q : query_types()) {
    for (const KvType& kv : kv_types()) {
      short_prefill(concat("types/", dtype_name(q), "_", kv_type_name(kv)))
          .query(q)
          .kv(kv.dtype, kv.scales)
          .add_to(cases);
    }
    short_prefill(concat("types/", dtype_name(q), "_to_f32"))
        .query(q)
        .with([](Case& c) { c.spec.out_dtype = DType::kF32; })
        .add_to(cases);
  }
  // Long rows of bytes over many tiles of keys.
  for (const int dims : {128, 256}) {
    for (const KvType& kv : {KvType{DType::kI8, ScaleGranularity::kPerTokenHead},
                             KvType{DType::kF8E5M2, ScaleGranularity::kPerHead}}) {
      CaseBuilder(concat("prefill/types/", kv_type_name(kv), "_dims_", dims), kFull, {{40, 300}})
          .heads(2, 1)
          .dims(dims, dims)
          .kv(kv.dtype, kv.scales)
          .add_to(cases);
    }
  }
  prefill("types/f32", kSmoke).query(DType::kF32).kv(DType::kF32).add_to(cases);
  prefill("types/f16", kSmoke).query(DType::kF16).kv(DType::kF16).add_to(cases);
  prefill("types/no_lse").with([](Case& c) { c.spec.features.lse = false; }).add_to(cases);
}

void add_masks(std::vector<Case>& cases) {
  for (const NamedMask& mask : causal_masks()) {
    prefill(concat("mask/", mask.name)).mask(mask.mask).add_to(cases);
  }
  for (const NamedMask& mask : two_sided_masks()) {
    const bool smoke = std::string_view(mask.name) == "window_4_4";
    prefill(concat("encoder/", mask.name), smoke ? kSmoke : kStandard)
        .mask(mask.mask)
        .add_to(cases);
  }
  prefill("encoder/alibi", kSmoke).mask({.causal = false}).alibi().add_to(cases);
  prefill("encoder/bias").mask({.causal = false}).bias(BiasStyle::kFull).add_to(cases);
  prefill("encoder/relative_bias_f32")
      .mask({.causal = false})
      .query(DType::kF32)
      .bias(BiasStyle::kRelative)
      .add_to(cases);
  CaseBuilder("prefill/encoder/unequal", kStandard, {{9, 30}, {30, 9}, {1, 5}, {5, 1}, {4, 0}})
      .mask({.causal = false, .window_left = 6, .window_right = 3})
      .add_to(cases);
  CaseBuilder("prefill/encoder/unequal_chunk", kStandard, {{9, 30}, {30, 9}, {20, 12}, {5, 1}})
      .mask({.causal = false, .chunk = 8})
      .add_to(cases);
}

void add_features(std::vector<Case>& cases) {
  prefill("feature/softcap").softcap().add_to(cases);
  prefill("feature/alibi").alibi().add_to(cases);
  prefill("feature/sinks", kSmoke).sinks().add_to(cases);
  for (const NamedBias& bias : bias_styles()) {
    prefill(concat("feature/bias_", bias.name)).bias(bias.style).add_to(cases);
    prefill(concat("feature/bias_f16_", bias.name))
        .query(DType::kF16)
        .bias(bias.style, DType::kF16)
        .add_to(cases);
  }
  prefill("feature/bias_softcap").bias(BiasStyle::kFull).softcap(2.0F).add_to(cases);
  prefill("feature/bias_padding_rows")
      .bias(BiasStyle::kFull)
      .with([](Case& c) { c.padding_rows = 2; })
      .add_to(cases);
  prefill("feature/sinks_window").sinks().mask({.window_left = 5}).add_to(cases);
  prefill("feature/all")
      .softcap(5.0F)
      .alibi()
      .sinks()
      .bias(BiasStyle::kFull)
      .mask({.window_left = 21, .chunk = 48})
      .add_to(cases);
}

void add_data(std::vector<Case>& cases) {
  for (const DType q : query_types()) {
    const std::string type = dtype_name(q);
    prefill(concat("data/growing_", type)).query(q).kv(q).data(DataStyle::kGrowing).add_to(cases);
    prefill(concat("data/shrinking_", type))
        .query(q)
        .kv(q)
        .data(DataStyle::kShrinking)
        .add_to(cases);
    CaseBuilder(concat("prefill/data/marked_", type), kStandard,
                {{130, 130}, {40, 600}, {17, 1100}, {64, 64}})
        .query(q)
        .kv(q)
        .heads(2, 2)
        .data(DataStyle::kMarked)
        .add_to(cases);
    CaseBuilder(concat("prefill/data/marked_window_", type), kStandard,
                {{130, 130}, {40, 600}, {17, 1100}, {64, 64}})
        .query(q)
        .kv(q)
        .heads(2, 2)
        .mask({.window_left = 100})
        .data(DataStyle::kMarked)
        .add_to(cases);
    prefill(concat("data/large_", type)).query(q).kv(q).data(DataStyle::kLarge).add_to(cases);
  }
}

void add_places(std::vector<Case>& cases) {
  for (const NamedCache& place : cache_places()) {
    short_prefill(concat("cache/", place.name),
                  place.style == CacheStyle::kPreferred ? kSmoke : kStandard)
        .cache(place.style)
        .order(place.order)
        .arrival(Arrival::kAppended)
        .with([&](Case& c) { c.packing = place.packing; })
        .add_to(cases);
  }
  prefill("cache/ragged", kSmoke).cache(CacheStyle::kRagged).add_to(cases);
  prefill("cache/ragged_overlapping")
      .cache(CacheStyle::kRagged)
      .with([](Case& c) { c.shared_blocks = 3; })
      .add_to(cases);
  short_prefill("cache/ragged_i8")
      .cache(CacheStyle::kRagged)
      .kv(DType::kI8, ScaleGranularity::kPerTokenHead)
      .add_to(cases);
  prefill("cache/indexed").with([](Case& c) { c.table = TableStyle::kIndexed; }).add_to(cases);
  prefill("cache/in_order").with([](Case& c) { c.shuffled = false; }).add_to(cases);
  for (const auto& [name, style] : {std::pair{"dense", TensorStyle::kDense},
                                    {"fused_rows", TensorStyle::kFusedRows},
                                    {"head_major", TensorStyle::kHeadMajor},
                                    {"odd", TensorStyle::kOdd}}) {
    prefill(concat("tensors/", name))
        .arrival(Arrival::kAppended)
        .with([style = style](Case& c) {
          c.tensors = style;
          c.padding_rows = 1;
          c.padding_slots = true;
        })
        .add_to(cases);
  }
  prefill("arrival/fused").arrival(Arrival::kFused).add_to(cases);
}

}  // namespace

void add_prefill_cases(std::vector<Case>& cases) {
  add_shapes(cases);
  add_lengths(cases);
  add_types(cases);
  add_masks(cases);
  add_features(cases);
  add_data(cases);
  add_places(cases);
}

}  // namespace quire::conformance
