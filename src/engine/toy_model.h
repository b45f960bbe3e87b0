// SPDX-License-Identifier: Apache-2.0
// For tests and as a check of a whole engine: a "model" whose Q, K and V are fixed functions of
// token, position and layer, and plain attention over one request alone to compare with.
//
// Nothing here knows blocks, batches or schedules: what a request must come to follows from its
// tokens and from the text of docs/numerics.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/mask.h"
#include "quire/attention_spec.h"
#include "quire/kv_ids.h"

namespace quire::testing {

// What a number stands for. Cross-attention: `token` is the encoder's row, `position` its request.
struct ToyIndex {
  char tensor = 'q';
  int layer = 0;
  std::int64_t token = 0;
  std::int64_t position = 0;
  int head = 0;
  int dim = 0;
};

// In [-1, 1), and different for all that differs.
inline float toy_value(const ToyIndex& index) {
  std::uint64_t hash = 0;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(index.tensor), static_cast<std::uint64_t>(index.layer),
        static_cast<std::uint64_t>(index.token), static_cast<std::uint64_t>(index.position),
        static_cast<std::uint64_t>(index.head), static_cast<std::uint64_t>(index.dim)}) {
    hash = (hash ^ part) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  return static_cast<float>(hash >> 40) / static_cast<float>(1 << 23) - 1.0F;
}

struct ToyLayer {
  int index = 0;
  AttentionSpec spec{};
  AttentionParams params{};
};

// The request as it stands: its tokens, and for cross-attention its encoder.
struct ToyRequest {
  std::vector<Token> tokens;
  std::int64_t encoder = 0;  // whose
  std::int64_t num_cross_tokens = 0;
};

// Attention of the query at `position`, over the keys of the request alone, in double:
// [num_q_heads, value_dim].
inline std::vector<double> plain_attention(const ToyLayer& layer, const ToyRequest& request,
                                           std::int64_t position) {
  const AttentionSpec& spec = layer.spec;
  const bool is_cross = spec.alignment == Alignment::kUnaligned;
  const std::int64_t num_keys = is_cross ? request.num_cross_tokens : position + 1;
  const SequenceView view{.q_len = 1, .kv_len = num_keys};
  const auto key_value = [&](char tensor, std::int64_t key, int head, int dim) -> double {
    const std::int64_t token = is_cross ? key : request.tokens[static_cast<std::size_t>(key)];
    return toy_value({tensor, layer.index, token, is_cross ? request.encoder : key, head, dim});
  };
  const Token query_token = request.tokens[static_cast<std::size_t>(position)];
  std::vector<double> out;
  for (int head = 0; head < spec.num_q_heads; ++head) {
    const int kv_head = head / spec.head_group();
    std::vector<double> total(static_cast<std::size_t>(spec.value_dim), 0.0);
    double sum = 0;
    for (std::int64_t key = 0; key < num_keys; ++key) {
      if (!is_visible(spec.mask, spec.alignment, view, 0, key)) continue;
      double score = 0;
      for (int dim = 0; dim < spec.head_dim; ++dim) {
        score += toy_value({'q', layer.index, query_token, position, head, dim}) *
                 key_value('k', key, kv_head, dim);
      }
      score *= layer.params.scale;
      if (layer.params.softcap > 0) {
        score = layer.params.softcap * std::tanh(score / layer.params.softcap);
      }
      const double weight = std::exp(score);  // scores are small: no maximum is needed
      sum += weight;
      for (int dim = 0; dim < spec.value_dim; ++dim) {
        total[static_cast<std::size_t>(dim)] += weight * key_value('v', key, kv_head, dim);
      }
    }
    for (const double value : total) out.push_back(sum > 0 ? value / sum : 0.0);
  }
  return out;
}

}  // namespace quire::testing
