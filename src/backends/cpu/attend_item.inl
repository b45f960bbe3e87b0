// SPDX-License-Identifier: Apache-2.0
// The algorithm of the CPU backend, once, over the vectors of a level (vec.inl) and a way to
// multiply (Ops). Included into the level's namespace after matrix.inl, panels.inl and softmax.inl.
//
//   load Q;  for each chunk of 64 keys, for each kv head of the item:
//     S = Q K^T;  scale, cap, slope, bias, mask;  P = online softmax;  O += P V
//
// The heads of a chunk come before the next chunk, so that memory is read in whole blocks.

// Rows that read K and V in place; more convert them to panels first, once.
inline constexpr std::int64_t kInPlaceRows = 12;
// Rows that take products with plain rows of K along their dims; more transpose K first.
inline constexpr std::int64_t kAlongDimsRows = 8;

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

// The keys that every row of an item may see; chunks inside need no mask.
inline KeyRange keys_all_see(const AttendCall& call, const SequenceView& sequence,
                             const WorkItem& item) noexcept {
  if (call.params.bias.present()) return {0, 0};  // which may hide any
  const std::int64_t group = call.spec.head_group();
  const std::int64_t first = item.rows.begin / group;
  const std::int64_t last = (item.rows.end - 1) / group;
  const KeyRange low = keys_seen(call.spec.mask, call.spec.alignment, sequence, first, first + 1);
  if (sequence.tree_bits != nullptr) {
    const std::int64_t begin = first_old_key_seen(call.spec.mask, sequence);
    const bool windowed = call.spec.mask.window_left >= 0 || call.spec.mask.chunk > 0;
    return windowed ? KeyRange{0, 0} : KeyRange{begin, sequence.first_new()};
  }
  const KeyRange high = keys_seen(call.spec.mask, call.spec.alignment, sequence, last, last + 1);
  return {std::max(low.begin, high.begin), std::min(low.end, high.end)};
}

// S = q.k along the dims of plain rows of K, four keys at a time; the lanes of sixteen keys are
// then added up together.
template <class T>
inline void score_along_dims(const float* q, std::int64_t q_stride, std::int64_t num_rows,
                             const T* const* rows, std::int64_t dims, float* s,
                             PrefetchWalk& ahead) noexcept {
  constexpr int kKeys = 4;
  const auto block = [&]<int kRows>(std::int64_t r) {
    for (std::int64_t first = 0; first < kChunk; first += kLanes) {
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
      for (int i = 0; i < kRows; ++i) store(s + (r + i) * kChunk + first, add_lanes(lanes[i]));
    }
  };
  std::int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) block.template operator()<4>(r);
  for (; r + 2 <= num_rows; r += 2) block.template operator()<2>(r);
  for (; r < num_rows; ++r) block.template operator()<1>(r);
}

template <class Ops, class T>
struct ChunkOfHead {
  const AttendCall& call;
  const WorkItem& item;
  const Scratch& scratch;
  const Chunk& chunk;
  const SequenceView& sequence;
  bool all_visible;  // to every row: no mask, and memory is used as it lies
  PrefetchWalk& ahead;

  bool tiled() const noexcept { return call.cache.format.layout == KvLayoutId::kPairTiled; }
  std::int64_t num_vectors() const noexcept { return (chunk.end + kLanes - 1) / kLanes; }

  void score(const HeadRows<Ops>& head) const noexcept {
    const std::int64_t dims = call.spec.head_dim;
    const std::int64_t num_rows = head.rows.size();
    const T* k = static_cast<const T*>(call.cache.k) + head.kv_head * call.cache.k_strides.head;
    auto* panel = reinterpret_cast<typename Ops::Panel*>(scratch.k);
    if (tiled()) {
      TiledKeys<Ops, T> keys;
      keys.pairs = dims / 2;
      find_units<true>(k, chunk.k, keys.units);
      if (all_visible && num_rows <= kInPlaceRows) {
        multiply<Ops>(head.q, head.q_stride, num_rows, keys, kChunk / kLanes, scratch.scores,
                      kChunk, true, ahead);
        return;
      }
      pack_tiled_keys(keys.units, dims, panel);
    } else {
      const T* rows[kChunk];
      find_rows(k, chunk.k, rows);
      if constexpr (Ops::kAlongDims) {
        // f32 queries want all keys of a row summed in one order, that of the panels.
        if (all_visible && num_rows <= kAlongDimsRows && dims % kLanes == 0 &&
            call.spec.q_dtype != DType::kF32) {
          score_along_dims(head.q, head.q_stride, num_rows, rows, dims, scratch.scores, ahead);
          return;
        }
      }
      pack_plain_keys(rows, dims, panel);
    }
    multiply<Ops>(head.q, head.q_stride, num_rows, PanelSource<Ops>{panel, kChunk, (dims + 1) / 2},
                  num_vectors(), scratch.scores, kChunk, true, ahead);
  }

