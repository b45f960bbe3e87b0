// SPDX-License-Identifier: Apache-2.0
// From scores to weights, for what most calls ask for.

// Softens rows [first, last) of a block whose scores are only scaled and masked, kRows at a time
// and in parts of one vector of each: other work may be done between them, and on some cores at the
// same time. REQUIRES: the chunk is kWidth wide; every key has scales of its own, or kPerToken is
// false.
//
// It takes the old maximum and looks afterwards whether that was good enough, which it nearly
// always is; else the row is done again.
template <class Ops, int kRows, bool kMasked, std::int64_t kWidth = Ops::kWideChunk,
          bool kPerToken = false>
class QuickSoftener {
 public:
  static constexpr int kParts = kWidth / kLanes;

  QuickSoftener(const ScoresOfChunk<Ops>& chunk, const RowBlock<Ops>& block, std::int64_t first,
                std::int64_t last) noexcept
      : chunk_(chunk), block_(block), factor_(chunk.score_factor()), row_(first), last_(last) {}

  // Rows in registers.
  struct Hand {
    struct Row {
      const float* s;
      typename Ops::A* p;
      KeyRange seen;
      Vec max;
      Vec top;  // of scores above max, infinite if max is of no use
      Vec sum;
      Vec even;  // weights that wait for those of the next vector
    };
    Row row[kRows];
    Vec factor;
  };

  bool ready() const noexcept { return row_ + kRows <= last_; }
  QUIRE_INLINE Hand take() const noexcept {
    Hand hand;
    hand.factor = set1(factor_);
    QUIRE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      typename Hand::Row& row = hand.row[i];
      row.s = block_.scores + (row_ + i) * score_stride<float>(kWidth);
      row.p = block_.weights + (row_ + i) * score_stride<typename Ops::A>(kWidth);
      if constexpr (kMasked) row.seen = chunk_.keys_of_row(block_, row_ + i);
      float& max = block_.states.max(row_ + i);
      row.top = set1(kNegativeInfinity);
      if (!is_near_exact(max)) [[unlikely]] {
        if (max == kNegativeInfinity) max = first_max(row.s, row.seen);
        if (!is_near_exact(max)) row.top = set1(-kNegativeInfinity);  // to be done again
      }
      row.max = set1(max);
      row.sum = load(block_.sums + (row_ + i) * kMaxLanes);
    }
    return hand;
  }
  template <int kPart>
  QUIRE_INLINE void part(Hand& hand) const noexcept {
    if (kMasked && kPart >= block_.num_vectors) return;
    QUIRE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      typename Hand::Row& row = hand.row[i];
      Vec s = score(row.s, kPart);
      if (kMasked && !is_clear(kPart)) s = visible(s, row.seen, kPart);
      const Vec x = exact_fms(s, hand.factor, row.max);
      row.top = max_of(x, row.top);
      const Vec weight = exp2<Ops::kExp2Degree>(x);
      if constexpr (kPerToken) {
        row.sum = add(row.sum, weight);
        const Vec scaled = zero_where_zero(weight, mul(weight, chunk_.v_scale(kPart)));
        if constexpr (!Ops::kWeightsInPairs) {
          Ops::store_scaled_weights(row.p + kPart * kLanes, scaled);
        } else if constexpr (kPart % 2 == 0) {
          row.even = scaled;
        } else {
          Ops::store_scaled_weights(row.p + (kPart - 1) * kLanes, row.even, scaled);
        }
      } else if constexpr (!Ops::kWeightsInPairs) {
        row.sum = add(row.sum, weight);
        Ops::store_weights(row.p + kPart * kLanes, weight);
      } else if constexpr (kPart % 2 == 0) {
        row.even = weight;
      } else {
        row.sum = add(row.sum, add(row.even, weight));
        Ops::store_weights(row.p + (kPart - 1) * kLanes, Ops::round_weights(row.even, weight));
      }
    }
  }
  QUIRE_INLINE void put(const Hand& hand) noexcept {
    QUIRE_UNROLL
    for (int i = 0; i < kRows; ++i, ++row_) {
      const typename Hand::Row& row = hand.row[i];
      if (any_greater(row.top, set1(kMaxSlack))) [[unlikely]] {
        chunk_.soften_one(block_, row_);
      } else {
        store(block_.sums + row_ * kMaxLanes, row.sum);
      }
    }
  }

  // Those that are left.
  void finish() noexcept {
    QuickSoftener<Ops, 1, kMasked, kWidth, kPerToken> rest(chunk_, block_, row_, last_);
    while (rest.ready()) {
      auto hand = rest.take();
      [&]<int... kPart>(std::integer_sequence<int, kPart...>) QUIRE_INLINE_LAMBDA {
        (rest.template part<kPart>(hand), ...);
      }
      (std::make_integer_sequence<int, kParts>());
      rest.put(hand);
    }
  }

 private:
  QUIRE_INLINE Vec score(const float* s, std::int64_t vector) const noexcept {
    const Vec x = load(s + vector * kLanes);
    if constexpr (kPerToken) return mul(x, chunk_.k_scale(vector));
    return x;
  }
  QUIRE_INLINE bool is_clear(std::int64_t vector) const noexcept {
    return vector >= block_.clear.begin && vector < block_.clear.end;
  }
  QUIRE_INLINE static Vec visible(Vec s, const KeyRange& seen, std::int64_t vector) noexcept {
    return keep_lanes(s, seen.begin - vector * kLanes, seen.end - vector * kLanes,
                      set1(kNegativeInfinity));
  }
  // The largest score, if no chunk has been seen before: -inf where nothing is visible yet. Of all
  // vectors, so that the weight that counts most is 1, which bf16 holds exactly.
  float first_max(const float* s, const KeyRange& seen) const noexcept {
    Vec top = set1(kNegativeInfinity);
    for (std::int64_t i = 0; i < block_.num_vectors; ++i) {
      Vec x = score(s, i);
      if (kMasked && !is_clear(i)) x = visible(x, seen, i);
      top = max_of(x, top);
    }
    return reduce_max(mul(top, set1(factor_)));
  }

  const ScoresOfChunk<Ops>& chunk_;
  const RowBlock<Ops>& block_;
  const float factor_;
  std::int64_t row_;
  const std::int64_t last_;
};
