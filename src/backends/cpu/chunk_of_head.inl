// SPDX-License-Identifier: Apache-2.0
// One chunk of one kv head, as elements T: scores of a block of rows and their values, with K and V
// as they lie in the cache where that is possible, else as panels.

template <class Ops, class T>
class ChunkOfHead : public ScoresOfChunk<Ops> {
 public:
  ChunkOfHead(const AttendCall& call, const WorkItem& item, const SequenceView& sequence,
              const Scratch& scratch, PrefetchWalk& ahead) noexcept
      : ScoresOfChunk<Ops>(call, item, sequence),
        scratch_(scratch),
        ahead_(ahead),
        tiled_(call.cache.format.layout == KvLayoutId::kPairTiled) {}

  // Each call begins another chunk or head, which must stay where it is until it is done with.
  void begin(const Chunk& chunk, std::int64_t kv_head) noexcept {
    this->begin_scores(chunk, kv_head);
    k_ = static_cast<const T*>(call_.cache.k) + kv_head * call_.cache.k_strides.head;
    v_ = static_cast<const T*>(call_.cache.v) + kv_head * call_.cache.v_strides.head;
    k_packed_ = v_packed_ = false;
    tiles_finite_ = panel_finite_ = Finite::kUnknown;
    num_tiles_ = 0;
    if (!tiled_) return;
    find_units<true>(k_, chunk, chunk.k, k_units_);
    if (call_.cache.format.v_in_k) {
      find_units<true>(v_, chunk, chunk.v, v_units_);
    } else {
      find_units<false>(v_, chunk, chunk.v, v_units_);
    }
    if constexpr (Ops::kOnlyTiles) {
      num_tiles_ = take_any_tile(k_units_) && take_any_tile(v_units_) ? chunk.width / kPairTile : 0;
      if (this->per_token() && num_tiles_ > 0) {
        this->clear_scales_of_zeros([&](std::int64_t key) { return is_zero(key); });
      }
      return;
    }
    while (num_tiles_ < chunk.width / kPairTile && k_units_[num_tiles_] != nullptr) ++num_tiles_;
    // A last step of keys that is only half there: the other half is masked, whatever it is read
    // from, so that no panel is needed for it.
    if (num_tiles_ > 1 && num_tiles_ % 2 == 1 && num_units() == num_tiles_ + 1) {
      k_units_[num_tiles_] = k_units_[num_tiles_ - 1];
      v_units_[num_tiles_] = v_units_[num_tiles_ - 1];
      ++num_tiles_;
    }
  }

  // The rows of a head that go through the chunk together, or none (num_vectors is 0) if they see
  // nothing of it. Blocks with other buffers may be under way at the same time. Written in place:
  // a copy would wait until what was stored before is in the cache.
  QUIRE_INLINE void begin_block(const HeadRows<Ops>& head, const RowRange& range,
                                std::int64_t buffer, bool fresh,
                                RowBlock<Ops>& block) const noexcept {
    static_assert(Ops::kRowBlock * (Ops::kPipelined ? 2 : 1) *
                      score_stride<typename Ops::A>(Ops::kWideChunk) <=
                  kMaxScores);
    const std::int64_t r = range.rows.begin - head.rows.begin;
    const std::int64_t first = buffer * Ops::kRowBlock;
    block.kv_head = head.kv_head;
    block.rows = range.rows;
    block.q = head.q + r * head.q_stride;
    block.q_stride = head.q_stride;
    block.sums = head.sums + r * kMaxLanes;
    block.states = head.states.from(r);
    block.scores = scratch_.scores + first * this->score_stride();
    block.weights = reinterpret_cast<typename Ops::A*>(this->weights_in_place(this->per_token())
                                                           ? scratch_.scores
                                                           : scratch_.weights) +
                    first * this->weight_stride();
    block.num_vectors =
        Ops::kOnlyTiles && num_tiles_ == 0 ? 0 : this->visible_vectors(range);  // none is there
    block.clear = this->clear_vectors(range);
    block.all_visible = this->all_visible(range);
    block.fresh = fresh;
  }

