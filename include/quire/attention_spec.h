// SPDX-License-Identifier: Apache-2.0
// What attention means for one group of layers (AttentionSpec) and the values one layer brings
// (AttentionParams). docs/numerics.md states the mathematics; this header only names its knobs.
//
// A spec is all that selects a kernel or a plan. Layers with equal specs share one prepared batch.
#pragma once

#include <cstdint>
#include <string>

#include "quire/dtype.h"
#include "quire/export.h"
#include "quire/tensor.h"

namespace quire {

// Aligned (self-attention): key j has position j, query i has position kv_len - q_len + i.
// Unaligned (cross-attention): no positions; causal, window, chunk and ALiBi are refused.
enum class Alignment : std::uint8_t { kAligned, kUnaligned };

// Which keys a query may see; all conditions that apply hold together.
struct Mask {
  bool causal = true;              // key_pos <= query_pos
  std::int64_t window_left = -1;   // key_pos >= query_pos - window_left; -1: unlimited
  std::int64_t window_right = -1;  // key_pos <= query_pos + window_right; -1: unlimited
  std::int64_t chunk = 0;          // floor(key_pos / chunk) == floor(query_pos / chunk); 0: off
  friend bool operator==(const Mask&, const Mask&) = default;
};

// What calls under a spec may use. Using what is not declared is an error; declaring what is not
// used may cost speed, never correctness.
struct Features {
  bool softcap = false;
  bool alibi = false;
  bool sinks = false;
  bool bias = false;
  bool tree_mask = false;
  bool lse = false;
  friend bool operator==(const Features&, const Features&) = default;
};

// How finely 8-bit K and V are scaled. Scales per tensor and per head belong to the caller; scales
// per (token, head) are computed by append and live in the cache.
enum class ScaleGranularity : std::uint8_t { kNone, kPerTensor, kPerHead, kPerTokenHead };

// How the elements of one block are ordered. Every layout exports to and imports from kPlain.
enum class KvLayoutId : std::uint16_t {
  kPlain = 0,           // described by strides; the only one a caller may bring
  kPairTiled = 1,       // token and dim pairs interleaved in tiles of 16 (docs/kv_layout.md)
  kFirstPrivate = 256,  // from here on known to one backend only: a block is opaque bytes
};

struct KvFormat {
  DType dtype = DType::kBF16;
  int block_size = 16;  // tokens per block, any from 1 up; 1 for ragged sources
  ScaleGranularity scales = ScaleGranularity::kNone;  // kNone unless dtype is an 8-bit one
  bool v_in_k = false;  // V is the first value_dim elements of K: one stored tensor
  KvLayoutId layout = KvLayoutId::kPlain;
  friend bool operator==(const KvFormat&, const KvFormat&) = default;
};

struct AttentionSpec {
  int num_q_heads = 0;
  int num_kv_heads = 0;  // divides num_q_heads; query head h reads kv head h / (q / kv)
  int head_dim = 0;      // of Q and K
  int value_dim = 0;     // of V and the output
  DType q_dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;  // q_dtype, or f32 for partial results
  KvFormat kv;
  Alignment alignment = Alignment::kAligned;
  Mask mask;
  Features features;

  int head_group() const noexcept { return num_q_heads / num_kv_heads; }
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

// Throws Error(kInvalidArgument) naming the field and the value if the spec contradicts itself.
QUIRE_API void validate(const AttentionSpec& spec);

// "32/8 heads, dim 128, bf16, kv f8e4m3 block 16 per-head, causal window 1023:-1, sinks".
QUIRE_API std::string to_string(const AttentionSpec& spec);
QUIRE_API const char* scale_granularity_name(ScaleGranularity granularity) noexcept;

// The values of one layer. Arrays lie where the backend computes.
struct AttentionParams {
  float scale = 1.0F;             // S = scale * q.k
  float softcap = 0.0F;           // S = softcap * tanh(S / softcap) if > 0
  ArrayView<float> alibi_slopes;  // [num_q_heads]: S -= slope * |query_pos - key_pos|
  ArrayView<float> sinks;         // [num_q_heads]: out *= 1 / (1 + exp(sink - lse)); never in lse
  // [num_sequences, num_q_heads, >= longest q_len, >= longest kv_len], f32 or q_dtype, any strides
  // (0 broadcasts): S += bias; -inf hides the key. Indexed by the sequence's own query and key.
  TensorView bias;
};

}  // namespace quire
