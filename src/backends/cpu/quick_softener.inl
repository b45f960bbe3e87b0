// SPDX-License-Identifier: Apache-2.0
// From scores to weights, for what most calls ask for.

// Softens rows [first, last) of a block whose scores are only scaled and masked, one at a time and
// in parts of kVectorsAtOnce vectors: other work may be done between them, and on some cores at the
// same time. REQUIRES: the chunk is kWidth wide; every key has scales of its own, or kPerToken is
// false.
//
// It takes the old maximum and looks afterwards whether that was good enough, which it nearly
// always is; else the row is done again.
template <class Ops, int kVectorsAtOnce, bool kMasked, std::int64_t kWidth = Ops::kWideChunk,
          bool kPerToken = false>
class QuickSoftener {
 public:
  static constexpr int kVectors = kWidth / kLanes;
  static constexpr int kParts = kVectors / kVectorsAtOnce;
  // Weights wait in registers until the scores whose place they take are not needed any more.
  static constexpr bool kHolds = Ops::kWeightsInPlace && !kPerToken;

  QuickSoftener(const ScoresOfChunk<Ops>& chunk, const RowBlock<Ops>& block, std::int64_t first,
                std::int64_t last) noexcept
      : chunk_(chunk), block_(block), factor_(chunk.score_factor()), row_(first), last_(last) {
    if constexpr (kMasked) {
      present_ = vectors_below(block.num_vectors);
      masked_ = ~(vectors_below(block.clear.end) & ~vectors_below(block.clear.begin));
      if (first < last) find_query();
    }
    // Everything of a row waits for its maximum, which lies beside O, far from the row before it.
    if constexpr (Ops::kPipelined) {
      for (std::int64_t r = first; r < last; ++r) __builtin_prefetch(&block.states.max(r), 0, 3);
    }
  }

  // A row in registers.
  struct Hand {
    const float* s;
    typename Ops::A* p;
    KeyRange seen;
    std::uint32_t present;  // vectors of the chunk that the block has scores of, a bit for each
    std::uint32_t masked;   // those of which some rows do not see some keys
    Vec factor;
    Vec max;
    Vec sum;   // of the weights of this chunk
    Vec even;  // weights that wait for those of the next vector
    typename Ops::Weights pairs[kHolds ? kVectors / 2 : 1];
  };

  bool ready() const noexcept { return row_ < last_; }
  QUIRE_INLINE Hand take() noexcept {
    Hand hand;
    hand.s = block_.scores + row_ * score_stride<float>(kWidth);
    hand.p = block_.weights + row_ * ScoresOfChunk<Ops>::weight_stride(kWidth, kPerToken);
    if constexpr (kMasked) {
      if (row_ == next_query_row_) find_query();
      hand.seen = seen_;
      hand.present = present_;
      hand.masked = masked_;
    }
    float& max = block_.states.max(row_);
    if (max == kNegativeInfinity) [[unlikely]] {
      max = first_max(hand);
    }
    hand.factor = set1(factor_);
    hand.max = set1(max);
    hand.sum = zero();
    return hand;
  }
  template <int kPart>
  QUIRE_INLINE void part(Hand& hand) const noexcept {
    static_assert(kVectorsAtOnce <= 2);
    soften_vector<kPart * kVectorsAtOnce>(hand);
    if constexpr (kVectorsAtOnce == 2) soften_vector<kPart * 2 + 1>(hand);
  }
  QUIRE_INLINE void put(const Hand& hand) noexcept {
    // More than this only if a score is above the maximum by more than kMaxSlack. A maximum of the
    // scores would wait for the unit that tile products leave least of.
    constexpr float kMaxSum = kVectors * kMaxSlackFactor;
    if (any_greater(hand.sum, set1(kMaxSum)) || !is_near_exact(block_.states.max(row_)))
        [[unlikely]] {
      chunk_.soften_one(block_, row_);
    } else {
      float* sums = block_.sums + row_ * kMaxLanes;
      store(sums, add(load(sums), hand.sum));
      if constexpr (kHolds) store_pairs(hand);
    }
    ++row_;
  }

  // Those that are left, and before_row() before each of them.
  void finish() noexcept {
    finish([] {});
  }
  template <class BeforeRow>
  void finish(BeforeRow&& before_row) noexcept {
    while (ready()) {
      before_row();
      Hand hand = take();
      [&]<int... kPart>(std::integer_sequence<int, kPart...>) QUIRE_INLINE_LAMBDA {
        (part<kPart>(hand), ...);
      }
      (std::make_integer_sequence<int, kParts>());
      put(hand);
    }
  }

