// SPDX-License-Identifier: Apache-2.0
// Partial results: merged from drawn ones, and from attention over parts of the keys.
#include "conformance/case_builder.h"

namespace quire::conformance {
namespace {

using enum Suite;

void add_drawn(std::vector<Case>& cases) {
  const auto drawn = [](const std::string& what, int num_partials, Suite suite = kStandard) {
    return std::move(CaseBuilder(concat("merge/", what), suite, {{23, 23}})
                         .check(Check::kMerge)
                         .query(DType::kF32)
                         .arrival(Arrival::kStored, DType::kF32)
                         .with([=](Case& c) { c.num_partials = num_partials; }));
  };
  for (const int n : {1, 2, 3, 7, 40}) {
    drawn(concat("partials/", n), n, n == 3 ? kSmoke : kStandard).add_to(cases);
  }
  for (const DType partial : query_types()) {
    for (const DType out : query_types()) {
      drawn(concat("types/", dtype_name(partial), "_to_", dtype_name(out)), 4)
          .query(out)
          .arrival(Arrival::kStored, partial)
          .add_to(cases);
    }
  }
  drawn("sinks", 3, kSmoke).sinks().add_to(cases);
  drawn("sinks_bf16", 3).query(DType::kBF16).sinks().add_to(cases);
  for (const int dim : {40, 128, 512}) {
    drawn(concat("dims/", dim), 3).dims(dim, dim).add_to(cases);
  }
  for (const auto& [name, style] : {std::pair{"fused_rows", TensorStyle::kFusedRows},
                                    {"head_major", TensorStyle::kHeadMajor},
                                    {"odd", TensorStyle::kOdd}}) {
    drawn(concat("tensors/", name), 3)
        .with([style = style](Case& c) { c.tensors = style; })
        .add_to(cases);
  }
  CaseBuilder("merge/no_rows", kStandard, {}).check(Check::kMerge).add_to(cases);
}

void add_cascades(std::vector<Case>& cases) {
  const auto cascade = [](const std::string& what, int num_partials, Suite suite = kStandard) {
    return std::move(
        CaseBuilder(concat("merge/cascade/", what), suite,
                    {{1, 100}, {5, 70}, {1, 0}, {16, 16}, {1, 257}, {3, 130}, {0, 40}, {9, 4}})
            .check(Check::kCascade)
            .with([=](Case& c) { c.num_partials = num_partials; }));
  };
  for (const int n : {1, 2, 3, 5}) {
    cascade(concat("parts/", n), n, n == 2 ? kSmoke : kStandard).add_to(cases);
  }
  cascade("sinks", 2, kSmoke).sinks().add_to(cases);
  cascade("sinks_softcap", 3).sinks().softcap(4.0F).add_to(cases);
  cascade("f32", 3).query(DType::kF32).kv(DType::kF32).sinks().add_to(cases);
  cascade("f16", 2).query(DType::kF16).kv(DType::kF16).add_to(cases);
  cascade("growing", 4).data(DataStyle::kGrowing).add_to(cases);
  cascade("cross", 3).cross().sinks().add_to(cases);
  cascade("f8", 2).kv(DType::kF8E4M3, ScaleGranularity::kPerTokenHead).add_to(cases);
  cascade("shared_prefix", 2).with([](Case& c) { c.shared_blocks = 3; }).add_to(cases);
  cascade("mla", 3)
      .heads(16, 1)
      .dims(576, 512)
      .with([](Case& c) { c.spec.kv.v_in_k = true; })
      .add_to(cases);
}

}  // namespace

void add_merge_cases(std::vector<Case>& cases) {
  add_drawn(cases);
  add_cascades(cases);
}

}  // namespace quire::conformance
