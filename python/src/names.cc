// SPDX-License-Identifier: Apache-2.0
#include "names.h"

#include <array>
#include <charconv>
#include <span>

#include "fail.h"

namespace quire::python {
namespace {

template <class T>
struct Named {
  std::string_view name;
  T value;
};

template <class T>
T find(const char* what, std::span<const Named<T>> all, std::string_view name) {
  std::string known;
  for (const Named<T>& one : all) {
    if (one.name == name) return one.value;
    known += text(known.empty() ? "" : ", ", one.name);
  }
  fail(ErrorCode::kInvalidArgument, what, ": needs one of ", known, ", has '", name, "'");
}

// The names of NumPy and PyTorch are taken too.
constexpr std::array<Named<DType>, 12> kDtypes{{{"f32", DType::kF32},
                                                {"f16", DType::kF16},
                                                {"bf16", DType::kBF16},
                                                {"f8e4m3", DType::kF8E4M3},
                                                {"f8e5m2", DType::kF8E5M2},
                                                {"i8", DType::kI8},
                                                {"float32", DType::kF32},
                                                {"float16", DType::kF16},
                                                {"bfloat16", DType::kBF16},
                                                {"float8_e4m3fn", DType::kF8E4M3},
                                                {"float8_e5m2", DType::kF8E5M2},
                                                {"int8", DType::kI8}}};
constexpr std::array<Named<KvOrder>, 2> kOrders{
    {{"block_token_head_dim", KvOrder::kBlockTokenHeadDim},
     {"block_head_token_dim", KvOrder::kBlockHeadTokenDim}}};
constexpr std::array<Named<KvPacking>, 3> kPackings{{{"kv_first", KvPacking::kKvFirst},
                                                     {"kv_per_block", KvPacking::kKvPerBlock},
                                                     {"kv_per_token", KvPacking::kKvPerToken}}};
constexpr std::array<Named<Alignment>, 2> kAlignments{
    {{"aligned", Alignment::kAligned}, {"unaligned", Alignment::kUnaligned}}};
constexpr std::array<Named<ScaleGranularity>, 4> kScales{
    {{"none", ScaleGranularity::kNone},
     {"per_tensor", ScaleGranularity::kPerTensor},
     {"per_head", ScaleGranularity::kPerHead},
     {"per_token_head", ScaleGranularity::kPerTokenHead}}};

constexpr std::string_view kPrivate = "private_";

}  // namespace

DType parse_dtype(std::string_view name) {
  return find<DType>("dtype", kDtypes, name);
}
KvOrder parse_order(std::string_view name) {
  return find<KvOrder>("kv_order", kOrders, name);
}
KvPacking parse_packing(std::string_view name) {
  return find<KvPacking>("kv_packing", kPackings, name);
}
Alignment parse_alignment(std::string_view name) {
  return find<Alignment>("alignment", kAlignments, name);
}
ScaleGranularity parse_scales(std::string_view name) {
  return find<ScaleGranularity>("scales", kScales, name);
}

KvLayoutId parse_layout(std::string_view name) {
  if (name == "plain") return KvLayoutId::kPlain;
  if (name == "pair_tiled") return KvLayoutId::kPairTiled;
  if (name.starts_with(kPrivate)) {
    const std::string_view digits = name.substr(kPrivate.size());
    std::uint16_t id = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size();
    if (is_number && id >= static_cast<std::uint16_t>(KvLayoutId::kFirstPrivate)) {
      return static_cast<KvLayoutId>(id);
    }
  }
  fail(ErrorCode::kInvalidArgument,
       "layout: needs plain, pair_tiled or private_N with N from 256 on, has '", name, "'");
}

const char* alignment_name(Alignment alignment) noexcept {
  return alignment == Alignment::kAligned ? "aligned" : "unaligned";
}

const char* scales_name(ScaleGranularity scales) noexcept {
  for (const auto& one : kScales) {
    if (one.value == scales) return one.name.data();
  }
  return "unknown";
}

std::string layout_name(KvLayoutId layout) {
  if (layout == KvLayoutId::kPlain) return "plain";
  if (layout == KvLayoutId::kPairTiled) return "pair_tiled";
  return text(kPrivate, static_cast<int>(layout));
}

const char* admit_status_name(AdmitStatus status) noexcept {
  switch (status) {
    case AdmitStatus::kNow:
      return "now";
    case AdmitStatus::kLater:
      return "later";
    case AdmitStatus::kNever:
      return "never";
  }
  return "unknown";
}

}  // namespace quire::python
