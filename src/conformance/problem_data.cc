// SPDX-License-Identifier: Apache-2.0
#include "conformance/problem_data.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/number_formats.h"
#include "conformance/index.h"

namespace quire::conformance {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Calls f(s, i, j) for every key that the masks let a query see.
template <class F>
void for_each_visible(const Problem& p, F&& f) {
  for (std::size_t s = 0; s < p.sequences.size(); ++s) {
    const ProblemSequence& sequence = p.sequences[s];
    const auto index = static_cast<std::int64_t>(s);
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
        if (p.is_visible(index, i, j)) f(index, i, j);
      }
    }
  }
}

// Each token sees itself and what its parent sees; the parent is any token before it, or none.
void draw_tree(ProblemSequence& sequence, TreeStyle style, Random& random) {
  const std::int64_t n = sequence.q_len;
  sequence.tree.assign(at(n * n), 0);
  std::vector<std::int32_t> depths;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint8_t* row = sequence.tree.data() + i * n;
    const std::int64_t parent = style == TreeStyle::kChain ? i - 1 : random.below(i + 1) - 1;
    if (parent >= 0) std::copy_n(sequence.tree.data() + parent * n, n, row);
    row[i] = 1;
    depths.push_back(parent < 0 ? 0 : depths[at(parent)] + 1);
  }
  // A tree mask may say anything, also that a token sees a later one.
  for (std::int64_t flips = 0; style == TreeStyle::kBranching && flips < n; ++flips) {
    sequence.tree[at(random.below(n * n))] ^= 1;
  }
  if (style == TreeStyle::kDepths || style == TreeStyle::kSomePlain) sequence.depths = depths;
}

// The direction along which the logits of the ramps rise: the same for q and k.
float ramp_sign(std::int64_t d) {
  return (d * 2654435761LL >> 7) % 2 == 0 ? 1.0F : -1.0F;
}

// Keys at which a kernel may count wrongly: ends, borders of masks, multiples of powers of two and
// their neighbours, coarse ones first; then all.
std::vector<std::int64_t> border_keys(const Problem& p, std::int64_t s, std::int64_t count) {
  const ProblemSequence& sequence = p.sequences[at(s)];
  const Mask& mask = p.spec.mask;
  std::vector<std::int64_t> keys;
  const auto add = [&](std::int64_t key) {
    if (key < 0 || key >= sequence.kv_len || std::ssize(keys) >= count) return;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  };
  add(0);
  add(sequence.kv_len - 1);
  for (const std::int64_t i : {std::int64_t{0}, sequence.q_len - 1}) {
    const std::int64_t position = sequence.kv_len - sequence.q_len + i;
    for (const std::int64_t shift : {-1, 0, 1}) {
      add(position + shift);
      if (mask.window_left >= 0) add(position - mask.window_left + shift);
      if (mask.window_right >= 0) add(position + mask.window_right + shift);
      if (mask.chunk > 0) add(position / mask.chunk * mask.chunk + shift);
    }
  }
  for (std::int64_t step = 4096; step > 0 && std::ssize(keys) < count; step /= 2) {
    for (std::int64_t key = step; key < sequence.kv_len; key += step) {
      add(key - 1);
      add(key);
    }
  }
  return keys;
}

constexpr float kMark = 4.0F;

// V of kMarked: [num_slots, num_kv_heads, value_dim].
std::vector<float> mark_values(const Problem& p) {
  const std::int64_t heads = p.spec.num_kv_heads;
  const std::int64_t dim = p.spec.value_dim;
  std::vector<float> values(at(p.num_slots() * heads * dim), 0.0F);
  for (std::int64_t s = 0; s < std::ssize(p.sequences); ++s) {
    const std::vector<std::int64_t> keys = border_keys(p, s, heads * dim);
    for (std::int64_t n = 0; n < heads * dim && !keys.empty(); ++n) {
      const std::int64_t slot = p.slot(s, keys[at(n % std::ssize(keys))]);
      values[at((slot * heads + n / dim) * dim + n % dim)] = kMark;
    }
  }
  return values;
}

struct Magnitudes {
  float q = 1.0F, k = 1.0F, v = 1.0F;
};

