// SPDX-License-Identifier: Apache-2.0
// Specs, layouts, devices and fields as people read them.
#include <ostream>
#include <string>

#include "attention/validate.h"
#include "base/check.h"
#include "quire/attention_spec.h"
#include "quire/device.h"
#include "quire/dtype.h"

namespace quire {
namespace {

std::string mask_text(const AttentionSpec& spec) {
  const Mask& mask = spec.mask;
  std::string text = spec.alignment == Alignment::kUnaligned ? "unaligned"
                     : mask.causal                           ? "causal"
                                                             : "full";
  if (mask.window_left >= 0 || mask.window_right >= 0) {
    text += concat(" window ", mask.window_left, ":", mask.window_right);
  }
  if (mask.chunk > 0) text += concat(" chunk ", mask.chunk);
  return text;
}

std::string kv_text(const KvFormat& kv) {
  std::string text = concat("kv ", dtype_text(kv.dtype), " block ", kv.block_size);
  if (kv.scales != ScaleGranularity::kNone) {
    text += concat(" ", scale_granularity_name(kv.scales));
  }
  if (kv.v_in_k) text += " v-in-k";
  if (kv.layout != KvLayoutId::kPlain) text += " " + layout_text(kv.layout);
  return text;
}

}  // namespace

std::string to_string(const AttentionSpec& spec) {
  std::string text =
      concat(spec.num_q_heads, "/", spec.num_kv_heads, " heads, dim ", spec.head_dim);
  if (spec.value_dim != spec.head_dim) text += concat("/", spec.value_dim);
  text += ", " + dtype_text(spec.q_dtype);
  if (spec.out_dtype != spec.q_dtype) text += " out " + dtype_text(spec.out_dtype);
  text += ", " + kv_text(spec.kv) + ", " + mask_text(spec);
  const Features& features = spec.features;
  if (features.softcap) text += ", softcap";
  if (features.alibi) text += ", alibi";
  if (features.sinks) text += ", sinks";
  if (features.bias) text += ", bias";
  if (features.tree_mask) text += ", tree mask";
  if (features.lse) text += ", lse";
  return text;
}

std::ostream& operator<<(std::ostream& stream, const FieldName& field) {
  stream << field.name;
  if (field.index >= 0) stream << '[' << field.index << ']';
  return stream << field.suffix;
}

std::string dtype_text(DType dtype) {
  return dtype <= DType::kI8 ? dtype_name(dtype) : concat("dtype ", static_cast<int>(dtype));
}

std::string device_text(Device device) {
  if (device == Device{}) return "host";
  if (device.kind > DeviceKind::kCustom) return concat("device ", static_cast<int>(device.kind));
  return concat(device_kind_name(device.kind), " ", device.index);
}

std::string layout_text(KvLayoutId layout) {
  if (layout == KvLayoutId::kPlain) return "plain";
  if (layout == KvLayoutId::kPairTiled) return "pair-tiled";
  const char* kind = layout >= KvLayoutId::kFirstPrivate ? "private " : "unknown ";
  return concat(kind, static_cast<int>(layout));
}

}  // namespace quire
