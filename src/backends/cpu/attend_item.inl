// SPDX-License-Identifier: Apache-2.0
// The algorithm of the CPU backend, once, over the vectors of a level (vec.inl) and a way to
// multiply (Ops). Included into the level's namespace after matrix.inl, panels.inl and softmax.inl.
//
//   load Q;  for each chunk of 64 keys, for each kv head of the item:
//     S = Q K^T;  scale, cap, slope, bias, mask;  P = online softmax;  O += P V
//
// The heads of a chunk come before the next chunk, so that memory is read in whole blocks.

// The part of an item that belongs to one kv head.
template <class Ops>
struct HeadRows {
  std::int64_t kv_head;
  IndexRange rows;     // of the sequence: token * group + head in group
  typename Ops::A* q;  // [rows, q_stride]
  std::int64_t q_stride;
  float* sums;       // [rows, kMaxLanes]
  RowStates states;  // [rows]
};

// q of the rows as Ops::A, 0 beyond head_dim.
template <class Ops>
inline void load_queries(const AttendCall& call, const WorkItem& item,
                         const HeadRows<Ops>& head) noexcept {
  const std::int64_t group = call.spec.head_group();
  const std::int64_t first_token = call.batch.queries.begins[item.sequence];
  const std::int64_t dims = call.spec.head_dim;
  dispatch_dtype(call.q.dtype, [&]<class T>() {
    for (std::int64_t row = head.rows.begin; row < head.rows.end; ++row) {
      const std::int64_t token = first_token + row / group;
      const std::int64_t q_head = head.kv_head * group + row % group;
      const T* q = static_cast<const T*>(call.q.data) + token * call.q.strides[0] +
                   q_head * call.q.strides[1];
      typename Ops::A* out = head.q + (row - head.rows.begin) * head.q_stride;
      Ops::load_query(q, dims, head.q_stride, out);
    }
  });
}

// The keys that every row of a range may see; chunks inside need no mask.
inline KeyRange keys_all_see(const AttendCall& call, const SequenceView& sequence,
                             const IndexRange& rows) noexcept {
  if (call.params.bias.present()) return {0, 0};  // which may hide any
  const std::int64_t group = call.spec.head_group();
  const std::int64_t first = rows.begin / group;
  const std::int64_t last = (rows.end - 1) / group;
  if (sequence.tree_bits != nullptr) {
    const std::int64_t begin = first_old_key_seen(call.spec.mask, sequence);
    const bool windowed = call.spec.mask.window_left >= 0 || call.spec.mask.chunk > 0;
    return windowed ? KeyRange{0, 0} : KeyRange{begin, sequence.first_new()};
  }
  const KeyRange low = keys_seen(call.spec.mask, call.spec.alignment, sequence, first, first + 1);
  const KeyRange high = keys_seen(call.spec.mask, call.spec.alignment, sequence, last, last + 1);
  return {std::max(low.begin, high.begin), std::min(low.end, high.end)};
}

