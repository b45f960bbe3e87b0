// SPDX-License-Identifier: Apache-2.0
// What becomes of the scores of one chunk and kv head, whatever format K and V are stored in: row
// by row they are scaled, masked and softened.

template <class Ops>
class ScoresOfChunk {
 public:
  ScoresOfChunk(const AttendCall& call, const WorkItem& item, const SequenceView& sequence) noexcept
      : call_(call),
        item_(item),
        sequence_(sequence),
        plain_scores_(call.params.softcap <= 0.0F && call.params.alibi_slopes.empty() &&
                      !call.params.bias.present()),
        per_token_(call.cache.format.scales == ScaleGranularity::kPerTokenHead) {}

  // Each call begins another chunk or head.
  void begin_scores(const Chunk& chunk, std::int64_t kv_head) noexcept {
    chunk_ = &chunk;
    num_vectors_ = round_up(chunk.end, Ops::kKeyStep) / kLanes;
    k_scale_ = shared_scale(call_.cache, call_.cache.k_scales, kv_head);
    if (!per_token_) return;
    load_scales(call_.cache.k_scales, chunk.k_scale, kv_head, k_scales_);
    load_scales(call_.cache.v_scales, chunk.v_scale, kv_head, v_scales_);
  }

  const Chunk& chunk() const noexcept { return *chunk_; }
  // From one row of a block to the next.
  std::int64_t score_stride() const noexcept { return cpu::score_stride<float>(chunk_->width); }
  std::int64_t weight_stride() const noexcept { return weight_stride(chunk_->width, per_token_); }
  static constexpr std::int64_t weight_stride(std::int64_t width, bool per_token) noexcept {
    constexpr std::int64_t kScoreBytes = sizeof(float);
    constexpr std::int64_t kWeightBytes = sizeof(typename Ops::A);
    return weights_in_place(per_token)
               ? cpu::score_stride<float>(width) * kScoreBytes / kWeightBytes
               : cpu::score_stride<typename Ops::A>(width);
  }
  // Weights take the place of their scores, which a near cache still holds, unless they need more.
  static constexpr bool weights_in_place(bool per_token) noexcept {
    return Ops::kWeightsInPlace && !per_token;
  }
  // Every key has scales of its own.
  bool per_token() const noexcept { return per_token_; }

  // Vectors of keys up to the last that some of the rows see; 0 if they see none.
  std::int64_t visible_vectors(const RowRange& rows) const noexcept {
    if (rows.seen.begin >= chunk_->first + chunk_->end ||
        rows.seen.end <= chunk_->first + chunk_->begin) {
      return 0;
    }
    const std::int64_t end = round_up(rows.seen.end - chunk_->first, kSkippedKeys) / kLanes;
    return std::min(num_vectors_, end);
  }
  // Those of which every row sees every key.
  IndexRange clear_vectors(const RowRange& rows) const noexcept {
    const std::int64_t begin = std::max(rows.all.begin - chunk_->first, chunk_->begin);
    const std::int64_t end = std::min(rows.all.end - chunk_->first, chunk_->end);
    return {(begin + kLanes - 1) / kLanes, end / kLanes};
  }
  bool all_visible(const RowRange& rows) const noexcept {
    return chunk_->whole() && chunk_->first >= rows.all.begin &&
           chunk_->first + chunk_->end <= rows.all.end;
  }

  void soften(const RowBlock<Ops>& block, std::int64_t first, std::int64_t last) const noexcept {
    for (std::int64_t r = first; r < last; ++r) soften_one(block, r);
  }

  void soften_one(const RowBlock<Ops>& block, std::int64_t r) const noexcept {
    const std::int64_t row = block.rows.begin + r;
    const float scale = call_.params.scale * k_scale_;
    float* s = block.scores + r * score_stride();
    float factor = scale * kLog2E;
    if (per_token_) {
      for (std::int64_t i = 0; i < block.num_vectors * kLanes; i += kLanes) {
        store(s + i, mul(load(s + i), load(k_scales_ + i)));
      }
    }
    if (!plain_scores_) {
      const std::int64_t group = call_.spec.head_group();
      const ScoreRow place = {item_.sequence, row / group, block.kv_head * group + row % group};
      finish_scores(call_, sequence_, place, *chunk_, block.num_vectors, scale, s);
      factor = kLog2E;
    }
    if (!(factor > 0.0F)) {  // would turn the -inf of hidden keys around
      for (std::int64_t i = 0; i < block.num_vectors * kLanes; i += kLanes) {
        store(s + i, mul(load(s + i), set1(factor)));
      }
      factor = 1.0F;
    }
    if (!block.all_visible) {
      mask_scores(call_, sequence_, row / call_.spec.head_group(), *chunk_, block.num_vectors, s);
    }
    const auto soften_vectors = [&]<int kCount>() {
      return soften_row<Ops, kCount>(s, block.num_vectors, factor, per_token_ ? v_scales_ : nullptr,
                                     &block.states.max(r), block.sums + r * kMaxLanes,
                                     block.weights + r * weight_stride());
    };
    constexpr int kFull = kChunk / kLanes;
    const float rescale = block.num_vectors == kFull ? soften_vectors.template operator()<kFull>()
                                                     : soften_vectors.template operator()<0>();
    if (rescale != 1.0F) scale_row(block.states, r, rescale);
  }

