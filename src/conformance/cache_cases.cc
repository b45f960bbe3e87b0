// SPDX-License-Identifier: Apache-2.0
// What the cache holds: stored bits, scales, copies, conversions.
#include "conformance/case_builder.h"

namespace quire::conformance {
namespace {

using enum Suite;

// Every slot of a block, of several blocks, and ends inside one.
std::vector<SequenceShape> usual() {
  return {{40, 40}, {1, 17}, {3, 35}, {0, 20}, {1, 64}, {9, 9}};
}

CaseBuilder append(const std::string& what, Suite suite = kStandard) {
  return std::move(CaseBuilder(concat("cache/append/", what), suite, usual())
                       .check(Check::kAppend)
                       .data(DataStyle::kSpecial)
                       .arrival(Arrival::kAppended, DType::kF32)
                       .with([](Case& c) { c.padding_slots = true; }));
}

void add_append_types(std::vector<Case>& cases) {
  for (const KvType& kv : kv_types()) {
    for (const DType source : query_types()) {
      const bool smoke = source == DType::kF32 && kv.scales != ScaleGranularity::kPerTensor;
      append(concat(kv_type_name(kv), "_from_", dtype_name(source)), smoke ? kSmoke : kStandard)
          .kv(kv.dtype, kv.scales)
          .arrival(Arrival::kAppended, source)
          .add_to(cases);
    }
    append(concat("normal_", kv_type_name(kv)))
        .kv(kv.dtype, kv.scales)
        .data(DataStyle::kNormal)
        .add_to(cases);
    append(concat("preferred_", kv_type_name(kv)))
        .kv(kv.dtype, kv.scales)
        .cache(CacheStyle::kPreferred)
        .add_to(cases);
    append(concat("v_in_k_", kv_type_name(kv)))
        .kv(kv.dtype, kv.scales)
        .dims(72, 40)
        .with([](Case& c) { c.spec.kv.v_in_k = true; })
        .add_to(cases);
  }
}

void add_append_places(std::vector<Case>& cases) {
  for (const NamedCache& place : cache_places()) {
    for (const KvType& kv : {KvType{DType::kBF16, ScaleGranularity::kNone},
                             KvType{DType::kI8, ScaleGranularity::kPerTokenHead}}) {
      append(concat("place/", place.name, "_", kv_type_name(kv)))
          .kv(kv.dtype, kv.scales)
          .cache(place.style)
          .order(place.order)
          .with([&](Case& c) { c.packing = place.packing; })
          .add_to(cases);
    }
  }
  for (const int size : {1, 2, 3, 8, 19, 32, 64, 128, 256}) {
    append(concat("block_size/", size))
        .block_size(size)
        .kv(DType::kF8E4M3, ScaleGranularity::kPerTokenHead)
        .add_to(cases);
  }
  for (const auto& [head_dim, value_dim] :
       {std::pair{1, 1}, {3, 5}, {40, 72}, {192, 128}, {64, 256}, {256, 512}}) {
    append(concat("dims/", head_dim, "_", value_dim))
        .dims(head_dim, value_dim)
        .kv(DType::kF8E5M2, ScaleGranularity::kPerTokenHead)
        .add_to(cases);
  }
  for (const auto& [name, style] : {std::pair{"fused_rows", TensorStyle::kFusedRows},
                                    {"head_major", TensorStyle::kHeadMajor},
                                    {"odd", TensorStyle::kOdd}}) {
    append(concat("tensors/", name))
        .kv(DType::kF8E4M3, ScaleGranularity::kPerHead)
        .with([style = style](Case& c) { c.tensors = style; })
        .add_to(cases);
  }
  CaseBuilder("cache/append/all_padding", kStandard, {{0, 20}, {0, 9}})
      .check(Check::kAppend)
      .arrival(Arrival::kAppended)
      .with([](Case& c) { c.padding_slots = true; })
      .add_to(cases);
}

void add_copies(std::vector<Case>& cases) {
  const auto copy = [](const std::string& what, Check check, Suite suite = kStandard) {
    return std::move(CaseBuilder(concat("cache/", what), suite, {}).check(check));
  };
  struct Kind {
    const char* name;
    Check check;
  };
  for (const Kind& kind :
       {Kind{"copy_blocks", Check::kCopyBlocks}, Kind{"copy_region", Check::kCopyRegion},
        Kind{"export", Check::kExport}}) {
    for (const NamedCache& place : cache_places()) {
      const bool smoke = place.style == CacheStyle::kPreferred;
      copy(concat(kind.name, "/", place.name), kind.check, smoke ? kSmoke : kStandard)
          .cache(place.style)
          .order(place.order)
          .with([&](Case& c) { c.packing = place.packing; })
          .add_to(cases);
      copy(concat(kind.name, "/", place.name, "_i8_token_head"), kind.check)
          .kv(DType::kI8, ScaleGranularity::kPerTokenHead)
          .cache(place.style)
          .order(place.order)
          .with([&](Case& c) { c.packing = place.packing; })
          .add_to(cases);
    }
    for (const KvType& kv : kv_types()) {
      copy(concat(kind.name, "/types_", kv_type_name(kv)), kind.check)
          .kv(kv.dtype, kv.scales)
          .cache(CacheStyle::kPreferred)
          .add_to(cases);
    }
    for (const int size : {1, 3, 19, 64}) {
      copy(concat(kind.name, "/block_size_", size), kind.check)
          .block_size(size)
          .kv(DType::kF8E4M3, ScaleGranularity::kPerTokenHead)
          .cache(CacheStyle::kPreferred)
          .add_to(cases);
    }
    copy(concat(kind.name, "/v_in_k"), kind.check)
        .dims(96, 64)
        .with([](Case& c) { c.spec.kv.v_in_k = true; })
        .add_to(cases);
    copy(concat(kind.name, "/dims_40_72"), kind.check).dims(40, 72).add_to(cases);
  }
}

}  // namespace

void add_cache_cases(std::vector<Case>& cases) {
  add_append_types(cases);
  add_append_places(cases);
  add_copies(cases);
}

}  // namespace quire::conformance