// S = q.k along the dims of plain rows of K, four keys at a time; the lanes of sixteen keys are
// then added up together.
template <class T>
inline void score_along_dims(const float* q, std::int64_t q_stride, std::int64_t num_rows,
                             const T* const* rows, std::int64_t width, std::int64_t dims, float* s,
                             PrefetchWalk& ahead) noexcept {
  constexpr int kKeys = 4;
  const auto block = [&]<int kRows>(std::int64_t r) {
    for (std::int64_t first = 0; first < width; first += kLanes) {
      Vec lanes[kRows][kLanes];
      for (std::int64_t j = 0; j < kLanes; j += kKeys) {
        Vec sum[kRows][kKeys];
        QUIRE_UNROLL
        for (int i = 0; i < kRows; ++i) {
          QUIRE_UNROLL
          for (int k = 0; k < kKeys; ++k) sum[i][k] = zero();
        }
        const T* const* keys = rows + first + j;
        for (std::int64_t d = 0; d < dims; d += kLanes) {
          Vec x[kKeys];
          QUIRE_UNROLL
          for (int k = 0; k < kKeys; ++k) x[k] = load_row(keys[k] + d);
          ahead.step();
          ahead.step();
          QUIRE_UNROLL
          for (int i = 0; i < kRows; ++i) {
            const Vec factor = load(q + (r + i) * q_stride + d);
            QUIRE_UNROLL
            for (int k = 0; k < kKeys; ++k) sum[i][k] = fma(x[k], factor, sum[i][k]);
          }
        }
        QUIRE_UNROLL
        for (int i = 0; i < kRows; ++i) {
          QUIRE_UNROLL
          for (int k = 0; k < kKeys; ++k) lanes[i][j + k] = sum[i][k];
        }
      }
      QUIRE_UNROLL
      for (int i = 0; i < kRows; ++i) store(s + (r + i) * width + first, add_lanes(lanes[i]));
    }
  };
  std::int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) block.template operator()<4>(r);
  for (; r + 2 <= num_rows; r += 2) block.template operator()<2>(r);
  for (; r < num_rows; ++r) block.template operator()<1>(r);
}

// The scale of all keys of a head, where they share one.
inline float shared_scale(const KvCacheView& cache, const KvScales& scales,
                          std::int64_t kv_head) noexcept {
  const bool shared = cache.format.scales == ScaleGranularity::kPerTensor ||
                      cache.format.scales == ScaleGranularity::kPerHead;
  return shared ? scales.data[scale_offset(scales, 0, kv_head, 0)] : 1.0F;
}

// The rows of one head that go through a chunk together.
template <class Ops>
struct RowBlock {
  std::int64_t kv_head;
  IndexRange rows;     // of the sequence
  typename Ops::A* q;  // [rows, q_stride]
  std::int64_t q_stride;
  float* sums;               // [rows, kMaxLanes]
  RowStates states;          // [rows]
  float* scores;             // [rows, chunk width]
  typename Ops::A* weights;  // as scores
  bool all_visible;  // every row sees every key of the chunk: no mask, and memory as it lies
};

// One chunk of one kv head.
template <class Ops, class T>
class ChunkOfHead {
 public:
  ChunkOfHead(const AttendCall& call, const WorkItem& item, const Scratch& scratch,
              const Chunk& chunk, const SequenceView& sequence, PrefetchWalk& ahead) noexcept
      : call_(call),
        item_(item),
        scratch_(scratch),
        chunk_(chunk),
        sequence_(sequence),
        ahead_(ahead),
        num_vectors_(round_up(chunk.end, Ops::kKeyStep) / kLanes),
        plain_scores_(call.params.softcap <= 0.0F && call.params.alibi_slopes.empty() &&
                      !call.params.bias.present()),
        per_token_(call.cache.format.scales == ScaleGranularity::kPerTokenHead) {}

  void attend(const HeadRows<Ops>& head) noexcept {
    keys_ = Place::kUnknown;
    values_ = Place::kUnknown;
    load_all_scales(head.kv_head);
    if (Ops::kPipelined && head.rows.size() > Ops::kRowBlock) {
      attend_pipelined(head);
      return;
    }
    for (std::int64_t r = 0; r < head.rows.size(); r += Ops::kRowBlock) {
      const IndexRange rows = block_rows(head, r);
      if (!sees(rows)) continue;
      const RowBlock<Ops> block = row_block(head, rows, 0);
      score(block);
      soften(block, 0, rows.size());
      accumulate(block);
    }
  }

 private:
  enum class Place { kUnknown, kPanel, kFinitePanel, kPanelWithSpecials };

