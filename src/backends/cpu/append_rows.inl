// SPDX-License-Identifier: Apache-2.0
// The append of the CPU backend, once, over the lines of a level: 64 bytes of one row in the stored
// format (line.inl). Included into the level's namespace after vec.inl and line.inl.
//
//   plain    a row is a run of lines
//   tiled    16 rows that fill a tile of slots: 16 lines at a time, transposed (K) or interleaved
//            (V) in registers, and stored as whole lines; rows on their own: a word of K, an
//            element of V at a time, since the rest of a line belongs to other slots

inline constexpr std::int64_t kLineBytes = 64;
inline constexpr std::int64_t kTile = kPairTile;

template <class T>
inline constexpr std::int64_t kLineElements = kLineBytes / static_cast<std::int64_t>(sizeof(T));

// The largest finite magnitude of a row.
template <class S>
inline float row_amax(const S* row, std::int64_t dims) noexcept {
  Vec largest = zero();
  std::int64_t d = 0;
  for (; d + kLanes <= dims; d += kLanes) {
    largest = max_of(largest, finite_magnitudes(load_row(row + d)));
  }
  float amax = reduce_max(largest);
  for (; d < dims; ++d) amax = std::max(amax, finite_magnitude(to_float(row[d])));
  return amax;
}

// The lines of some rows, a stride apart, in the order in which they lie.
class RowsAhead {
 public:
  RowsAhead(const void* first, std::int64_t num_rows, std::int64_t stride,
            std::int64_t row_bytes) noexcept
      : row_(static_cast<const char*>(first)),
        left_(num_rows),
        stride_(stride),
        row_bytes_(row_bytes) {}
  QUIRE_INLINE void fetch_line() noexcept {
    if (left_ <= 0) return;
    __builtin_prefetch(row_ + place_);
    place_ += kLineBytes;
    if (place_ < row_bytes_) return;
    place_ = 0;
    row_ += stride_;
    --left_;
  }

 private:
  const char* row_;
  std::int64_t left_;
  std::int64_t place_ = 0;  // in the row
  const std::int64_t stride_;
  const std::int64_t row_bytes_;
};

// Rows of K or V, of source type S, into a cache of type T.
template <class T, class S>
struct TensorAppend {
  const S* source;  // [num_rows, num_heads, dims]
  std::int64_t source_row_stride;
  std::int64_t source_head_stride;
  T* out;
  KvStrides strides;
  KvScales scales;
  ScaleGranularity granularity;
  std::int64_t dims;
  std::int64_t block_size;
  bool is_k;
  bool tiled;
  bool streams;

  TensorAppend(const AppendCall& call, KvTensor tensor) noexcept
      : is_k(tensor == KvTensor::kK),
        tiled(call.cache.format.layout == KvLayoutId::kPairTiled),
        streams(call.streams) {
    const TensorView& rows = is_k ? call.k : call.v;
    source = static_cast<const S*>(rows.data);
    source_row_stride = rows.strides[0];
    source_head_stride = rows.strides[1];
    out = static_cast<T*>(is_k ? call.cache.k : call.cache.v);
    strides = is_k ? call.cache.k_strides : call.cache.v_strides;
    scales = is_k ? call.cache.k_scales : call.cache.v_scales;
    granularity = call.cache.format.scales;
    dims = is_k ? call.cache.head_dim : call.cache.value_dim;
    block_size = call.cache.format.block_size;
  }

  const S* row_at(std::int64_t row, std::int64_t head) const noexcept {
    return source + row * source_row_stride + head * source_head_stride;
  }
  T* head_at(std::int64_t slot, std::int64_t head) const noexcept {
    return out + slot / block_size * strides.block + head * strides.head;
  }

  bool rows_of_head_lie_together() const noexcept {
    return !tiled && std::abs(strides.token) < std::abs(strides.head);
  }

  // The divisor of a row; its scale is stored where it is computed here.
  Divisor divisor(const S* row, std::int64_t slot, std::int64_t head) const noexcept {
    if (granularity == ScaleGranularity::kNone) return {};
    float* scale = scales.data + scale_offset(scales, slot / block_size, head, slot % block_size);
    if (granularity == ScaleGranularity::kPerTokenHead) {
      *scale = token_head_scale(kDTypeOf<T>, row_amax(row, dims));
    }
    return divisor_of(*scale);
  }

