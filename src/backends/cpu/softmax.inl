// SPDX-License-Identifier: Apache-2.0
// From q.k to weights: what a spec may add to a score, the mask, and one step of the online softmax
// of one row over the keys of a chunk. Weights are 2^(score - max), with scores in units of ln 2.

// tanh, to 3e-7 of its own size: a continued fraction where 1 - 2 / (e^2x + 1) would cancel.
QUIRE_INLINE Vec tanh(Vec x) noexcept {
  const Vec x2 = mul(x, x);
  const Vec above = fma(x2, fma(x2, set1(21.0F), set1(1260.0F)), set1(10395.0F));
  const Vec below = fma(x2, fma(x2, add(x2, set1(210.0F)), set1(4725.0F)), set1(10395.0F));
  const Vec small = mul(x, div(above, below));
  const Vec magnitude = abs(x);
  const Vec power = exp2<5>(mul(magnitude, set1(-2.0F * kLog2E)));  // never overflows
  const Vec large = div(sub(set1(1.0F), power), add(set1(1.0F), power));
  const Vec signed_large = select_less(x, zero(), sub(zero(), large), large);
  return select_less(magnitude, set1(0.7F), small, signed_large);
}

// The row of a call that scores belong to.
struct ScoreRow {
  std::int64_t sequence;
  std::int64_t query;  // of the sequence
  std::int64_t head;   // query head
};

// Adds the bias; -inf hides the key whatever its score is.
inline void add_bias(const TensorView& bias, const ScoreRow& row, const Chunk& chunk,
                     float* s) noexcept {
  const std::int64_t offset = row.sequence * bias.strides[0] + row.head * bias.strides[1] +
                              row.query * bias.strides[2] + chunk.first * bias.strides[3];
  for (std::int64_t j = chunk.begin; j < chunk.end; ++j) {
    const float x = load_float(bias.dtype, bias.data, offset + j * bias.strides[3]);
    s[j] = x == kNegativeInfinity ? x : s[j] + x;
  }
}

// Scores in natural units: scale, softcap, ALiBi, bias, each where the call has it.
inline void finish_scores(const AttendCall& call, const SequenceView& sequence, const ScoreRow& row,
                          const Chunk& chunk, std::int64_t num_vectors, float scale,
                          float* s) noexcept {
  const AttentionParams& params = call.params;
  const std::int64_t end = num_vectors * kLanes;
  for (std::int64_t j = 0; j < end; j += kLanes) store(s + j, mul(load(s + j), set1(scale)));
  if (params.softcap > 0.0F) {
    for (std::int64_t j = 0; j < end; j += kLanes) {
      const Vec x = div(load(s + j), set1(params.softcap));
      store(s + j, mul(tanh(x), set1(params.softcap)));
    }
  }
  if (!params.alibi_slopes.empty()) {
    const std::int64_t position = query_position(sequence, row.query);
    const float slope = params.alibi_slopes[row.head];
    if (sequence.tree_depths != nullptr) {
      for (std::int64_t j = chunk.begin; j < chunk.end; ++j) {
        const std::int64_t distance = position - key_position(sequence, chunk.first + j);
        s[j] -= slope * std::fabs(static_cast<float>(distance));
      }
    } else {
      for (std::int64_t j = 0; j < end; j += kLanes) {
        const Vec first = set1(static_cast<float>(position - chunk.first - j));
        store(s + j, sub(load(s + j), mul(set1(slope), abs(sub(first, iota())))));
      }
    }
  }
  if (params.bias.present()) add_bias(params.bias, row, chunk, s);
}

// The keys of a chunk, from its first on, that a query may see; with a tree mask all that are
// there.
inline KeyRange visible_part(const AttendCall& call, const SequenceView& sequence,
                             std::int64_t query, const Chunk& chunk) noexcept {
  KeyRange seen = {chunk.begin, chunk.end};
  if (sequence.tree_bits != nullptr) return seen;
  const KeyRange own = keys_seen(call.spec.mask, call.spec.alignment, sequence, query, query + 1);
  return {std::max(seen.begin, own.begin - chunk.first), std::min(seen.end, own.end - chunk.first)};
}

// -inf where the query may not see the key, whatever the score was.
inline void mask_scores(const AttendCall& call, const SequenceView& sequence, std::int64_t query,
                        const Chunk& chunk, std::int64_t num_vectors, float* s) noexcept {
  if (sequence.tree_bits != nullptr) {
    for (std::int64_t j = chunk.begin; j < chunk.end; ++j) {
      if (!is_visible(call.spec.mask, call.spec.alignment, sequence, query, chunk.first + j)) {
        s[j] = kNegativeInfinity;
      }
    }
  }
  const KeyRange seen = visible_part(call, sequence, query, chunk);
  for (std::int64_t j = 0; j < num_vectors * kLanes; j += kLanes) {
    if (seen.begin <= j && seen.end >= j + kLanes) continue;
    store(s + j, keep_lanes(load(s + j), seen.begin - j, seen.end - j, set1(kNegativeInfinity)));
  }
}

