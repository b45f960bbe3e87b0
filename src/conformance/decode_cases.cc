// SPDX-License-Identifier: Apache-2.0
// One query per sequence, or a few: generation and verification.
#include "conformance/case_builder.h"

namespace quire::conformance {
namespace {

using enum Suite;

// 8 sequences x 8 heads x 64 dims: 4,096 outputs.
std::vector<SequenceShape> usual() {
  return {{1, 1}, {1, 15}, {1, 16}, {1, 17}, {1, 33}, {1, 64}, {1, 113}, {1, 200}};
}

std::vector<SequenceShape> verifying() {
  return {{2, 50}, {3, 3}, {4, 128}, {5, 129}, {8, 257}, {1, 31}, {2, 2}, {7, 16}};
}

CaseBuilder decode(const std::string& what, Suite suite = kStandard) {
  return {concat("decode/", what), suite, usual()};
}

void add_shapes(std::vector<Case>& cases) {
  decode("basic", kSmoke).add_to(cases);
  for (const int dim : {32, 40, 48, 64, 72, 80, 96, 112, 120, 128, 160, 192, 224, 256, 512}) {
    const bool smoke = dim == 128 || dim == 80;
    decode(concat("head_dim/", dim), smoke ? kSmoke : kStandard).dims(dim, dim).add_to(cases);
  }
  for (const auto& [head_dim, value_dim] :
       {std::pair{192, 128}, {64, 256}, {256, 64}, {40, 96}, {128, 192}}) {
    const bool smoke = head_dim == 192;
    decode(concat("value_dim/", head_dim, "_", value_dim), smoke ? kSmoke : kStandard)
        .dims(head_dim, value_dim)
        .add_to(cases);
  }
  for (const auto& [head_dim, value_dim] : {std::pair{576, 512}, {192, 128}, {64, 64}, {72, 40}}) {
    const bool smoke = head_dim == 576;
    decode(concat("v_in_k/", head_dim, "_", value_dim), smoke ? kSmoke : kStandard)
        .dims(head_dim, value_dim)
        .heads(smoke ? 16 : 8, 1)
        .with([](Case& c) { c.spec.kv.v_in_k = true; })
        .add_to(cases);
  }
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
    const int kv_heads = group == 1 ? 8 : group == 32 ? 1 : 2;
    decode(concat("group/", group), group == 7 || group == 1 ? kSmoke : kStandard)
        .heads(group * kv_heads, kv_heads)
        .add_to(cases);
  }
  for (const int heads : {1, 3, 5}) {
    decode(concat("kv_heads/", heads)).heads(4 * heads, heads).add_to(cases);
  }
}

void add_lengths(std::vector<Case>& cases) {
  for (const std::int64_t size : {1, 2, 3, 8, 16, 19, 32, 64, 128, 256}) {
    CaseBuilder(concat("decode/block_size/", size), size == 1 || size == 19 ? kSmoke : kStandard,
                {{1, size - 1},
                 {1, size},
                 {1, size + 1},
                 {1, 2 * size - 1},
                 {1, 2 * size},
                 {1, 2 * size + 1},
                 {1, 3 * size},
                 {1, 70}})
        .block_size(static_cast<int>(size))
        .add_to(cases);
  }
  CaseBuilder("decode/length/none", kSmoke, {}).add_to(cases);
  CaseBuilder("decode/length/zero", kSmoke, {{1, 0}, {1, 0}, {0, 0}}).add_to(cases);
  CaseBuilder("decode/length/zero_and_one", kSmoke,
              {{1, 0}, {1, 1}, {0, 5}, {1, 2}, {1, 0}, {1, 1}, {0, 0}, {1, 3}})
      .add_to(cases);
  CaseBuilder("decode/length/no_queries", kStandard, {{0, 40}, {0, 17}}).add_to(cases);
  for (const std::int64_t length : {128, 256, 512, 1024, 2048, 4096}) {
    CaseBuilder(concat("decode/length/", length), length == 512 ? kSmoke : kStandard,
                {{1, length - 1},
                 {1, length},
                 {1, length + 1},
                 {1, 1},
                 {1, length / 2 + 1},
                 {1, 3 * length / 4},
                 {1, 7},
                 {1, length}})
        .heads(8, 1)
        .add_to(cases);
  }
  CaseBuilder("decode/length/one_long", kStandard, {{1, 8193}})
      .heads(32, 2)
      .dims(128, 128)
      .add_to(cases);
  CaseBuilder("decode/length/very_long", kFull, {{1, 40000}, {1, 1}, {1, 16384}})
      .heads(16, 2)
      .dims(128, 128)
      .add_to(cases);
  CaseBuilder("decode/length/many_sequences", kStandard,
              [] {
                std::vector<SequenceShape> sequences;
                for (std::int64_t n = 0; n < 150; ++n) sequences.push_back({1, n * 7 % 61});
                return sequences;
              }())
      .add_to(cases);
}

void add_types(std::vector<Case>& cases) {
  for (const DType q : query_types()) {
    for (const KvType& kv : kv_types()) {
      const bool smoke = q == DType::kBF16 && kv.scales == ScaleGranularity::kPerTokenHead;
      decode(concat("types/", dtype_name(q), "_", kv_type_name(kv)), smoke ? kSmoke : kStandard)
          .query(q)
          .kv(kv.dtype, kv.scales)
          .add_to(cases);
    }
    decode(concat("types/", dtype_name(q), "_to_f32"))
        .query(q)
        .with([](Case& c) { c.spec.out_dtype = DType::kF32; })
        .add_to(cases);
  }
  for (const KvType& kv : kv_types()) {
    if (!is_quantized(kv.dtype)) continue;
    decode(concat("types/v_in_k_", kv_type_name(kv)))
        .dims(96, 64)
        .kv(kv.dtype, kv.scales)
        .with([](Case& c) { c.spec.kv.v_in_k = true; })
        .add_to(cases);
  }
  decode("types/no_lse", kSmoke).with([](Case& c) { c.spec.features.lse = false; }).add_to(cases);
}

void add_masks(std::vector<Case>& cases) {
  for (const NamedMask& mask : causal_masks()) {
    const bool smoke = std::string_view(mask.name) == "window_5";
    decode(concat("mask/", mask.name), smoke ? kSmoke : kStandard).mask(mask.mask).add_to(cases);
  }
  for (const NamedMask& mask : two_sided_masks()) {
    decode(concat("mask/two_sided_", mask.name)).mask(mask.mask).add_to(cases);
  }
  CaseBuilder("decode/mask/window_past_long", kStandard,
              {{1, 1025}, {1, 2049}, {1, 3}, {1, 777}, {1, 300}, {1, 129}, {1, 128}, {1, 127}})
      .mask({.window_left = 127})
      .add_to(cases);
  decode("mask/window_huge").mask({.window_left = std::int64_t{1} << 40}).add_to(cases);
}

void add_features(std::vector<Case>& cases) {
  decode("feature/softcap", kSmoke).softcap().add_to(cases);
  decode("feature/softcap_small").softcap(0.5F).data(DataStyle::kLarge).add_to(cases);
  decode("feature/alibi", kSmoke).alibi().add_to(cases);
  decode("feature/sinks", kSmoke).sinks().add_to(cases);
  for (const NamedBias& bias : bias_styles()) {
    decode(concat("feature/bias_", bias.name)).bias(bias.style).add_to(cases);
    decode(concat("feature/bias_bf16_", bias.name)).bias(bias.style, DType::kBF16).add_to(cases);
  }
  decode("feature/bias_softcap", kSmoke).bias(BiasStyle::kFull).softcap(2.0F).add_to(cases);
  decode("feature/alibi_softcap").alibi().softcap(2.0F).add_to(cases);
  decode("feature/alibi_window").alibi().mask({.window_left = 20}).add_to(cases);
  decode("feature/sinks_window").sinks().mask({.window_left = 3}).add_to(cases);
  decode("feature/sinks_no_lse")
      .sinks()
      .with([](Case& c) { c.spec.features.lse = false; })
      .add_to(cases);
  decode("feature/all", kSmoke)
      .softcap(5.0F)
      .alibi()
      .sinks()
      .bias(BiasStyle::kFull)
      .mask({.window_left = 50, .chunk = 96})
      .add_to(cases);
  decode("feature/declared_unused")
      .with([](Case& c) {
        c.spec.features = {.softcap = true,
                           .alibi = false,
                           .sinks = false,
                           .bias = true,
                           .tree_mask = true,
                           .lse = true};
        c.softcap = 0.0F;
      })
      .add_to(cases);
}

void add_data(std::vector<Case>& cases) {
  for (const DType q : query_types()) {
    const std::string type = dtype_name(q);
    decode(concat("data/growing_", type), q == DType::kBF16 ? kSmoke : kStandard)
        .query(q)
        .kv(q)
        .data(DataStyle::kGrowing)
        .add_to(cases);
    decode(concat("data/shrinking_", type))
        .query(q)
        .kv(q)
        .data(DataStyle::kShrinking)
        .add_to(cases);
    decode(concat("data/large_", type)).query(q).kv(q).data(DataStyle::kLarge).add_to(cases);
  }
  CaseBuilder("decode/data/growing_long", kStandard, {{1, 2500}, {1, 1025}, {1, 700}, {1, 64}})
      .data(DataStyle::kGrowing)
      .dims(128, 128)
      .add_to(cases);
  for (const std::int64_t length : {130, 700, 1100, 2200, 4500}) {
    for (const DType q : query_types()) {
      const bool smoke = length == 1100 && q == DType::kBF16;
      CaseBuilder(concat("decode/data/marked_", dtype_name(q), "_", length),
                  smoke ? kSmoke : kStandard, {{1, length}, {1, length + 1}, {1, length / 2}})
          .query(q)
          .kv(q)
          .heads(4, 2)
          .dims(64, 128)
          .data(DataStyle::kMarked)
          .add_to(cases);
    }
  }
  CaseBuilder("decode/data/marked_window", kStandard, {{1, 4500}, {1, 900}, {1, 130}})
      .heads(8, 2)
      .mask({.window_left = 700})
      .data(DataStyle::kMarked)
      .add_to(cases);
  CaseBuilder("decode/data/marked_chunk", kStandard, {{1, 4500}, {1, 900}, {2, 130}})
      .heads(8, 2)
      .mask({.chunk = 800})
      .data(DataStyle::kMarked)
      .add_to(cases);
  decode("data/scale_large").with([](Case& c) { c.scale = 0.9F; }).add_to(cases);
}

void add_places(std::vector<Case>& cases) {
  for (const NamedCache& place : cache_places()) {
    const bool smoke = place.style == CacheStyle::kPreferred;
    decode(concat("cache/", place.name), smoke ? kSmoke : kStandard)
        .cache(place.style)
        .order(place.order)
        .with([&](Case& c) { c.packing = place.packing; })
        .add_to(cases);
  }
  decode("cache/ragged", kSmoke).cache(CacheStyle::kRagged).add_to(cases);
  decode("cache/ragged_overlapping")
      .cache(CacheStyle::kRagged)
      .with([](Case& c) { c.shared_blocks = 5; })
      .add_to(cases);
  decode("cache/indexed", kSmoke)
      .with([](Case& c) { c.table = TableStyle::kIndexed; })
      .add_to(cases);
  decode("cache/in_order").with([](Case& c) { c.shuffled = false; }).add_to(cases);
  decode("cache/shared", kSmoke).with([](Case& c) { c.shared_blocks = 2; }).add_to(cases);
  decode("cache/large_offsets", kFull)
      .heads(8, 8)
      .dims(128, 128)
      .with([](Case& c) { c.first_block = 140000; })
      .add_to(cases);
  decode("cache/large_offsets_f8", kFull)
      .heads(8, 8)
      .dims(128, 128)
      .kv(DType::kF8E4M3, ScaleGranularity::kPerTokenHead)
      .with([](Case& c) { c.first_block = 140000; })
      .add_to(cases);
}

void add_tensors(std::vector<Case>& cases) {
  for (const auto& [name, style] : {std::pair{"fused_rows", TensorStyle::kFusedRows},
                                    {"head_major", TensorStyle::kHeadMajor},
                                    {"odd", TensorStyle::kOdd}}) {
    decode(concat("tensors/", name), style == TensorStyle::kFusedRows ? kSmoke : kStandard)
        .arrival(Arrival::kAppended)
        .with([style = style](Case& c) { c.tensors = style; })
        .add_to(cases);
  }
  decode("tensors/padding_rows", kSmoke).with([](Case& c) { c.padding_rows = 3; }).add_to(cases);
  decode("arrival/appended", kSmoke).arrival(Arrival::kAppended).add_to(cases);
  decode("arrival/fused", kSmoke).arrival(Arrival::kFused).add_to(cases);
  for (const DType dtype : query_types()) {
    decode(concat("arrival/appended_from_", dtype_name(dtype)))
        .arrival(Arrival::kAppended, dtype)
        .kv(DType::kF8E4M3, ScaleGranularity::kPerTokenHead)
        .with([](Case& c) { c.padding_slots = true; })
        .add_to(cases);
  }
}

void add_verification(std::vector<Case>& cases) {
  const auto verify = [](const std::string& what, Suite suite = kStandard) {
    return CaseBuilder(concat("decode/verify/", what), suite, verifying());
  };
  verify("basic", kSmoke).add_to(cases);
  verify("window").mask({.window_left = 6}).add_to(cases);
  verify("chunk").mask({.chunk = 12}).add_to(cases);
  verify("alibi").alibi().add_to(cases);
  verify("bias").bias(BiasStyle::kFull).add_to(cases);
  verify("appended").arrival(Arrival::kAppended).add_to(cases);
  verify("fused").arrival(Arrival::kFused).add_to(cases);
  verify("group_16").heads(32, 2).add_to(cases);
  verify("mla")
      .heads(16, 1)
      .dims(576, 512)
      .with([](Case& c) { c.spec.kv.v_in_k = true; })
      .add_to(cases);
}

}  // namespace

void add_decode_cases(std::vector<Case>& cases) {
  add_shapes(cases);
  add_lengths(cases);
  add_types(cases);
  add_masks(cases);
  add_features(cases);
  add_data(cases);
  add_places(cases);
  add_tensors(cases);
  add_verification(cases);
}

}  // namespace quire::conformance