  bool tiled() const noexcept { return call_.cache.format.layout == KvLayoutId::kPairTiled; }
  std::int64_t num_units() const noexcept {
    return round_up(chunk_.end, Ops::kKeyStep < kPairTile ? kPairTile : Ops::kKeyStep) / kPairTile;
  }
  const T* head_of(const void* base, const KvStrides& strides,
                   std::int64_t kv_head) const noexcept {
    return static_cast<const T*>(base) + kv_head * strides.head;
  }
  typename Ops::Panel* k_panel() const noexcept {
    return reinterpret_cast<typename Ops::Panel*>(scratch_.k);
  }
  typename Ops::Panel* v_panel() const noexcept {
    return reinterpret_cast<typename Ops::Panel*>(scratch_.v);
  }
  // Three blocks are under way at once: the values of the first are added while half of the second
  // is softened, and the scores of the third computed while the other half is. Tiles and vectors
  // are units apart, so both work at the same time.
  void attend_pipelined(const HeadRows<Ops>& head) noexcept {
    if constexpr (Ops::kPipelined) {
      RowBlock<Ops> blocks[3];  // by their number modulo 3
      int count = 0;            // scored so far
      const auto at = [&](int i) -> const RowBlock<Ops>& { return blocks[i % 3]; };
      for (std::int64_t r = 0; r < head.rows.size(); r += Ops::kRowBlock) {
        const IndexRange rows = block_rows(head, r);
        if (!sees(rows)) continue;
        blocks[count % 3] = row_block(head, rows, count % 2);
        if (count == 0) {
          score(at(0));
        } else {
          const RowBlock<Ops>& middle = at(count - 1);
          const std::int64_t half = count == 1 ? 0 : middle.rows.size() / 2;
          if (count > 1) accumulate_while_softening(at(count - 2), middle, half);
          score_while_softening(at(count), middle, half);
        }
        ++count;
      }
      if (count == 0) return;
      const RowBlock<Ops>& last = at(count - 1);
      if (count > 1) accumulate_while_softening(at(count - 2), last, last.rows.size());
      if (count == 1) soften(last, 0, last.rows.size());
      accumulate(last);
    }
  }

  IndexRange block_rows(const HeadRows<Ops>& head, std::int64_t r) const noexcept {
    return {head.rows.begin + r, std::min(head.rows.end, head.rows.begin + r + Ops::kRowBlock)};
  }

  RowBlock<Ops> row_block(const HeadRows<Ops>& head, const IndexRange& rows,
                          std::int64_t buffer) const noexcept {
    const KeyRange all = keys_all_see(call_, sequence_, rows);
    const std::int64_t r = rows.begin - head.rows.begin;
    return {.kv_head = head.kv_head,
            .rows = rows,
            .q = head.q + r * head.q_stride,
            .q_stride = head.q_stride,
            .sums = head.sums + r * kMaxLanes,
            .states = head.states.from(r),
            .scores = scratch_.scores + buffer * Ops::kRowBlock * chunk_.width,
            .weights = reinterpret_cast<typename Ops::A*>(scratch_.weights) +
                       buffer * Ops::kRowBlock * chunk_.width,
            .all_visible = chunk_.whole() && chunk_.first >= all.begin &&
                           chunk_.first + chunk_.end <= all.end};
  }

  // May any of the rows see a key of the chunk?
  bool sees(const IndexRange& rows) const noexcept {
    const std::int64_t group = call_.spec.head_group();
    const KeyRange seen = keys_seen(call_.spec.mask, call_.spec.alignment, sequence_,
                                    rows.begin / group, (rows.end - 1) / group + 1);
    return seen.begin < chunk_.first + chunk_.end && seen.end > chunk_.first + chunk_.begin;
  }

  // Softens the rows [first, last) of a block, some with every call.
  class Softener {
   public:
    Softener(const ChunkOfHead& chunk, const RowBlock<Ops>& block, std::int64_t first,
             std::int64_t last, std::int64_t num_calls) noexcept
        : chunk_(chunk),
          block_(block),
          row_(first),
          last_(last),
          rows_per_call_((last - first + num_calls - 1) / num_calls) {}
    QUIRE_INLINE void operator()() noexcept {
      const std::int64_t end = std::min(row_ + rows_per_call_, last_);
      for (; row_ < end; ++row_) chunk_.soften_one(block_, row_);
    }
    void finish() noexcept {
      for (; row_ < last_; ++row_) chunk_.soften_one(block_, row_);
    }