  void put(void* to, const Line& line, bool aligned) const noexcept {
    if (streams && aligned) {
      stream_line(to, line);
    } else {
      store_line(to, line);
    }
  }
  static bool is_aligned(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p) % kLineBytes == 0;
  }

  // The first `count` elements of a line, then zeros.
  static Line encode_part(const S* row, std::int64_t count, const Divisor& divisor) noexcept {
    S part[kLineElements<T>] = {};
    std::copy_n(row, count, part);
    return encode<T>(part, divisor);
  }
  static Line encode_dims(const S* row, std::int64_t count, const Divisor& divisor) noexcept {
    return count >= kLineElements<T> ? encode<T>(row, divisor) : encode_part(row, count, divisor);
  }

  // A row of its own.
  void store_row(std::int64_t row, std::int64_t slot, std::int64_t head) const noexcept {
    const S* from = row_at(row, head);
    const Divisor by = divisor(from, slot, head);
    T* to = head_at(slot, head);
    const std::int64_t token = slot % block_size;
    if (!tiled) {
      store_plain(from, by, to + token * strides.token);
    } else if (is_k) {
      store_words(from, by, to + pair_tiled_k(dims, token, 0));
    } else {
      store_elements(from, by, to + pair_tiled_v(block_size, token - token % 2, 0), token % 2 != 0);
    }
  }
  void store_plain(const S* from, const Divisor& by, T* to) const noexcept {
    const bool aligned = is_aligned(to);
    std::int64_t d = 0;
    for (; d + kLineElements<T> <= dims; d += kLineElements<T>) {
      put(to + d, encode<T>(from + d, by), aligned);
    }
    if (d == dims) return;
    alignas(kLineBytes) T line[kLineElements<T>];
    store_line(line, encode_part(from + d, dims - d, by));
    std::copy_n(line, dims - d, to + d);
  }
  // Two dims in a word, words of a token 16 words apart.
  void store_words(const S* from, const Divisor& by, T* to) const noexcept {
    for (std::int64_t d = 0; d < dims; d += kLineElements<T>) {
      alignas(kLineBytes) T line[kLineElements<T>];
      store_line(line, encode_dims(from + d, dims - d, by));
      const std::int64_t count = std::min(kLineElements<T>, dims - d);
      for (std::int64_t i = 0; i < count; i += 2, to += 2 * kTile) {
        __builtin_memcpy(to, line + i, 2 * sizeof(T));
      }
    }
  }
  // The other half of every word belongs to the token that shares them.
  void store_elements(const S* from, const Divisor& by, T* to, bool upper) const noexcept {
    for (std::int64_t d = 0; d < dims; d += kLineElements<T>) {
      alignas(kLineBytes) T line[kLineElements<T>];
      store_line(line, encode_dims(from + d, dims - d, by));
      const std::int64_t count = std::min(kLineElements<T>, dims - d);
      for (std::int64_t i = 0; i < count; i += kTile, to += block_size * kTile) {
        if constexpr (kStoresHalves && sizeof(T) <= 2) {
          store_halves(to, line + i, upper);
        } else {
          QUIRE_UNROLL
          for (std::int64_t j = 0; j < kTile; ++j) to[2 * j + (upper ? 1 : 0)] = line[i + j];
        }
      }
    }
  }

  // Rows row + [0, 16) into slots slot + [0, 16), a whole tile. Fetches as many lines of what comes
  // next as it reads.
  void store_tile(std::int64_t row, std::int64_t slot, std::int64_t head,
                  RowsAhead& ahead) const noexcept {
    Divisor by[kTile];
    for (std::int64_t t = 0; t < kTile; ++t) by[t] = divisor(row_at(row + t, head), slot + t, head);
    const S* from = row_at(row, head);
    const std::int64_t token = slot % block_size;
    T* to = head_at(slot, head) +
            (is_k ? pair_tiled_k(dims, token, 0) : pair_tiled_v(block_size, token, 0));
    const bool aligned = is_aligned(to) && (is_k || block_size * kTile % kLineElements<T> == 0);
    constexpr auto kSourceBytes = kLineElements<T> * static_cast<std::int64_t>(sizeof(S));
    for (std::int64_t d = 0; d < dims; d += kLineElements<T>) {
      Line lines[kTile];
      for (std::int64_t t = 0; t < kTile; ++t) {
        lines[t] = encode_dims(from + t * source_row_stride + d, dims - d, by[t]);
        for (std::int64_t i = 0; i < kSourceBytes / kLineBytes; ++i) ahead.fetch_line();
      }
      const std::int64_t count = std::min(kLineElements<T>, dims - d);
      if (is_k) {
        pair_dims<T>(lines);
        put_run(to + d * kTile, lines, count * kTile, aligned);
      } else {
        pair_tokens<T>(lines);
        for (std::int64_t group = 0; group < count / kTile; ++group) {
          put_run(to + (d / kTile + group) * block_size * kTile,
                  lines + group * (kTile * kTile / kLineElements<T>), kTile * kTile, aligned);
        }
      }
    }
  }
  // The heads of a row lie side by side, as a rule; else what lies there is fetched in vain.
  RowsAhead rows_ahead(const IndexRange& rows, const IndexRange& heads) const noexcept {
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(S));
    return {row_at(rows.begin, heads.begin), rows.size(), source_row_stride * kBytes,
            heads.size() * dims * kBytes};
  }
  // Source elements of one line.
  static void prefetch_elements(const S* from) noexcept {
    constexpr auto kBytes = kLineElements<T> * static_cast<std::int64_t>(sizeof(S));
    for (std::int64_t at = 0; at < kBytes; at += kLineBytes) {
      __builtin_prefetch(reinterpret_cast<const char*>(from) + at);
    }
  }
  void prefetch_row(const S* from) const noexcept {
    for (std::int64_t d = 0; d < dims; d += kLineElements<T>) prefetch_elements(from + d);
  }
  // Lines that follow each other, `count` elements in all.
  void put_run(T* to, const Line* lines, std::int64_t count, bool aligned) const noexcept {
    for (; count >= kLineElements<T>; count -= kLineElements<T>, to += kLineElements<T>) {
      put(to, *lines++, aligned);
    }
    if (count == 0) return;
    alignas(kLineBytes) T rest[kLineElements<T>];
    store_line(rest, *lines);
    std::copy_n(rest, count, to);
  }
};