  void attend(const HeadRows<Ops>& head, const RowRanges<Ops>& ranges) noexcept {
    for (int i = 0; i < ranges.count; ++i) {
      RowBlock<Ops> block;
      begin_block(head, ranges.range[i], 0, false, block);
      if (block.num_vectors == 0) continue;
      score(block);
      soften_rows(block);
      accumulate(block);
    }
  }

  void score(const RowBlock<Ops>& block) noexcept {
    score_from(block, [&](const auto& keys) {
      Ops::multiply(block.q, false, block.q_stride, block.rows.size(), keys, block.num_vectors,
                    block.scores, this->score_stride(), true, ahead_);
    });
  }
  void accumulate(const RowBlock<Ops>& block) noexcept {
    if constexpr (Ops::kRoundsRows) round_weights(block);
    accumulate_from(block, [&](const auto& values, std::int64_t vectors) {
      Ops::multiply(block.weights, this->per_token(), this->weight_stride(), block.rows.size(),
                    values, vectors, block.states.data, block.states.stride, block.fresh, ahead_);
    });
  }

  void soften_rows(const RowBlock<Ops>& block) const noexcept {
    if (!this->only_scaled_by_token() || !soften_quickly(block)) {
      this->soften(block, 0, block.rows.size());
    }
  }

  // Calls multiply(keys) with K as it lies, or as a panel.
  template <class Multiply>
  void score_from(const RowBlock<Ops>& block, Multiply&& multiply) noexcept {
    const Chunk& chunk = this->chunk();
    const std::int64_t dims = call_.spec.head_dim;
    if (tiled_) {
      if (Ops::kOnlyTiles || (lies_in_tiles(block) && dims % Ops::kDimStep == 0)) {
        TiledKeys<Ops, T> keys;
        keys.units = k_units_;
        keys.pairs = dims / 2;
        multiply(keys);
        return;
      }
      if constexpr (!Ops::kOnlyTiles) {
        if (!k_packed_) pack_tiled_keys(k_units_, dims, k_panel(), chunk.width);
      }
    } else if constexpr (!Ops::kOnlyTiles) {
      const T* rows[kMaxChunk];
      if constexpr (Ops::kPlainRows > 0) {
        // f32 queries want all keys of a row summed in one order, that of the panels.
        if (block.all_visible && block.rows.size() <= Ops::kPlainRows &&
            dims % Ops::kPlainDimStep == 0 && call_.spec.q_dtype != DType::kF32) {
          find_rows(k_, chunk, chunk.k, rows);
          Ops::score_rows(block.q, block.q_stride, block.rows.size(), rows, chunk.width, dims,
                          block.scores, this->score_stride(), ahead_);
          return;
        }
      }
      if (!k_packed_) {
        find_rows(k_, chunk, chunk.k, rows);
        pack_plain_keys(rows, dims, k_panel(), chunk.width, ahead_);
      }
    }
    if constexpr (!Ops::kOnlyTiles) {
      k_packed_ = true;
      multiply(PanelSource<Ops>{k_panel(), chunk.width, Ops::panel_pairs(dims)});
    }
  }

  // Calls multiply(values, vectors) with V as it lies or as a panel. Where it holds infinities or
  // NaN and not every row sees every key, 0 stands for them there, and they are added afterwards to
  // the rows that see them: 0 * NaN would spread to the others, and these must have the bits that
  // they have beside any numbers, in the same order of sums.
  template <class Multiply>
  void accumulate_from(const RowBlock<Ops>& block, Multiply&& multiply) noexcept {
    const std::int64_t vectors = (call_.spec.value_dim + kLanes - 1) / kLanes;
    if (accumulate_in_place(block, vectors, multiply)) return;
    if constexpr (!Ops::kOnlyTiles) {
      const std::int64_t stride = padded_dims(call_.spec.value_dim);
      if (!v_packed_) pack_values(stride);
      if (!block.all_visible) find_if_panel_is_finite(stride);
      multiply(PanelSource<Ops>{v_panel(), stride, block.num_vectors * kLanes / 2}, vectors);
      if (panel_finite_ == Finite::kNo) add_not_finite(block);
    }
  }