Magnitudes magnitudes(DataStyle style) {
  if (style == DataStyle::kLarge) return {.q = 12.0F, .k = 12.0F, .v = 3000.0F};
  if (style == DataStyle::kMarked) return {.q = 0.25F, .k = 1.0F, .v = 1.0F};
  return {};
}

// Logits in the hundreds, rounded in f32, are uncertain by more than f32 queries allow. There, keys
// come in terraces: equal within one, so that the uncertainty cancels, and too far apart to mix.
bool is_terraced(const Problem& p) {
  const bool has_large_logits = p.c.data == DataStyle::kGrowing ||
                                p.c.data == DataStyle::kShrinking || p.c.data == DataStyle::kLarge;
  return has_large_logits && p.spec.q_dtype == DType::kF32;
}

constexpr std::int64_t kNumTerraces = 4;
constexpr double kTerraceLogit = 150;  // exp(-0.7 * 150) is 0 in f32; q . k varies by less

float terrace_height(const Problem& p, std::int64_t key, std::int64_t max_kv_len) {
  std::int64_t terrace = key * kNumTerraces / (max_kv_len + 1);
  if (p.c.data == DataStyle::kShrinking) terrace = kNumTerraces - 1 - terrace;
  if (p.c.data == DataStyle::kLarge) terrace = (key * 2654435761LL >> 9) % kNumTerraces;
  const double step = kTerraceLogit / std::sqrt(static_cast<double>(p.spec.head_dim));
  return static_cast<float>(step) * static_cast<float>(terrace);
}

// Logits of the ramps span +-40 * sqrt(head_dim).
constexpr float kRamp = 40.0F;

float ramp_at(DataStyle style, std::int64_t key, std::int64_t max_kv_len) {
  const float part =
      static_cast<float>(key) / static_cast<float>(std::max<std::int64_t>(1, max_kv_len));
  if (style == DataStyle::kGrowing) return kRamp * part;
  if (style == DataStyle::kShrinking) return -kRamp * part;
  return 0.0F;
}

// What a careless conversion gets wrong, by slot.
float special_value(std::int64_t slot, std::int64_t d, Random& random) {
  const float x = random.normal();
  switch (slot % 8) {
    case 0:
      return d % 2 == 0 ? 0.0F : -0.0F;
    case 1:
      return x * 1e-33F;  // amax below 2^-100
    case 2:
      return d % 5 == 0 ? kInfinity : d % 5 == 1 ? -kInfinity : d % 5 == 2 ? kNaN : x;
    case 3:
      return (static_cast<float>(d % 32) + 0.5F) * (d % 2 == 0 ? 1.0F : -1.0F);  // ties
    case 4:
      return x * 1e30F;
    case 5:
      return d % 3 == 0 ? kNaN : -kInfinity;
    default:
      return x;
  }
}

struct ScaleRule {
  ScaleGranularity granularity;
  float tensor;  // per tensor; per head it grows with the head

  float operator()(std::int64_t head, DType dtype, const float* source, int dim) const {
    switch (granularity) {
      case ScaleGranularity::kNone:
        return 1.0F;
      case ScaleGranularity::kPerTensor:
        return tensor;
      case ScaleGranularity::kPerHead:
        return tensor * (1.0F + 0.375F * static_cast<float>(head));
      case ScaleGranularity::kPerTokenHead:
        break;
    }
    float amax = 0;
    for (int d = 0; d < dim; ++d) amax = std::max(amax, finite_magnitude(source[d]));
    return token_head_scale(dtype, amax);
  }
};

// Largest values saturate: a scale that maps 3 standard deviations to the end of the range.
ScaleRule scale_rule(const AttentionSpec& spec, float magnitude) {
  return {spec.kv.scales, 3.0F * magnitude / max_finite(spec.kv.dtype)};
}

// Stored form of one (slot, head).
void quantize_row(ProblemKv& kv, DType dtype, const ScaleRule& rule, std::int64_t row,
                  std::int64_t head) {
  const float* source = kv.source.data() + row * kv.dim;
  const float scale = rule(head, dtype, source, kv.dim);
  kv.scales[at(row)] = scale;
  for (int d = 0; d < kv.dim; ++d) {
    kv.stored[at(row * kv.dim + d)] = round_to(dtype, source[d] / scale);
  }
}