// O of one row times a factor.
inline void scale_row(const RowStates& states, std::int64_t row, float factor) noexcept {
  float* o = states.o(row);
  for (std::int64_t d = 0; d < states.value_dim; d += kLanes) {
    store(o + d, mul(load(o + d), set1(factor)));
  }
}

// A maximum this much too small (in powers of two) is kept: larger weights lose nothing, and O need
// not be scaled for every new maximum.
inline constexpr float kMaxSlack = 4.0F;
inline constexpr float kMaxSlackFactor = 16.0F;

// Up to this magnitude of the maximum the exact product of a score and its unit may stand beside
// the rounded one that the maximum is: they differ by less than one. Far beyond they differ by more
// than f32 can hold as a power of two. False for infinities and NaN.
inline bool is_near_exact(float max) noexcept {
  return std::fabs(max) < 16777216.0F;
}

// f(i) for every vector: kCount of them, known to the compiler, or num_vectors if that is 0.
template <int kCount, class F>
QUIRE_INLINE void for_vectors(std::int64_t num_vectors, F&& f) noexcept {
  if constexpr (kCount > 0) {
    QUIRE_UNROLL
    for (int i = 0; i < kCount; ++i) f(i);
  } else {
    for (std::int64_t i = 0; i < num_vectors; ++i) f(i);
  }
}

// Of one row: adds the weights to the sums, lane by lane. v_scales [keys], if any, are multiplied
// into the weights alone; a weight of 0 stays 0 whatever the scale of its key holds. A kept maximum
// lets weights grow to about 2^kMaxSlack, and with kExact false, for any maximum, no further.
template <class Ops, int kCount, bool kExact>
QUIRE_INLINE void weigh(const float* s, std::int64_t num_vectors, float factor, float max,
                        const float* v_scales, float* sums, typename Ops::A* p) noexcept {
  Vec sum = load(sums);
  for_vectors<kCount>(num_vectors, [&](std::int64_t i) QUIRE_INLINE_LAMBDA {
    const Vec score = load(s + i * kLanes);
    const Vec below_max = kExact ? exact_fms(score, set1(factor), set1(max))
                                 : sub(mul(score, set1(factor)), set1(max));
    const Vec x = Ops::power_of_two(below_max);
    sum = add(sum, x);
    if (v_scales == nullptr) {
      Ops::store_weights(p + i * kLanes, x);
    } else {
      Ops::store_scaled_weights(p + i * kLanes,
                                zero_where_zero(x, mul(x, load(v_scales + i * kLanes))));
    }
  });
  store(sums, sum);
}

// s are scores, `factor` their unit. Returns what O must be multiplied with first. There are kCount
// vectors, or num_vectors if that is 0. REQUIRES: factor > 0.
template <class Ops, int kCount>
QUIRE_INLINE float soften_row(const float* s, std::int64_t num_vectors, float factor,
                              const float* v_scales, float* max, float* sums,
                              typename Ops::A* p) noexcept {
  Vec top = set1(kNegativeInfinity);
  for_vectors<kCount>(num_vectors, [&](std::int64_t i) QUIRE_INLINE_LAMBDA {
    top = max_of(load(s + i * kLanes), top);
  });
  top = mul(top, set1(factor));
  float rescale = 1.0F;
  if (any_greater(top, set1(*max + kMaxSlack)) || *max == kNegativeInfinity) [[unlikely]] {
    const float new_max = reduce_max(top);
    if (new_max == kNegativeInfinity) {
      // Nothing visible yet, unless all that is visible is NaN.
      bool nan = false;
      for (std::int64_t i = 0; i < num_vectors; ++i) nan = nan || any_nan(load(s + i * kLanes));
      if (!nan) {
        for (std::int64_t i = 0; i < num_vectors; ++i) {
          if (v_scales == nullptr) {
            Ops::store_weights(p + i * kLanes, zero());
          } else {
            Ops::store_scaled_weights(p + i * kLanes, zero());
          }
        }
        return 1.0F;
      }
      *max = 0.0F;
    } else {
      rescale = *max == kNegativeInfinity ? 1.0F : std::exp2(*max - new_max);
      store(sums, mul(load(sums), set1(rescale)));
      *max = new_max;
    }
  }
  if (is_near_exact(*max)) [[likely]] {
    weigh<Ops, kCount, true>(s, num_vectors, factor, *max, v_scales, sums, p);
  } else {
    weigh<Ops, 0, false>(s, num_vectors, factor, *max, v_scales, sums, p);
  }
  return rescale;
}
