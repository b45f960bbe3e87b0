// SPDX-License-Identifier: Apache-2.0
// Storing and attending in one call, blocks of 32 in the backend's own layout, no lse: what is left
// where an operation of a library does both. Every new token is a query and lies behind the keys
// before it.
#include "conformance/case_builder.h"

namespace quire::conformance {
namespace {

using enum Suite;

CaseBuilder one_call(const std::string& name, Suite suite, std::vector<SequenceShape> sequences) {
  return std::move(CaseBuilder(name, suite, std::move(sequences))
                       .block_size(32)
                       .cache(CacheStyle::kPreferred)
                       .arrival(Arrival::kFused)
                       .with([](Case& c) { c.spec.features.lse = false; }));
}

CaseBuilder decode(const std::string& what, Suite suite = kStandard) {
  return one_call(concat("decode/one_call/", what), suite,
                  {{1, 1}, {1, 31}, {1, 32}, {1, 33}, {1, 64}, {1, 65}, {1, 113}, {1, 200}});
}

// Whole prompts, and chunks of them that see a past.
CaseBuilder prefill(const std::string& what, Suite suite = kStandard) {
  return one_call(concat("prefill/one_call/", what), suite,
                  {{1, 1}, {5, 5}, {32, 32}, {33, 33}, {20, 75}, {31, 64}, {64, 64}});
}

CaseBuilder mixed(const std::string& what, Suite suite = kStandard) {
  return one_call(concat("mixed/one_call/", what), suite,
                  {{1, 40}, {7, 70}, {0, 20}, {20, 20}, {3, 129}, {1, 257}, {33, 50}, {1, 32}});
}

struct Family {
  CaseBuilder (*make)(const std::string& what, Suite suite);
  std::vector<SequenceShape> long_sequences;
};

std::vector<Family> families() {
  return {{decode, {{1, 700}, {1, 1100}, {1, 2049}, {1, 64}}},
          {prefill, {{130, 130}, {40, 600}, {17, 1100}, {64, 64}}},
          {mixed, {{1, 900}, {65, 300}, {1, 33}, {9, 1030}}}};
}

// What a library of this kind stores.
const std::vector<KvType>& stored_types() {
  using enum ScaleGranularity;
  static const std::vector<KvType> types = {{DType::kF32, kNone},
                                            {DType::kF16, kNone},
                                            {DType::kBF16, kNone},
                                            {DType::kI8, kPerTokenHead}};
  return types;
}

void add_types(const Family& family, std::vector<Case>& cases) {
  family.make("basic", kSmoke).add_to(cases);
  for (const KvType& kv : stored_types()) {
    for (const DType q : query_types()) {
      const bool smoke = q == kv.dtype || kv.dtype == DType::kI8;
      family
          .make(concat("types/", dtype_name(q), "_", kv_type_name(kv)),
                smoke && q != DType::kF16 ? kSmoke : kStandard)
          .query(q)
          .kv(kv.dtype, kv.scales)
          .add_to(cases);
    }
    family.make(concat("new_kv_f32/", kv_type_name(kv)), kStandard)
        .kv(kv.dtype, kv.scales)
        .arrival(Arrival::kFused, DType::kF32)
        .add_to(cases);
  }
  family.make("types/to_f32", kStandard)
      .with([](Case& c) { c.spec.out_dtype = DType::kF32; })
      .add_to(cases);
}

void add_shapes(const Family& family, std::vector<Case>& cases) {
  for (const int dim : {32, 80, 96, 128, 256}) {
    family.make(concat("head_dim/", dim), dim == 128 ? kSmoke : kStandard)
        .dims(dim, dim)
        .add_to(cases);
  }
  family.make("value_dim/192_128", kStandard).dims(192, 128).add_to(cases);
  for (const auto& [q_heads, kv_heads] : {std::pair{4, 4}, {14, 2}, {8, 1}, {32, 2}}) {
    family.make(concat("heads/", q_heads, "_", kv_heads), kStandard)
        .heads(q_heads, kv_heads)
        .add_to(cases);
  }
}

// Of the block in which a window begins.
void finite_garbage(Case& c) {
  c.finite_garbage = true;
}

void add_features(const Family& family, std::vector<Case>& cases) {
  for (const std::int64_t left : {0, 1, 5, 31, 32, 40}) {
    family.make(concat("window/", left), left == 5 ? kSmoke : kStandard)
        .mask({.window_left = left})
        .with(finite_garbage)
        .add_to(cases);
  }
  family.make("window/f32", kStandard)
      .query(DType::kF32)
      .kv(DType::kF32)
      .mask({.window_left = 17})
      .with(finite_garbage)
      .add_to(cases);
  family.make("window/i8", kStandard)
      .kv(DType::kI8, ScaleGranularity::kPerTokenHead)
      .mask({.window_left = 17})
      .with(finite_garbage)
      .add_to(cases);
  family.make("alibi", kSmoke).alibi().add_to(cases);
  family.make("alibi_f32", kStandard).query(DType::kF32).kv(DType::kF32).alibi().add_to(cases);
  family.make("sinks", kSmoke).sinks().add_to(cases);
  family.make("sinks_f32", kStandard).query(DType::kF32).kv(DType::kF32).sinks().add_to(cases);
  family.make("sinks_window", kStandard)
      .sinks()
      .mask({.window_left = 9})
      .with(finite_garbage)
      .add_to(cases);
  family.make("scale", kStandard).with([](Case& c) { c.scale = 0.9F; }).add_to(cases);
}

void add_data(const Family& family, std::vector<Case>& cases) {
  struct Style {
    const char* name;
    DataStyle style;
  };
  for (const Style& style :
       {Style{"growing", DataStyle::kGrowing}, Style{"shrinking", DataStyle::kShrinking},
        Style{"large", DataStyle::kLarge}, Style{"marked", DataStyle::kMarked}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      family.make(concat("data/", style.name, "_", dtype_name(dtype)), kStandard)
          .query(dtype)
          .kv(dtype)
          .data(style.style)
          .with([&](Case& c) { c.sequences = family.long_sequences; })
          .add_to(cases);
    }
  }
}

void add_places(const Family& family, std::vector<Case>& cases) {
  family.make("indexed", kStandard)
      .with([](Case& c) { c.table = TableStyle::kIndexed; })
      .add_to(cases);
  family.make("shared_prefix", kStandard).with([](Case& c) { c.shared_blocks = 1; }).add_to(cases);
  for (const auto& [name, style] : {std::pair{"fused_rows", TensorStyle::kFusedRows},
                                    {"head_major", TensorStyle::kHeadMajor},
                                    {"odd", TensorStyle::kOdd}}) {
    family.make(concat("tensors/", name), style == TensorStyle::kFusedRows ? kSmoke : kStandard)
        .with([style = style](Case& c) { c.tensors = style; })
        .add_to(cases);
  }
  family.make("padding", kSmoke)
      .with([](Case& c) {
        c.padding_rows = 2;
        c.padding_slots = true;
      })
      .add_to(cases);
}

void add_caches(std::vector<Case>& cases) {
  for (const KvType& kv : stored_types()) {
    for (const auto& [name, check] :
         {std::pair{"copy_blocks", Check::kCopyBlocks}, {"export", Check::kExport}}) {
      one_call(concat("cache/one_call/", name, "_", kv_type_name(kv)), kStandard, {})
          .check(check)
          .kv(kv.dtype, kv.scales)
          .add_to(cases);
    }
    one_call(concat("cache/one_call/store_", kv_type_name(kv)), kStandard,
             {{40, 40}, {1, 17}, {3, 35}, {1, 64}, {9, 9}})
        .check(Check::kAppend)
        .kv(kv.dtype, kv.scales)
        .arrival(Arrival::kFused, DType::kF32)
        .add_to(cases);
  }
}

}  // namespace

void add_one_call_cases(std::vector<Case>& cases) {
  for (const Family& family : families()) {
    add_types(family, cases);
    add_shapes(family, cases);
    add_features(family, cases);
    add_data(family, cases);
    add_places(family, cases);
  }
  add_caches(cases);
}

}  // namespace quire::conformance