 private:
  static_assert(kVectors < 32);
  static constexpr std::uint32_t vectors_below(std::int64_t count) noexcept {
    return (1U << std::clamp<std::int64_t>(count, 0, kVectors)) - 1U;
  }
  // What the current row sees. Rows of one query see the same keys.
  void find_query() noexcept {
    const std::int64_t query = chunk_.query_of_row(block_, row_);
    seen_ = chunk_.keys_of_query(query);
    next_query_row_ = chunk_.first_row(block_, query + 1);
  }
  QUIRE_INLINE static bool is_present(const Hand& hand, int vector) noexcept {
    return !kMasked || (hand.present >> vector & 1U) != 0;
  }
  template <int kVector>
  QUIRE_INLINE Vec score(const Hand& hand) const noexcept {
    Vec s = load(hand.s + kVector * kLanes);
    if constexpr (kPerToken) s = mul(s, chunk_.k_scale(kVector));
    if (kMasked && (hand.masked >> kVector & 1U) != 0) s = visible(s, hand.seen, kVector);
    return s;
  }
  QUIRE_INLINE static Vec visible(Vec s, const KeyRange& seen, std::int64_t vector) noexcept {
    return keep_lanes(s, seen.begin - vector * kLanes, seen.end - vector * kLanes,
                      set1(kNegativeInfinity));
  }

  template <int kVector>
  QUIRE_INLINE void soften_vector(Hand& hand) const noexcept {
    if (!is_present(hand, kVector)) return;
    const Vec weight = Ops::power_of_two(exact_fms(score<kVector>(hand), hand.factor, hand.max));
    typename Ops::A* p = hand.p + kVector * kLanes;
    if constexpr (kPerToken) {
      hand.sum = add(hand.sum, weight);
      const Vec scaled = zero_where_zero(weight, mul(weight, chunk_.v_scale(kVector)));
      if constexpr (!Ops::kWeightsInPlace) {
        Ops::store_scaled_weights(p, scaled);
      } else if constexpr (kVector % 2 == 0) {
        hand.even = scaled;
      } else {
        Ops::store_scaled_weights(p - kLanes, hand.even, scaled);
      }
    } else if constexpr (!Ops::kWeightsInPlace) {
      hand.sum = add(hand.sum, weight);
      Ops::store_weights(p, weight);
    } else if constexpr (kVector % 2 == 0) {
      hand.even = weight;
    } else {
      hand.sum = add(hand.sum, add(hand.even, weight));
      hand.pairs[kVector / 2] = Ops::round_weights(hand.even, weight);
    }
  }
  QUIRE_INLINE static void store_pairs(const Hand& hand) noexcept {
    QUIRE_UNROLL
    for (int i = 0; i < kVectors / 2; ++i) {
      if (!is_present(hand, 2 * i)) break;
      Ops::store_weights(hand.p + 2 * i * kLanes, hand.pairs[i]);
    }
  }

  // The largest score, if no chunk has been seen before: -inf where nothing is visible yet. Of all
  // vectors, so that the weight that counts most is 1, which bf16 holds exactly.
  QUIRE_INLINE float first_max(const Hand& hand) const noexcept {
    Vec top[2] = {set1(kNegativeInfinity), set1(kNegativeInfinity)};  // neither waits for the other
    [&]<int... kVector>(std::integer_sequence<int, kVector...>) QUIRE_INLINE_LAMBDA {
      ((top[kVector % 2] = is_present(hand, kVector)
                               ? max_of(score<kVector>(hand), top[kVector % 2])
                               : top[kVector % 2]),
       ...);
    }
    (std::make_integer_sequence<int, kVectors>());
    return reduce_max(mul(max_of(top[0], top[1]), set1(factor_)));
  }

  const ScoresOfChunk<Ops>& chunk_;
  const RowBlock<Ops>& block_;
  const float factor_;
  std::int64_t row_;
  const std::int64_t last_;
  // With kMasked, of the block, and of the query of the current row:
  std::uint32_t present_ = 0;
  std::uint32_t masked_ = 0;
  KeyRange seen_;
  std::int64_t next_query_row_ = 0;  // the first row of the query after it
};