   private:
    const ChunkOfHead& chunk_;
    const RowBlock<Ops>& block_;
    std::int64_t row_;
    std::int64_t last_;
    std::int64_t rows_per_call_;
  };

  // The scores of one block, and the rows of another from `first` on softened meanwhile.
  void score_while_softening(const RowBlock<Ops>& block, const RowBlock<Ops>& other,
                             std::int64_t first) noexcept {
    const std::int64_t steps =
        (num_vectors_ + 1) / 2 * (padded_dims(call_.spec.head_dim) / Ops::kDimStep);
    Softener meanwhile(*this, other, first, other.rows.size(), steps);
    if (block.rows.size() > Ops::kRowBlock / 2) {
      score_from(block, [&](const auto& keys) {
        Ops::multiply_meanwhile(block.q, block.q_stride, keys, num_vectors_, block.scores,
                                chunk_.width, true, ahead_, meanwhile);
      });
    } else {
      score(block);
    }
    meanwhile.finish();
  }

  // The values of one block, and the rows of another up to `last` softened meanwhile.
  void accumulate_while_softening(const RowBlock<Ops>& block, const RowBlock<Ops>& other,
                                  std::int64_t last) noexcept {
    const std::int64_t columns = (call_.spec.value_dim + 2 * kLanes - 1) / (2 * kLanes);
    Softener meanwhile(*this, other, 0, last, columns * (num_vectors_ * kLanes / Ops::kKeyStep));
    if (!per_token_ && block.rows.size() > Ops::kRowBlock / 2) {
      accumulate_from(block, [&](const auto& values, std::int64_t vectors) {
        Ops::multiply_meanwhile(block.weights, chunk_.width, values, vectors, block.states.data,
                                block.states.stride, false, ahead_, meanwhile);
      });
    } else {
      accumulate(block);
    }
    meanwhile.finish();
  }

  void score(const RowBlock<Ops>& block) noexcept {
    score_from(block, [&](const auto& keys) {
      Ops::multiply(block.q, false, block.q_stride, block.rows.size(), keys, num_vectors_,
                    block.scores, chunk_.width, true, ahead_);
    });
  }
  // Calls multiply(keys) with K as it lies, or as a panel.
  template <class Multiply>
  void score_from(const RowBlock<Ops>& block, Multiply&& multiply) noexcept {
    const std::int64_t dims = call_.spec.head_dim;
    const T* k = head_of(call_.cache.k, call_.cache.k_strides, block.kv_head);
    if (tiled()) {
      TiledKeys<Ops, T> keys;
      keys.pairs = dims / 2;
      find_units<true>(k, chunk_.k, chunk_.width, keys.units);
      if (chunk_.whole() && block.all_visible && item_.rows.size() <= Ops::kInPlaceRows &&
          dims % Ops::kDimStep == 0) {
        multiply(keys);
        return;
      }
      if (keys_ != Place::kPanel) pack_tiled_keys(keys.units, dims, k_panel(), chunk_.width);
    } else {
      const T* rows[kMaxChunk];
      find_rows(k, chunk_.k, chunk_.width, rows);
      if constexpr (Ops::kAlongDimsRows > 0) {
        // f32 queries want all keys of a row summed in one order, that of the panels.
        if (block.all_visible && block.rows.size() <= Ops::kAlongDimsRows && dims % kLanes == 0 &&
            call_.spec.q_dtype != DType::kF32) {
          score_along_dims(block.q, block.q_stride, block.rows.size(), rows, chunk_.width, dims,
                           block.scores, ahead_);
          return;
        }
      }
      if (keys_ != Place::kPanel) pack_plain_keys(rows, dims, k_panel(), chunk_.width, ahead_);
    }
    keys_ = Place::kPanel;
    multiply(PanelSource<Ops>{k_panel(), chunk_.width, Ops::panel_pairs(dims)});
  }