 private:
  using ScoresOfChunk<Ops>::call_;
  using ScoresOfChunk<Ops>::item_;
  enum class Finite : std::uint8_t { kUnknown, kYes, kNo };

  // May the tiles of the block's keys be read in place? All must be there, if only for one key of
  // theirs: what the others hold is masked. Tiles are read once for every block of rows; what must
  // be converted is converted once for many.
  bool lies_in_tiles(const RowBlock<Ops>& block) const noexcept {
    return block.num_vectors * kLanes <= num_tiles_ * kPairTile &&
           item_.rows.size() <= Ops::template in_place_rows<T>();
  }
  std::int64_t num_units() const noexcept {
    constexpr std::int64_t kStep = Ops::kKeyStep < kPairTile ? kPairTile : Ops::kKeyStep;
    return round_up(this->chunk().end, kStep) / kPairTile;
  }
  typename Ops::Panel* k_panel() const noexcept {
    return reinterpret_cast<typename Ops::Panel*>(scratch_.k);
  }
  typename Ops::Panel* v_panel() const noexcept {
    return reinterpret_cast<typename Ops::Panel*>(scratch_.v);
  }
  std::int64_t v_tile_stride() const noexcept {
    return call_.cache.format.block_size * std::int64_t{kPairTile};
  }

  // False if chunks are as wide as none for which there is code.
  bool soften_quickly(const RowBlock<Ops>& block) const noexcept {
    const std::int64_t width = this->chunk().width;
    if (width == Ops::kWideChunk) {
      soften_chunk<Ops::kWideChunk>(block);
      return true;
    }
    if constexpr (Ops::kWideChunk != kChunk) {
      if (width == kChunk) {
        soften_chunk<kChunk>(block);
        return true;
      }
    }
    if constexpr (Ops::kLongChunks) {
      if (width == 2 * kChunk) {
        soften_chunk<2 * kChunk>(block);
        return true;
      }
    }
    return false;
  }
  template <std::int64_t kWidth>
  void soften_chunk(const RowBlock<Ops>& block) const noexcept {
    const auto soften_all = [&]<bool kMasked, bool kPerToken>() {
      using Softener = QuickSoftener<Ops, 1, kMasked, kWidth, kPerToken>;
      Softener softener(*this, block, 0, block.rows.size());
      if constexpr (Ops::kFetchesWhileSoftening) {
        if (ahead_.asks_again() && block.rows.size() <= 8) {
          softener.finish([this] { ahead_.step_between_rows(); });
          return;
        }
      }
      softener.finish();
    };
    if (this->per_token()) {
      block.all_visible ? soften_all.template operator()<false, true>()
                        : soften_all.template operator()<true, true>();
    } else {
      block.all_visible ? soften_all.template operator()<false, false>()
                        : soften_all.template operator()<true, false>();
    }
  }

  // V into its panel, once.
  void pack_values(std::int64_t stride) noexcept {
    const Chunk& chunk = this->chunk();
    const std::int64_t dims = call_.spec.value_dim;
    const std::int64_t num_keys = num_units() * kPairTile;
    if (!tiled_) {
      const T* rows[kMaxChunk];
      find_rows(v_, chunk, chunk.v, rows);
      pack_plain_values(rows, num_keys, dims, v_panel(), stride, ahead_);
    } else {
      if (call_.cache.format.v_in_k) {
        pack_values_of_keys(v_units_, num_units(), dims, v_panel(), stride);
      } else {
        pack_tiled_values(v_units_, v_tile_stride(), num_units(), dims, v_panel(), stride);
      }
      if (!chunk.complete) Ops::clear_absent(chunk, num_keys, dims, v_panel(), stride);
    }
    v_packed_ = true;
    tiles_finite_ = Finite::kUnknown;  // their copy had the same place
  }

