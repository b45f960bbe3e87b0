// SPDX-License-Identifier: Apache-2.0
// The algorithm of the CPU backend, once, over the tile primitives of a level (tile.h). Included
// into the level's namespace.
//
//   load Q;  for each tile of keys: K^T, V;  for each row: S = scale q.K^T, cap, slope, bias, mask,
//   online softmax, O += P V

// scale * q of the tile's rows. Folding the scale into Q is one rounding per element of Q, in f32.
inline void load_queries(const AttendCall& call, const RowTile& tile, float* q) noexcept {
  const std::int64_t group = call.spec.head_group();
  const std::int64_t first_token = call.batch.queries.begins[tile.sequence];
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const std::int64_t token = first_token + row / group;
    const std::int64_t head = tile.kv_head * group + row % group;
    const std::int64_t offset = token * call.q.strides[0] + head * call.q.strides[1];
    float* out = q + (row - tile.row_begin) * call.spec.head_dim;
    load_floats(call.q.dtype, call.q.data, offset, call.spec.head_dim, out);
    scale_row(out, call.spec.head_dim, call.params.scale);
  }
}

// Keys [first, first + keys) of K or V as floats, a row each. Under a tree mask a key that no query
// sees may lie nowhere: its row is 0 and its table entry is not followed.
inline void load_keys(const AttendCall& call, const RowTile& tile, const SequenceView& sequence,
                      std::int64_t first_old, KvTensor tensor, std::int64_t first,
                      std::int64_t keys, float* rows) noexcept {
  const std::int64_t dims = tensor == KvTensor::kK ? call.spec.head_dim : call.spec.value_dim;
  const std::int64_t block_size = call.cache.format.block_size;
  for (std::int64_t j = 0; j < keys; ++j) {
    if (sequence.tree_bits != nullptr &&
        !is_seen_in_tree(call.spec.mask, sequence, first_old, first + j)) {
      std::fill_n(rows + j * dims, dims, 0.0F);
      continue;
    }
    const std::int64_t slot = key_slot(call.batch.kv.blocks, block_size, tile.sequence, first + j);
    load_row(call.cache, tensor, slot / block_size, tile.kv_head, slot % block_size,
             rows + j * dims);
  }
}

// From q.k to the score of row (query, head) for keys [first, first + keys): softcap, ALiBi, bias.
inline void finish_scores(const AttendCall& call, const SequenceView& sequence, const RowTile& tile,
                          std::int64_t query, std::int64_t head, std::int64_t first,
                          std::int64_t keys, float* s) noexcept {
  const AttentionParams& params = call.params;
  if (params.softcap > 0.0F) {
    for (std::int64_t j = 0; j < keys; ++j) {
      s[j] = params.softcap * std::tanh(s[j] / params.softcap);
    }
  }
  if (!params.alibi_slopes.empty()) {
    const std::int64_t position = query_position(sequence, query);
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t distance = position - key_position(sequence, first + j);
      s[j] -= params.alibi_slopes[head] * std::fabs(static_cast<float>(distance));
    }
  }
  if (params.bias.present()) {
    const auto& strides = params.bias.strides;
    const std::int64_t row = tile.sequence * strides[0] + head * strides[1] + query * strides[2];
    for (std::int64_t j = 0; j < keys; ++j) {
      const float bias =
          load_float(params.bias.dtype, params.bias.data, row + (first + j) * strides[3]);
      s[j] = bias == kNegativeInfinity ? bias : s[j] + bias;  // hides the key whatever it holds
    }
  }
}

// -inf where the query may not see the key, whatever the score was.
inline void mask_scores(const AttendCall& call, const SequenceView& sequence, std::int64_t query,
                        std::int64_t first, std::int64_t keys, float* s) noexcept {
  if (sequence.tree_bits != nullptr) {
    for (std::int64_t j = 0; j < keys; ++j) {
      if (!is_visible(call.spec.mask, call.spec.alignment, sequence, query, first + j)) {
        s[j] = kNegativeInfinity;
      }
    }
    return;
  }
  const KeyRange seen = keys_seen(call.spec.mask, call.spec.alignment, sequence, query, query + 1);
  for (std::int64_t j = 0; j < keys; ++j) {
    if (first + j < seen.begin || first + j >= seen.end) s[j] = kNegativeInfinity;
  }
}

// One step of the online softmax: s holds the scores of `keys` keys, v their values.
inline void update_row(float* s, const float* v, std::int64_t keys, std::int64_t value_dim,
                       float* o, float* max, float* sum) noexcept {
  const float new_max = larger_or_nan(row_max(s, keys), *max);
  if (new_max == kNegativeInfinity) return;  // nothing visible yet
  const float factor = exp_negative(*max - new_max);
  if (factor != 1.0F) scale_row(o, value_dim, factor);
  *sum = *sum * factor + exp_row(s, keys, new_max);
  *max = new_max;
  accumulate_values(s, v, keys, value_dim, o);
}

void attend_tile(const AttendCall& call, const RowTile& tile, const Scratch& scratch,
                 const RowStates& states) noexcept {
  const std::int64_t group = call.spec.head_group();
  const std::int64_t head_dim = call.spec.head_dim;
  const std::int64_t value_dim = call.spec.value_dim;
  const std::int64_t num_rows = tile.row_end - tile.row_begin;
  const SequenceView sequence = sequence_view(call.batch, tile.sequence);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    std::fill_n(states.o(r), value_dim, 0.0F);
    states.max(r) = kNegativeInfinity;
    states.sum(r) = 0.0F;
  }
  const std::int64_t first_old =
      sequence.tree_bits != nullptr ? first_old_key_seen(call.spec.mask, sequence) : 0;
  load_queries(call, tile, scratch.q);
  for (std::int64_t first = tile.keys.begin; first < tile.keys.end; first += kKeyTile) {
    const std::int64_t keys = std::min(kKeyTile, tile.keys.end - first);
    load_keys(call, tile, sequence, first_old, KvTensor::kK, first, keys, scratch.rows);
    transpose(scratch.rows, keys, head_dim, scratch.k_t, kKeyTile);
    load_keys(call, tile, sequence, first_old, KvTensor::kV, first, keys, scratch.rows);
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const std::int64_t query = (tile.row_begin + r) / group;
      const std::int64_t head = tile.kv_head * group + (tile.row_begin + r) % group;
      dot_keys(scratch.q + r * head_dim, scratch.k_t, head_dim, kKeyTile, keys, scratch.scores);
      finish_scores(call, sequence, tile, query, head, first, keys, scratch.scores);
      mask_scores(call, sequence, query, first, keys, scratch.scores);
      update_row(scratch.scores, scratch.rows, keys, value_dim, states.o(r), &states.max(r),
                 &states.sum(r));
    }
  }
}
