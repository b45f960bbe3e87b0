// SPDX-License-Identifier: Apache-2.0
// The rows of the support matrix, each a spec that differs from the plain one in one thing. The
// matrix of `quire info` and of the README is what supports() answers to these.
#include <functional>
#include <vector>

#include "quire/registry.h"

namespace quire {
namespace {

AttentionSpec plain_spec() {
  AttentionSpec spec;
  spec.num_q_heads = 32;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  spec.value_dim = 128;
  spec.kv.block_size = 32;  // the one size of some libraries
  return spec;
}

FeatureProbe probe(const char* name, const std::function<void(AttentionSpec&)>& change) {
  FeatureProbe result{.name = name, .spec = plain_spec()};
  change(result.spec);
  return result;
}

void use_kv(AttentionSpec& spec, DType dtype, ScaleGranularity scales) {
  spec.kv.dtype = dtype;
  spec.kv.scales = scales;
}

std::vector<FeatureProbe> make_probes() {
  using S = AttentionSpec&;
  const auto q = [](DType dtype) { return [dtype](S s) { s.q_dtype = s.out_dtype = dtype; }; };
  const auto kv = [](DType dtype, ScaleGranularity scales) {
    return [dtype, scales](S s) { use_kv(s, dtype, scales); };
  };
  using enum ScaleGranularity;
  return {
      probe("causal", [](S) {}),
      probe("encoder", [](S s) { s.mask.causal = false; }),
      probe("cross attention",
            [](S s) {
              s.mask.causal = false;
              s.alignment = Alignment::kUnaligned;
            }),
      probe("ragged source", [](S s) { s.kv.block_size = 1; }),
      probe("window left", [](S s) { s.mask.window_left = 1023; }),
      probe("window right",
            [](S s) {
              s.mask.causal = false;
              s.mask.window_right = 128;
            }),
      probe("chunk", [](S s) { s.mask.chunk = 8192; }),
      probe("softcap", [](S s) { s.features.softcap = true; }),
      probe("alibi", [](S s) { s.features.alibi = true; }),
      probe("sinks", [](S s) { s.features.sinks = true; }),
      probe("bias", [](S s) { s.features.bias = true; }),
      probe("tree mask", [](S s) { s.features.tree_mask = true; }),
      probe("lse", [](S s) { s.features.lse = true; }),
      probe("f32 partials",
            [](S s) {
              s.out_dtype = DType::kF32;
              s.features.lse = true;
            }),
      probe("query f32", q(DType::kF32)),
      probe("query f16", q(DType::kF16)),
      probe("query bf16", q(DType::kBF16)),
      probe("kv f32", kv(DType::kF32, kNone)),
      probe("kv f16", kv(DType::kF16, kNone)),
      probe("kv bf16", kv(DType::kBF16, kNone)),
      probe("kv f8e4m3 per tensor", kv(DType::kF8E4M3, kPerTensor)),
      probe("kv f8e5m2 per head", kv(DType::kF8E5M2, kPerHead)),
      probe("kv i8 per token-head", kv(DType::kI8, kPerTokenHead)),
      probe("block size 1", [](S s) { s.kv.block_size = 1; }),
      probe("block size 19", [](S s) { s.kv.block_size = 19; }),
      probe("block size 256", [](S s) { s.kv.block_size = 256; }),
      probe("head dim 40", [](S s) { s.head_dim = s.value_dim = 40; }),
      probe("head dim 256", [](S s) { s.head_dim = s.value_dim = 256; }),
      probe("dims 192/128", [](S s) { s.head_dim = 192; }),
      probe("dims 576/512, V in K",
            [](S s) {
              s.num_kv_heads = 1;
              s.head_dim = 576;
              s.value_dim = 512;
              s.kv.v_in_k = true;
            }),
      probe("head group 1", [](S s) { s.num_kv_heads = 32; }),
      probe("head group 7",
            [](S s) {
              s.num_q_heads = 28;
              s.num_kv_heads = 4;
            }),
      probe("one kv head", [](S s) { s.num_kv_heads = 1; }),
  };
}

}  // namespace

std::span<const FeatureProbe> feature_probes() {
  static const std::vector<FeatureProbe> kProbes = make_probes();
  return kProbes;
}

}  // namespace quire