struct KvDraw {
  int dim;
  float magnitude;
  bool is_k;
  const std::vector<float>* given;  // instead of random values, or null
  const std::vector<std::int64_t>& key_of_slot;
};

float draw_value(const Problem& p, const KvDraw& draw, std::int64_t slot, std::int64_t d,
                 std::int64_t max_kv_len, Random& random) {
  if (p.c.data == DataStyle::kSpecial) return special_value(slot, d, random);
  const float x = random.normal() * draw.magnitude;
  if (!draw.is_k) return x;
  const std::int64_t key = draw.key_of_slot[at(slot)];
  if (is_terraced(p)) return ramp_sign(d) * terrace_height(p, key, max_kv_len);
  const float ramp = ramp_at(p.c.data, key, max_kv_len);
  return ramp == 0 ? x : 0.5F * x + ramp_sign(d) * ramp;
}

ProblemKv draw_tensor(const Problem& p, const KvDraw& draw, Random& random) {
  const std::int64_t heads = p.spec.num_kv_heads;
  const DType dtype = p.spec.kv.dtype;
  const ScaleRule rule = scale_rule(p.spec, draw.magnitude);
  // Saturates to -128 as int8, which has no NaN.
  const float poison = dtype == DType::kI8 ? -kInfinity : kNaN;
  const std::int64_t max_kv_len =
      draw.key_of_slot.empty()
          ? 1
          : *std::max_element(draw.key_of_slot.begin(), draw.key_of_slot.end());
  ProblemKv kv;
  kv.dim = draw.dim;
  kv.source.resize(at(p.num_slots() * heads * draw.dim));
  kv.stored.resize(kv.source.size());
  kv.scales.resize(at(p.num_slots() * heads));
  for (std::int64_t slot = 0; slot < p.num_slots(); ++slot) {
    const bool drawn =
        p.seen[at(slot)] != 0 || p.c.data == DataStyle::kSpecial || p.c.finite_garbage;
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t row = slot * heads + head;
      for (std::int64_t d = 0; d < draw.dim; ++d) {
        const std::int64_t index = row * draw.dim + d;
        const float x = draw.given != nullptr ? (*draw.given)[at(index)]
                                              : draw_value(p, draw, slot, d, max_kv_len, random);
        kv.source[at(index)] = round_to(p.c.new_kv_dtype, drawn ? x : poison);
      }
      quantize_row(kv, dtype, rule, row, head);
    }
  }
  return kv;
}

// Scales per (token, head) of what no row sees and no append writes.
void poison_scales(const Problem& p, ProblemKv& kv) {
  if (p.spec.kv.scales != ScaleGranularity::kPerTokenHead || p.c.finite_garbage) return;
  std::vector<std::uint8_t> keep = p.seen;
  for (const NewToken& token : p.new_tokens) keep[at(p.slot(token.sequence, token.key))] = 1;
  const std::int64_t heads = p.spec.num_kv_heads;
  for (std::int64_t slot = 0; slot < p.num_slots(); ++slot) {
    if (keep[at(slot)] == 0) std::fill_n(kv.scales.begin() + slot * heads, heads, kNaN);
  }
}

void find_max_magnitude(const Problem& p, ProblemKv& kv) {
  const std::int64_t heads = p.spec.num_kv_heads;
  for (std::int64_t row = 0; row < p.num_slots() * heads; ++row) {
    if (p.seen[at(row / heads)] == 0) continue;
    for (int d = 0; d < kv.dim; ++d) {
      const double value = double{kv.stored[at(row * kv.dim + d)]} * kv.scales[at(row)];
      kv.max_magnitude = std::max(kv.max_magnitude, std::abs(value));
    }
  }
}

ProblemKv leading_dims(const Problem& p, const ProblemKv& k, int dim) {
  ProblemKv v;
  v.dim = dim;
  v.scales = k.scales;
  for (std::int64_t row = 0; row < p.num_slots() * p.spec.num_kv_heads; ++row) {
    const auto copy = [&](const std::vector<float>& from, std::vector<float>& to) {
      to.insert(to.end(), from.begin() + row * k.dim, from.begin() + row * k.dim + dim);
    };
    copy(k.source, v.source);
    copy(k.stored, v.stored);
  }
  return v;
}

}  // namespace