  // The scales of the keys, 1 for absent ones, where each key has its own.
  void load_scales(const KvScales& scales, const std::int64_t* offsets, std::int64_t kv_head,
                   float* out) const noexcept {
    const float* first = scales.data + kv_head * scales.strides.head;
    for (std::int64_t j = 0; j < chunk_.width; j += kLanes) {
      // Those of one block lie side by side in a cache that quire allocated.
      if (chunk_.whole() && offsets[j + kLanes - 1] - offsets[j] == kLanes - 1 &&
          scales.strides.token == 1) {
        store(out + j, load(first + offsets[j]));
        continue;
      }
      for (std::int64_t i = j; i < j + kLanes; ++i) {
        out[i] = chunk_.k[i] == kAbsent ? 1.0F : first[offsets[i]];
      }
    }
  }
  void load_all_scales(std::int64_t kv_head) noexcept {
    k_scale_ = shared_scale(call_.cache, call_.cache.k_scales, kv_head);
    if (!per_token_) return;
    load_scales(call_.cache.k_scales, chunk_.k_scale, kv_head, k_scales_);
    load_scales(call_.cache.v_scales, chunk_.v_scale, kv_head, v_scales_);
  }

  void soften(const RowBlock<Ops>& block, std::int64_t first, std::int64_t last) const noexcept {
    for (std::int64_t r = first; r < last; ++r) soften_one(block, r);
  }

  void soften_one(const RowBlock<Ops>& block, std::int64_t r) const noexcept {
    const std::int64_t group = call_.spec.head_group();
    const std::int64_t row = block.rows.begin + r;
    const float scale = call_.params.scale * k_scale_;
    float* s = block.scores + r * chunk_.width;
    float factor = scale * kLog2E;
    if (per_token_) {
      for (std::int64_t i = 0; i < num_vectors_ * kLanes; i += kLanes) {
        store(s + i, mul(load(s + i), load(k_scales_ + i)));
      }
    }
    if (!plain_scores_) {
      const ScoreRow place = {item_.sequence, row / group, block.kv_head * group + row % group};
      finish_scores(call_, sequence_, place, chunk_, num_vectors_, scale, s);
      factor = kLog2E;
    }
    if (!block.all_visible) mask_scores(call_, sequence_, row / group, chunk_, num_vectors_, s);
    const auto soften_vectors = [&]<int kCount>() {
      return soften_row<Ops, kCount>(s, num_vectors_, factor, per_token_ ? v_scales_ : nullptr,
                                     &block.states.max(r), block.sums + r * kMaxLanes,
                                     block.weights + r * chunk_.width);
    };
    constexpr int kFull = Ops::kWideChunk / kLanes;
    const float rescale = num_vectors_ == kFull ? soften_vectors.template operator()<kFull>()
                                                : soften_vectors.template operator()<0>();
    if (rescale == 1.0F) return;
    float* o = block.states.o(r);
    for (std::int64_t d = 0; d < call_.spec.value_dim; d += kLanes) {
      store(o + d, mul(load(o + d), set1(rescale)));
    }
  }

  // V into its panel, once.
  void pack_values(const RowBlock<Ops>& block, std::int64_t stride) noexcept {
    const std::int64_t dims = call_.spec.value_dim;
    const std::int64_t num_keys = num_units() * kPairTile;
    const T* v = head_of(call_.cache.v, call_.cache.v_strides, block.kv_head);
    if (tiled()) {
      const T* units[kMaxChunk / kPairTile];
      if (call_.cache.format.v_in_k) {
        find_units<true>(v, chunk_.v, chunk_.width, units);
        pack_values_of_keys(units, num_units(), dims, v_panel(), stride);
      } else {
        find_units<false>(v, chunk_.v, chunk_.width, units);
        pack_tiled_values(units, call_.cache.format.block_size * std::int64_t{kPairTile},
                          num_units(), dims, v_panel(), stride);
      }
      Ops::clear_absent(chunk_, num_keys, dims, v_panel(), stride);
    } else {
      const T* rows[kMaxChunk];
      find_rows(v, chunk_.v, chunk_.width, rows);
      pack_plain_values(rows, num_keys, dims, v_panel(), stride, ahead_);
    }
    values_ = Place::kPanel;
  }