  // What stands between q.k and weights is one factor, or one for each key, and a range of keys
  // that a row sees.
  bool only_scaled_by_token() const noexcept {
    return plain_scores_ && sequence_.tree_bits == nullptr && score_factor() > 0.0F;
  }
  // The query that row r of a block belongs to.
  std::int64_t query_of_row(const RowBlock<Ops>& block, std::int64_t r) const noexcept {
    return (block.rows.begin + r) / call_.spec.head_group();
  }
  // The row of a block that the rows of a query begin with, if they do so there.
  std::int64_t first_row(const RowBlock<Ops>& block, std::int64_t query) const noexcept {
    return query * call_.spec.head_group() - block.rows.begin;
  }
  // The keys of the chunk that a query sees. REQUIRES: only_scaled_by_token().
  KeyRange keys_of_query(std::int64_t query) const noexcept {
    return visible_part(call_, sequence_, query, *chunk_);
  }
  // In units of ln 2. REQUIRES: only_scaled_by_token().
  float score_factor() const noexcept { return call_.params.scale * k_scale_ * kLog2E; }
  // Of a vector of keys. REQUIRES: per_token().
  QUIRE_INLINE Vec k_scale(std::int64_t vector) const noexcept {
    return load(k_scales_ + vector * kLanes);
  }
  QUIRE_INLINE Vec v_scale(std::int64_t vector) const noexcept {
    return load(v_scales_ + vector * kLanes);
  }

 protected:
  // Values that are all 0 have a scale of 1, which may be far above all others: `is_zero` says of a
  // key whether they are, and then their scale becomes 0 too.
  template <class IsZero>
  void clear_scales_of_zeros(IsZero&& is_zero) noexcept {
    for (std::int64_t first = 0; first < chunk_->width; first += kLanes) {
      if (!Ops::any_equal(v_scales_ + first, 1.0F)) [[likely]]
        continue;
      for (std::int64_t j = first; j < first + kLanes; ++j) {
        if (v_scales_[j] == 1.0F && chunk_->v[j] != kAbsent && is_zero(j)) v_scales_[j] = 0.0F;
      }
    }
  }

  const AttendCall& call_;
  const WorkItem& item_;

 private:
  // What rows do not see is left out in steps of this many keys.
  static constexpr std::int64_t kSkippedKeys = 32;

  // The scales of the keys, 1 for absent ones, where each key has its own.
  void load_scales(const KvScales& scales, const std::int64_t* offsets, std::int64_t kv_head,
                   float* out) const noexcept {
    const float* first = scales.data + kv_head * scales.strides.head;
    // Those of one block lie side by side in a cache that quire allocated. Keys of smaller blocks
    // than a vector may lie anywhere between the first and the last.
    const bool ends_tell =
        chunk_->complete && scales.strides.token == 1 && call_.cache.format.block_size >= kLanes;
    for (std::int64_t j = 0; j < chunk_->width; j += kLanes) {
      if (ends_tell && offsets[j + kLanes - 1] - offsets[j] == kLanes - 1) {
        store(out + j, load(first + offsets[j]));
        continue;
      }
      for (std::int64_t i = j; i < j + kLanes; ++i) {
        out[i] = chunk_->k[i] == kAbsent ? 1.0F : first[offsets[i]];
      }
    }
  }

  const SequenceView& sequence_;
  const Chunk* chunk_ = nullptr;
  std::int64_t num_vectors_ = 0;  // of the keys of the chunk
  const bool plain_scores_;       // nothing is added to them
  const bool per_token_;
  float k_scale_ = 1.0F;  // of all keys of the head, unless each has its own
  alignas(64) float k_scales_[kMaxChunk];
  alignas(64) float v_scales_[kMaxChunk];
};