  // The scales of the keys, 1 for absent ones, where each key has its own.
  void load_scales(const KvScales& scales, std::int64_t kv_head, float* out) const noexcept {
    for (std::int64_t j = 0; j < kChunk; ++j) {
      out[j] = chunk.k[j] == kAbsent
                   ? 1.0F
                   : scales.data[scale_offset(scales, chunk.block[j], kv_head, chunk.token[j])];
    }
  }

  void soften(const HeadRows<Ops>& head, float k_scale) const noexcept {
    const AttentionParams& params = call.params;
    const bool per_token = call.cache.format.scales == ScaleGranularity::kPerTokenHead;
    const bool plain_scores =
        params.softcap <= 0.0F && params.alibi_slopes.empty() && !params.bias.present();
    const std::int64_t group = call.spec.head_group();
    const std::int64_t n = num_vectors();
    auto* weights = reinterpret_cast<typename Ops::A*>(scratch.weights);
    alignas(64) float k_scales[kChunk];
    alignas(64) float v_scales[kChunk];
    if (per_token) {
      load_scales(call.cache.k_scales, head.kv_head, k_scales);
      load_scales(call.cache.v_scales, head.kv_head, v_scales);
    }
    for (std::int64_t r = 0; r < head.rows.size(); ++r) {
      const std::int64_t row = head.rows.begin + r;
      float* s = scratch.scores + r * kChunk;
      float factor = params.scale * k_scale * kLog2E;
      if (per_token) {
        for (std::int64_t i = 0; i < n * kLanes; i += kLanes) {
          store(s + i, mul(load(s + i), load(k_scales + i)));
        }
      }
      if (!plain_scores) {
        const ScoreRow place = {item.sequence, row / group, head.kv_head * group + row % group};
        finish_scores(call, sequence, place, chunk, params.scale * k_scale, s);
        factor = kLog2E;
      }
      if (!all_visible) mask_scores(call, sequence, row / group, chunk, s);
      typename Ops::A* p = weights + r * kChunk;
      const float rescale =
          soften_row<Ops>(s, n, factor, &head.states.max(r), head.sums + r * kMaxLanes, p);
      if (rescale != 1.0F) {
        float* o = head.states.o(r);
        for (std::int64_t d = 0; d < call.spec.value_dim; d += kLanes) {
          store(o + d, mul(load(o + d), set1(rescale)));
        }
      }
      if (per_token) Ops::scale_weights(p, v_scales, n);
    }
  }

  // V into its panel; false if some of it is infinite or NaN.
  bool pack_values(const HeadRows<Ops>& head, std::int64_t stride) const noexcept {
    const std::int64_t dims = call.spec.value_dim;
    const T* v = static_cast<const T*>(call.cache.v) + head.kv_head * call.cache.v_strides.head;
    auto* panel = reinterpret_cast<typename Ops::Panel*>(scratch.v);
    const std::int64_t num_units = (chunk.end + kPairTile - 1) / kPairTile;
    if (tiled()) {
      const T* units[kChunk / kPairTile];
      if (call.cache.format.v_in_k) {
        find_units<true>(v, chunk.v, units);
        pack_values_of_keys(units, num_units, dims, panel, stride);
      } else {
        find_units<false>(v, chunk.v, units);
        pack_tiled_values(units, call.cache.format.block_size * std::int64_t{kPairTile}, num_units,
                          dims, panel, stride);
      }
      Ops::clear_absent(chunk, dims, panel, stride);
    } else {
      const T* rows[kChunk];
      find_rows(v, chunk.v, rows);
      pack_plain_values(rows, round_up(chunk.end, 2), dims, panel, stride);
    }
    return all_visible || Ops::all_finite(panel, stride, round_up(chunk.end, 2), dims);
  }