void draw_trees(Problem& p, Random& random) {
  for (std::size_t s = 0; s < p.sequences.size(); ++s) {
    if (p.c.tree == TreeStyle::kSomePlain && s % 2 == 1) continue;
    const ProblemSequence& sequence = p.sequences[s];
    const bool may_have_tree = sequence.q_len > 0 && sequence.q_len <= sequence.kv_len;
    if (may_have_tree) draw_tree(p.sequences[s], p.c.tree, random);
  }
}

void draw_bias(Problem& p, Random& random) {
  const BiasStyle style = p.c.bias;
  ProblemBias& bias = p.bias;
  bias.num_sequences = style == BiasStyle::kRelative ? 1 : std::ssize(p.sequences);
  bias.num_heads =
      style == BiasStyle::kSharedHeads || style == BiasStyle::kKeysOnly ? 1 : p.spec.num_q_heads;
  bias.num_queries = 1;
  bias.num_keys = 1;
  for (const ProblemSequence& sequence : p.sequences) {
    if (style != BiasStyle::kKeysOnly) {
      bias.num_queries = std::max(bias.num_queries, sequence.q_len);
    }
    bias.num_keys = std::max(bias.num_keys, sequence.kv_len);
  }
  bias.values.assign(at(bias.num_sequences * bias.num_heads * bias.num_queries * bias.num_keys),
                     kNaN);
  for_each_visible(p, [&](std::int64_t s, std::int64_t i, std::int64_t j) {
    for (std::int64_t h = 0; h < bias.num_heads; ++h) {
      float& value = bias.values[at(bias.index(s, h, i, j))];
      if (!std::isnan(value)) continue;  // broadcast: drawn for another row
      value = random.below(8) == 0 ? -kInfinity : round_to(p.c.bias_dtype, random.normal());
    }
  });
}

void find_seen_slots(Problem& p) {
  p.seen.assign(at(p.num_slots()), 0);
  for_each_visible(p, [&](std::int64_t s, std::int64_t i, std::int64_t j) {
    std::uint8_t& seen = p.seen[at(p.slot(s, j))];
    if (seen != 0) return;
    if (!p.bias.present()) {
      seen = 1;
      return;
    }
    for (std::int64_t h = 0; h < p.bias.num_heads; ++h) {
      if (p.bias.values[at(p.bias.index(s, h, i, j))] != -kInfinity) seen = 1;
    }
  });
}

void draw_queries(Problem& p, Random& random) {
  const bool on_ramp =
      p.c.data == DataStyle::kGrowing || p.c.data == DataStyle::kShrinking || is_terraced(p);
  const float magnitude = is_terraced(p) ? 1.0F : magnitudes(p.c.data).q;
  const std::int64_t dim = p.spec.head_dim;
  p.q.resize(at(p.num_tokens * p.spec.num_q_heads * dim));
  for (std::size_t n = 0; n < p.q.size(); ++n) {
    float x = random.normal() * magnitude;
    if (on_ramp) x = 0.5F * x + ramp_sign(static_cast<std::int64_t>(n) % dim);
    p.q[n] = round_to(p.spec.q_dtype, x);
  }
}

void draw_kv(Problem& p, Random& random) {
  std::vector<std::int64_t> key_of_slot(at(p.num_slots()), 0);
  for (std::size_t s = 0; s < p.sequences.size(); ++s) {
    for (std::int64_t j = 0; j < p.sequences[s].kv_len; ++j) {
      key_of_slot[at(p.slot(static_cast<std::int64_t>(s), j))] = j;
    }
  }
  const Magnitudes magnitude = magnitudes(p.c.data);
  const bool is_marked = p.c.data == DataStyle::kMarked;
  const std::vector<float> marks = is_marked ? mark_values(p) : std::vector<float>();
  p.k = draw_tensor(p, {p.spec.head_dim, magnitude.k, true, nullptr, key_of_slot}, random);
  if (p.spec.kv.v_in_k) {
    p.v = leading_dims(p, p.k, p.spec.value_dim);
  } else {
    p.v = draw_tensor(
        p, {p.spec.value_dim, magnitude.v, false, is_marked ? &marks : nullptr, key_of_slot},
        random);
  }
  find_max_magnitude(p, p.k);
  find_max_magnitude(p, p.v);
  poison_scales(p, p.k);
  poison_scales(p, p.v);
}

}  // namespace quire::conformance