  // Is all of V finite? If not, 0 takes the place of what is not in the panel.
  void find_if_panel_is_finite(std::int64_t stride) noexcept {
    if (panel_finite_ != Finite::kUnknown) return;
    const std::int64_t num_keys = num_units() * kPairTile;
    const std::int64_t dims = call_.spec.value_dim;
    const bool finite = Ops::all_finite(v_panel(), stride, num_keys, dims);
    if (!finite) Ops::clear_not_finite(v_panel(), stride, num_keys, dims);
    panel_finite_ = finite ? Finite::kYes : Finite::kNo;
  }
  // The same of the tiles that are read in place, and a copy of them.
  bool tiles_are_finite() noexcept {
    if (tiles_finite_ == Finite::kUnknown) {
      const std::int64_t num_units = std::min(this->num_units(), num_tiles_);
      const bool finite = all_tiles_finite(v_units_, v_tile_stride(), num_units,
                                           std::int64_t{call_.spec.value_dim});
      if (!finite) copy_finite_tiles(num_units);
      tiles_finite_ = finite ? Finite::kYes : Finite::kNo;
    }
    return tiles_finite_ == Finite::kYes;
  }
  // Tiles of as many dims side by side, as they lie in a block of the chunk's width.
  void copy_finite_tiles(std::int64_t num_units) noexcept {
    T* copy = reinterpret_cast<T*>(scratch_.v);
    v_packed_ = false;  // its panel has the same place
    panel_finite_ = Finite::kUnknown;
    for (std::int64_t u = 0; u < num_units; ++u) {
      finite_units_[u] = copy + u * kTileElements;
      for (std::int64_t d = 0; d < call_.spec.value_dim; d += kPairTile) {
        const std::int64_t tile = d / kPairTile;
        copy_finite_tile(v_units_[u] + tile * v_tile_stride(),
                         copy + tile * finite_tile_stride() + u * kTileElements);
      }
    }
  }
  std::int64_t finite_tile_stride() const noexcept { return this->chunk().width * kPairTile; }

  // Adds the values that are not finite to the rows that give their keys a weight.
  void add_not_finite(const RowBlock<Ops>& block) const noexcept {
    const Chunk& chunk = this->chunk();
    const std::int64_t end = std::min(chunk.end, block.num_vectors * kLanes);
    for (std::int64_t j = chunk.begin; j < end; ++j) {
      if (chunk.v[j] == kAbsent || !has_weight(block, j)) continue;
      for (std::int64_t d = 0; d < call_.spec.value_dim; ++d) {
        const float x = to_float(v_[chunk.v[j] + place_in_key(d)]);
        if (x - x == 0.0F) continue;
        for (std::int64_t r = 0; r < block.rows.size(); ++r) {
          const float weight = weight_at(block, r, j);
          if (weight != 0.0F) block.states.o(r)[d] += weight * x;
        }
      }
    }
  }
  float weight_at(const RowBlock<Ops>& block, std::int64_t r, std::int64_t key) const noexcept {
    return Ops::weight(block.weights + r * this->weight_stride() + key, this->per_token());
  }
  bool has_weight(const RowBlock<Ops>& block, std::int64_t key) const noexcept {
    for (std::int64_t r = 0; r < block.rows.size(); ++r) {
      if (weight_at(block, r, key) != 0.0F) return true;
    }
    return false;
  }
  // Elements from a key's first value to another.
  std::int64_t place_in_key(std::int64_t dim) const noexcept {
    if (!tiled_) return dim;
    if (call_.cache.format.v_in_k) return dim / 2 * (2 * kPairTile) + dim % 2;
    return dim / kPairTile * v_tile_stride() + dim % kPairTile * 2;
  }