  void accumulate(const HeadRows<Ops>& head) const noexcept {
    const std::int64_t dims = call.spec.value_dim;
    const std::int64_t num_rows = head.rows.size();
    const std::int64_t vectors = (dims + kLanes - 1) / kLanes;
    const T* v = static_cast<const T*>(call.cache.v) + head.kv_head * call.cache.v_strides.head;
    auto* weights = reinterpret_cast<typename Ops::A*>(scratch.weights);
    if (all_visible && num_rows <= kInPlaceRows && dims % kLanes == 0) {
      if (tiled() && !call.cache.format.v_in_k) {
        TiledValues<Ops, T> values;
        values.tile_stride = call.cache.format.block_size * std::int64_t{kPairTile};
        values.num_segments = kChunk / kPairTile;
        find_units<false>(v, chunk.v, values.units);
        multiply<Ops>(weights, kChunk, num_rows, values, vectors, head.states.data,
                      head.states.stride, false, ahead);
        return;
      }
      if (!tiled()) {
        const T* rows[kChunk];
        find_rows(v, chunk.v, rows);
        multiply<Ops>(weights, kChunk, num_rows, PlainValues<Ops, T>{rows, kChunk / 2}, vectors,
                      head.states.data, head.states.stride, false, ahead);
        return;
      }
    }
    const std::int64_t stride = padded_dims(dims);
    const bool finite = pack_values(head, stride);
    auto* panel = reinterpret_cast<typename Ops::Panel*>(scratch.v);
    if (finite) {
      multiply<Ops>(weights, kChunk, num_rows, PanelSource<Ops>{panel, stride, (chunk.end + 1) / 2},
                    vectors, head.states.data, head.states.stride, false, ahead);
    } else {
      Ops::accumulate_careful(weights, num_rows, panel, stride, chunk.end, vectors, head.states);
    }
  }
};

// The scale of all keys of a head, where they share one.
inline float shared_scale(const KvCacheView& cache, const KvScales& scales,
                          std::int64_t kv_head) noexcept {
  const bool shared = cache.format.scales == ScaleGranularity::kPerTensor ||
                      cache.format.scales == ScaleGranularity::kPerHead;
  return shared ? scales.data[scale_offset(scales, 0, kv_head, 0)] : 1.0F;
}

// The keys of `keys` up to the end of the chunk that holds the first.
inline KeyRange first_chunk(const KeyRange& keys) noexcept {
  return {keys.begin, std::min(keys.end, (keys.begin / kChunk + 1) * kChunk)};
}

template <class Ops>
inline HeadRows<Ops> head_rows(const AttendCall& call, const WorkItem& item, const Scratch& scratch,
                               std::int64_t kv_head) noexcept {
  const std::int64_t first = (kv_head - item.kv_heads.begin) * item.rows.size();
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

template <class Ops, class T>
void attend_item_of(const AttendCall& call, const WorkItem& item, const WorkItem* next,
                    const Scratch& scratch) noexcept {
  const SequenceView sequence = sequence_view(call.batch, item.sequence);
  const KeyRange unmasked = keys_all_see(call, sequence, item);
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    begin_rows(call, item, head_rows<Ops>(call, item, scratch, h));
  }
  Chunk chunks[2];
  PrefetchWalk ahead;
  int current = 0;
  KeyRange keys = first_chunk(item.keys);
  if (!item.keys.empty()) locate(call, item.sequence, keys, chunks[current]);
  while (keys.begin < item.keys.end) {
    const KeyRange left = {keys.end, item.keys.end};
    Chunk& following = chunks[1 - current];
    if (!left.empty()) {
      locate(call, item.sequence, first_chunk(left), following);
      ahead.begin(call, following, item.kv_heads);
    } else if (next != nullptr && !next->keys.empty()) {
      locate(call, next->sequence, first_chunk(next->keys), following);
      ahead.begin(call, following, next->kv_heads);
    } else {
      ahead.clear();
    }
    const Chunk& chunk = chunks[current];
    const ChunkOfHead<Ops, T> step{
        .call = call,
        .item = item,
        .scratch = scratch,
        .chunk = chunk,
        .sequence = sequence,
        .all_visible = chunk.whole() && keys.begin >= unmasked.begin && keys.end <= unmasked.end,
        .ahead = ahead};
    for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
      const HeadRows<Ops> head = head_rows<Ops>(call, item, scratch, h);
      step.score(head);
      step.soften(head, shared_scale(call.cache, call.cache.k_scales, h));
      step.accumulate(head);
    }
    keys = first_chunk(left);
    current = 1 - current;
    if (left.empty()) break;
  }
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    end_rows(call, head_rows<Ops>(call, item, scratch, h));
  }
}