// Whether rows `first` + [0, 16) of a share fill one tile of slots.
inline bool fills_tile(const AppendCall& call, std::int64_t first, std::int64_t end) noexcept {
  const std::int64_t slot = call.slots[first];
  if (slot < 0 || slot % kTile != 0 || end - first < kTile) return false;
  for (std::int64_t t = 1; t < kTile; ++t) {
    if (call.slots[first + t] != slot + t) return false;
  }
  return true;
}

// Rows of a share on their own. In the order in which they lie in the cache: the rows of a head, or
// the heads of a row, one after the other. Where that is not the order of the source, fetches
// ahead.
template <class T, class S>
inline void append_single_rows(const AppendCall& call, const TensorAppend<T, S>& append,
                               const IndexRange& rows, const IndexRange& heads) noexcept {
  if (!append.rows_of_head_lie_together()) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      if (call.slots[row] < 0) continue;
      for (std::int64_t head = heads.begin; head < heads.end; ++head) {
        append.store_row(row, call.slots[row], head);
      }
    }
    return;
  }
  for (std::int64_t head = heads.begin; head < heads.end; ++head) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      if (head + 1 < heads.end) {
        append.prefetch_row(append.row_at(row, head + 1));
      } else if (row + rows.size() < call.slots.size) {
        append.prefetch_row(append.row_at(row + rows.size(), heads.begin));
      }
      if (call.slots[row] >= 0) append.store_row(row, call.slots[row], head);
    }
  }
}

template <class T, class S>
inline void append_tensor(const AppendCall& call, const AppendShare& share,
                          KvTensor tensor) noexcept {
  const TensorAppend<T, S> append(call, tensor);
  const IndexRange heads = share.heads;
  for (std::int64_t row = share.rows.begin; row < share.rows.end;) {
    // f32 in tiles has no use that would pay for transposing it.
    if constexpr (sizeof(T) <= 2) {
      if (append.tiled && fills_tile(call, row, share.rows.end)) {
        const std::int64_t next = row + kTile;
        RowsAhead ahead = append.rows_ahead({next, std::min(next + kTile, share.rows.end)}, heads);
        for (std::int64_t head = heads.begin; head < heads.end; ++head) {
          append.store_tile(row, call.slots[row], head, ahead);
        }
        row += kTile;
        continue;
      }
    }
    const std::int64_t end = append.tiled ? row + 1 : std::min(row + kTile, share.rows.end);
    append_single_rows(call, append, {row, end}, heads);
    row = end;
  }
}

template <class T>
inline void append_as(const AppendCall& call, const AppendShare& share) noexcept {
  const auto append = [&]<class S>() {
    append_tensor<T, S>(call, share, KvTensor::kK);
    if (!call.cache.format.v_in_k) append_tensor<T, S>(call, share, KvTensor::kV);
  };
  if (call.k.dtype == DType::kBF16) {
    append.template operator()<BFloat16>();
  } else if (call.k.dtype == DType::kF16) {
    append.template operator()<Float16>();
  } else {
    append.template operator()<float>();
  }
}

void append_rows(const AppendCall& call, const AppendShare& share) noexcept {
  dispatch_dtype(call.cache.format.dtype, [&]<class T>() { append_as<T>(call, share); });
  if (call.streams) end_stream();
}