  // Infinities and NaN in the panel of V, for rows that do not see all of it.
  void look_for_specials(std::int64_t stride) noexcept {
    const bool finite = Ops::all_finite(v_panel(), stride, num_units() * kPairTile,
                                        std::int64_t{call_.spec.value_dim});
    values_ = finite ? Place::kFinitePanel : Place::kPanelWithSpecials;
  }

  // Calls multiply(values, vectors) with V as it lies, if it may be used so.
  template <class Multiply>
  bool accumulate_in_place(const RowBlock<Ops>& block, std::int64_t vectors,
                           Multiply& multiply) const noexcept {
    const std::int64_t dims = call_.spec.value_dim;
    if (!block.all_visible || item_.rows.size() > Ops::kInPlaceRows || dims % kLanes != 0) {
      return false;
    }
    const T* v = head_of(call_.cache.v, call_.cache.v_strides, block.kv_head);
    if (tiled()) {
      if (call_.cache.format.v_in_k) return false;
      TiledValues<Ops, T> values;
      values.tile_stride = call_.cache.format.block_size * std::int64_t{kPairTile};
      values.num_segments = chunk_.width / kPairTile;
      find_units<false>(v, chunk_.v, chunk_.width, values.units);
      multiply(values, vectors);
      return true;
    }
    if constexpr (Ops::kPlainInPlace) {
      const T* rows[kMaxChunk];
      find_rows(v, chunk_.v, chunk_.width, rows);
      multiply(PlainValues<Ops, T>{rows, chunk_.width / 2}, vectors);
      return true;
    }
    return false;
  }

  // Calls multiply(values, vectors) with V as it lies or as a panel, unless a row must not touch
  // some of it.
  template <class Multiply>
  void accumulate_from(const RowBlock<Ops>& block, Multiply&& multiply) noexcept {
    const std::int64_t vectors = (call_.spec.value_dim + kLanes - 1) / kLanes;
    if (accumulate_in_place(block, vectors, multiply)) return;
    const std::int64_t stride = padded_dims(call_.spec.value_dim);
    if (values_ == Place::kUnknown) pack_values(block, stride);
    if (values_ == Place::kPanel && !block.all_visible) look_for_specials(stride);
    if (values_ != Place::kPanelWithSpecials || block.all_visible) {
      multiply(PanelSource<Ops>{v_panel(), stride, num_vectors_ * kLanes / 2}, vectors);
    } else {
      Ops::accumulate_careful(block.weights, chunk_.width, block.rows.size(), per_token_, v_panel(),
                              stride, chunk_.end, vectors, block.states);
    }
  }

  void accumulate(const RowBlock<Ops>& block) noexcept {
    accumulate_from(block, [&](const auto& values, std::int64_t vectors) {
      Ops::multiply(block.weights, per_token_, chunk_.width, block.rows.size(), values, vectors,
                    block.states.data, block.states.stride, false, ahead_);
    });
  }

  const AttendCall& call_;
  const WorkItem& item_;
  const Scratch& scratch_;
  const Chunk& chunk_;
  const SequenceView& sequence_;
  PrefetchWalk& ahead_;
  std::int64_t num_vectors_;  // of scores
  bool plain_scores_;         // nothing is added to them
  bool per_token_;            // every key has its scales
  float k_scale_ = 1.0F;      // else of all keys of the head
  Place keys_ = Place::kUnknown;
  Place values_ = Place::kUnknown;
  alignas(64) float k_scales_[kMaxChunk];
  alignas(64) float v_scales_[kMaxChunk];
};

