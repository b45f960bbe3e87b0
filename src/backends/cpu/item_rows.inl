// SPDX-License-Identifier: Apache-2.0
// The rows of a work item: queries loaded, states begun and ended, and the blocks in which rows go
// through a chunk together.

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
    std::int64_t token = first_token + head.rows.begin / group;
    std::int64_t in_group = head.rows.begin % group;
    for (std::int64_t row = head.rows.begin; row < head.rows.end; ++row) {
      const std::int64_t q_head = head.kv_head * group + in_group;
      const T* q = static_cast<const T*>(call.q.data) + token * call.q.strides[0] +
                   q_head * call.q.strides[1];
      typename Ops::A* out = head.q + (row - head.rows.begin) * head.q_stride;
      Ops::load_query(q, dims, head.q_stride, out);
      if (++in_group < group) continue;
      in_group = 0;
      ++token;
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

// Rows that go through a chunk together, the same of every kv head of an item.
struct RowRange {
  IndexRange rows;  // of the sequence
  KeyRange seen;    // by some of them
  KeyRange all;     // by every one
};

// The rows of an item in blocks of Ops::kRowBlock.
template <class Ops>
struct RowRanges {
  RowRange range[kRowTile / Ops::kRowBlock];
  int count = 0;

  RowRanges(const AttendCall& call, const SequenceView& sequence, const IndexRange& rows) noexcept {
    const std::int64_t group = call.spec.head_group();
    for (std::int64_t r = rows.begin; r < rows.end; r += Ops::kRowBlock) {
      const IndexRange part = {r, std::min(rows.end, r + Ops::kRowBlock)};
      range[count++] = {part,
                        keys_seen(call.spec.mask, call.spec.alignment, sequence, r / group,
                                  (part.end - 1) / group + 1),
                        keys_all_see(call, sequence, part)};
    }
  }
};

// The rows of one head that go through a chunk together.
template <class Ops>
struct RowBlock {
  std::int64_t kv_head = 0;
  IndexRange rows;               // of the sequence
  typename Ops::A* q = nullptr;  // [rows, q_stride]
  std::int64_t q_stride = 0;
  float* sums = nullptr;               // [rows, kMaxLanes]
  RowStates states;                    // [rows]
  float* scores = nullptr;             // [rows, score_stride of the chunk]
  typename Ops::A* weights = nullptr;  // likewise
  std::int64_t num_vectors = 0;        // of scores, up to the last key that some row sees
  IndexRange clear;                    // vectors of which every row sees every key
  bool all_visible = false;            // every row sees every key of the chunk: no mask
  bool fresh = false;                  // nothing has been added to O, which holds anything
};

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

// O of some rows.
inline void clear_rows(const RowStates& states, std::int64_t num_rows) noexcept {
  for (std::int64_t r = 0; r < num_rows; ++r) {
    fill_zero(states.o(r), padded_dims(states.value_dim));
  }
}

// All but O.
template <class Ops>
inline void begin_rows(const AttendCall& call, const WorkItem& item,
                       const HeadRows<Ops>& head) noexcept {
  load_queries<Ops>(call, item, head);
  for (std::int64_t r = 0; r < head.rows.size(); ++r) {
    fill_zero(head.sums + r * kMaxLanes, kLanes);
    head.states.max(r) = kNegativeInfinity;
  }
}

// The scale of all keys of a head, where they share one.
inline float shared_scale(const KvCacheView& cache, const KvScales& scales,
                          std::int64_t kv_head) noexcept {
  const bool shared = cache.format.scales == ScaleGranularity::kPerTensor ||
                      cache.format.scales == ScaleGranularity::kPerHead;
  return shared ? scales.data[scale_offset(scales, 0, kv_head, 0)] : 1.0F;
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
