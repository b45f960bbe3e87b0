// SPDX-License-Identifier: Apache-2.0
// Attention without positions: decoders that look at an encoder's output.
#include "conformance/case_builder.h"

namespace quire::conformance {
namespace {

using enum Suite;

std::vector<SequenceShape> usual() {
  return {{4, 30}, {1, 17}, {7, 64}, {3, 0}, {0, 12}, {2, 129}, {1, 1}, {30, 5}};
}

CaseBuilder cross(const std::string& what, Suite suite = kStandard) {
  return std::move(CaseBuilder(concat("cross/", what), suite, usual()).cross());
}

}  // namespace

void add_cross_cases(std::vector<Case>& cases) {
  cross("basic", kSmoke).add_to(cases);
  CaseBuilder("cross/decode", kStandard, {{1, 300}, {1, 1500}, {1, 77}, {1, 1}, {1, 0}, {1, 512}})
      .cross()
      .heads(12, 12)
      .add_to(cases);
  for (const DType q : query_types()) {
    for (const KvType& kv : kv_types()) {
      if (kv.scales == ScaleGranularity::kPerHead) continue;
      cross(concat("types/", dtype_name(q), "_", kv_type_name(kv)))
          .query(q)
          .kv(kv.dtype, kv.scales)
          .add_to(cases);
    }
  }
  for (const int dim : {64, 80, 128}) {
    cross(concat("head_dim/", dim)).dims(dim, dim).heads(6, 6).add_to(cases);
  }
  cross("value_dim/192_128").dims(192, 128).add_to(cases);
  cross("feature/softcap").softcap().add_to(cases);
  cross("feature/sinks").sinks().add_to(cases);
  for (const NamedBias& bias : bias_styles()) {
    cross(concat("feature/bias_", bias.name), bias.style == BiasStyle::kFull ? kSmoke : kStandard)
        .bias(bias.style)
        .add_to(cases);
  }
  cross("data/growing").data(DataStyle::kGrowing).add_to(cases);
  cross("data/large_f16").query(DType::kF16).kv(DType::kF16).data(DataStyle::kLarge).add_to(cases);
  cross("cache/ragged", kSmoke).cache(CacheStyle::kRagged).add_to(cases);
  cross("cache/ragged_same_rows")
      .cache(CacheStyle::kRagged)
      .with([](Case& c) { c.shared_blocks = 1; })
      .add_to(cases);
  cross("cache/preferred").cache(CacheStyle::kPreferred).add_to(cases);
  cross("cache/indexed").with([](Case& c) { c.table = TableStyle::kIndexed; }).add_to(cases);
  cross("arrival/appended").arrival(Arrival::kAppended).add_to(cases);
  cross("arrival/fused").arrival(Arrival::kFused).add_to(cases);
  cross("tensors/head_major")
      .with([](Case& c) {
        c.tensors = TensorStyle::kHeadMajor;
        c.padding_rows = 2;
      })
      .add_to(cases);
}

}  // namespace quire::conformance