// The keys of `keys` up to the end of the chunk that holds the first.
inline KeyRange first_chunk(const KeyRange& keys, std::int64_t width) noexcept {
  return {keys.begin, std::min(keys.end, (keys.begin / width + 1) * width)};
}

template <class Ops>
inline HeadRows<Ops> head_rows(const AttendCall& call, const WorkItem& item, const Scratch& scratch,
                               std::int64_t kv_head) noexcept {
  const std::int64_t first = (kv_head - item.kv_heads.begin) * head_row_stride(item.rows.size());
  const std::int64_t q_stride = padded_dims(call.spec.head_dim);
  return {.kv_head = kv_head,
          .rows = item.rows,
          .q = reinterpret_cast<typename Ops::A*>(scratch.q) + first * q_stride,
          .q_stride = q_stride,
          .sums = scratch.sums + first * kMaxLanes,
          .states = scratch.states.from(first)};
}

template <class Ops>
inline void begin_rows(const AttendCall& call, const WorkItem& item,
                       const HeadRows<Ops>& head) noexcept {
  load_queries<Ops>(call, item, head);
  for (std::int64_t r = 0; r < head.rows.size(); ++r) {
    fill_zero(head.states.o(r), padded_dims(call.spec.value_dim));
    fill_zero(head.sums + r * kMaxLanes, kLanes);
    head.states.max(r) = kNegativeInfinity;
  }
}

template <class Ops>
inline void end_rows(const AttendCall& call, const HeadRows<Ops>& head) noexcept {
  const float v_scale = shared_scale(call.cache, call.cache.v_scales, head.kv_head);
  for (std::int64_t r = 0; r < head.rows.size(); ++r) {
    head.states.sum(r) = reduce_add(load(head.sums + r * kMaxLanes));
    if (v_scale == 1.0F) continue;
    float* o = head.states.o(r);
    for (std::int64_t d = 0; d < call.spec.value_dim; d += kLanes) {
      store(o + d, mul(load(o + d), set1(v_scale)));
    }
  }
}

// Keys of a step: more where an item holds many rows of one head.
template <class Ops>
inline std::int64_t chunk_width(const WorkItem& item) noexcept {
  return item.rows.size() > kChunk / 2 ? Ops::kWideChunk : kChunk;
}

template <class Ops, class T>
void attend_item_of(const AttendCall& call, const WorkItem& item, const WorkItem* next,
                    const Scratch& scratch) noexcept {
  const SequenceView sequence = sequence_view(call.batch, item.sequence);
  const std::int64_t width = chunk_width<Ops>(item);
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    begin_rows(call, item, head_rows<Ops>(call, item, scratch, h));
  }
  Chunk chunks[2];
  PrefetchWalk ahead;
  int current = 0;
  KeyRange keys = first_chunk(item.keys, width);
  if (!keys.empty()) locate(call, item.sequence, keys, width, chunks[current]);
  while (!keys.empty()) {
    const KeyRange left = {keys.end, item.keys.end};
    Chunk& following = chunks[1 - current];
    ahead.clear();
    if (!left.empty()) {
      locate(call, item.sequence, first_chunk(left, width), width, following);
      // Many rows of one head wait for arithmetic, not for memory.
      if (width == kChunk) ahead.begin(call, following, item.kv_heads);
    } else if (next != nullptr && !next->keys.empty()) {
      const std::int64_t next_width = chunk_width<Ops>(*next);
      locate(call, next->sequence, first_chunk(next->keys, next_width), next_width, following);
      ahead.begin(call, following, next->kv_heads);
    }
    ChunkOfHead<Ops, T> step(call, item, scratch, chunks[current], sequence, ahead);
    for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
      step.attend(head_rows<Ops>(call, item, scratch, h));
    }
    keys = left.empty() ? left : first_chunk(left, width);
    current = 1 - current;
  }
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    end_rows(call, head_rows<Ops>(call, item, scratch, h));
  }
}