  // Calls multiply(values, vectors) with V as it lies, if it may be used so, or a copy of its form.
  template <class Multiply>
  bool accumulate_in_place(const RowBlock<Ops>& block, std::int64_t vectors,
                           Multiply& multiply) noexcept {
    const Chunk& chunk = this->chunk();
    const std::int64_t dims = call_.spec.value_dim;
    if (tiled_) {
      bool copied = false;
      if constexpr (!Ops::kOnlyTiles) {
        if (!lies_in_tiles(block) || call_.cache.format.v_in_k) return false;
        if (!Ops::reads_in_place(v_units_, item_.rows.size())) return false;
        copied = !block.all_visible && !tiles_are_finite();
      }
      TiledValues<Ops, T> values;
      values.units = copied ? finite_units_ : v_units_;
      values.tile_stride = copied ? finite_tile_stride() : v_tile_stride();
      values.num_segments = block.num_vectors * kLanes / kPairTile;
      multiply(values, vectors);
      if constexpr (!Ops::kOnlyTiles) {
        if (copied) add_not_finite(block);
      }
      return true;
    }
    if constexpr (!Ops::kOnlyTiles) {
      if (!block.all_visible || dims % Ops::kPlainDimStep != 0 ||
          item_.rows.size() > Ops::template plain_value_rows<T>()) {
        return false;
      }
      const T* rows[kMaxChunk];
      find_rows(v_, chunk, chunk.v, rows);
      multiply(PlainValues<Ops, T>{rows, chunk.width / 2}, vectors);
    }
    return true;
  }

  // Of V in tiles.
  T value(std::int64_t key, std::int64_t dim) const noexcept {
    return v_units_[key / kPairTile][dim / kPairTile * v_tile_stride() +
                                     key % kPairTile / 2 * (2 * kPairTile) + dim % kPairTile * 2 +
                                     key % 2];
  }
  bool is_zero(std::int64_t key) const noexcept {
    std::int64_t dim = 0;
    while (dim < call_.spec.value_dim && to_float(value(key, dim)) == 0.0F) ++dim;
    return dim == call_.spec.value_dim;
  }

  // Numbers that are finite whatever their bytes: a tile that is not there is masked, so that any
  // other may be read in its place. False if none is there.
  bool take_any_tile(const T** units) const noexcept {
    const T** end = units + this->chunk().width / kPairTile;
    const T** present = std::find_if(units, end, [](const T* x) { return x != nullptr; });
    if (present == end) return false;
    std::replace(units, end, static_cast<const T*>(nullptr), *present);
    return true;
  }

  // The weights of a chunk as Ops wants them, row by row; what it cannot hold is added here.
  void round_weights(const RowBlock<Ops>& block) const noexcept {
    const std::int64_t count = block.num_vectors * kLanes;
    const std::int64_t stride = this->weight_stride();
    Ops::round_rows(block.weights, stride, block.rows.size(), count, [&](std::int64_t r) {
      const float* weights = block.weights + r * stride;
      float* o = block.states.o(r);
      for (std::int64_t j = 0; j < count; ++j) {
        if (weights[j] == 0.0F) continue;
        for (std::int64_t d = 0; d < call_.spec.value_dim; ++d) {
          o[d] += weights[j] * to_float(value(j, d));
        }
      }
    });
  }

  const Scratch& scratch_;
  PrefetchWalk& ahead_;
  const bool tiled_;
  const T* k_ = nullptr;  // of the head
  const T* v_ = nullptr;
  bool k_packed_ = false;
  bool v_packed_ = false;
  Finite tiles_finite_ = Finite::kUnknown;
  Finite panel_finite_ = Finite::kUnknown;  // kNo: 0 stands for what is not
  std::int64_t num_tiles_ = 0;  // of a tiled layout: units from the first on that are there
  const T* k_units_[kMaxChunk / kPairTile];
  const T* v_units_[kMaxChunk / kPairTile];
  const T* finite_units_[kMaxChunk / kPairTile];  // of the copy, if tiles_finite_ is kNo
};
