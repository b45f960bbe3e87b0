// SPDX-License-Identifier: Apache-2.0
// K and V of a chunk as panels in scratch, for what the matrix blocks do not read in place: many
// rows, which would convert them again and again; keys that are not all there; odd dims.
//
//   K panel [padded head_dim][width], V panel [width][padded value_dim]; absent keys are 0.

// kLanes elements of a row of `left` more, 0 beyond.
template <class T>
QUIRE_INLINE Vec load_part(const T* p, std::int64_t left) noexcept {
  if (left >= kLanes) return load_row(p);
  alignas(64) T buffer[kLanes] = {};
  for (std::int64_t i = 0; i < left; ++i) buffer[i] = p[i];
  return load_row(buffer);
}

QUIRE_INLINE void fill_zero(float* p, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; i += kLanes) store(p + i, zero());
}

// The rows of one kv head in a plain layout, null where a key is absent. `offsets` are those of K
// or V of the chunk.
template <class T>
inline void find_rows(const T* head, const Chunk& chunk, const std::int64_t* offsets,
                      const T** rows) noexcept {
  if (chunk.complete) {
    for (std::int64_t j = 0; j < chunk.width; ++j) rows[j] = head + offsets[j];
    return;
  }
  for (std::int64_t j = 0; j < chunk.width; ++j) {
    rows[j] = offsets[j] == kAbsent ? nullptr : head + offsets[j];
  }
}

// The tiles of 16 keys of one kv head, null where no key of 16 is there. Key i of a tile lies at
// 2 i in K, and at (i / 2) * 32 + i % 2 in V. `offsets` are those of K or V of the chunk.
template <bool kIsK, class T>
inline void find_units(const T* head, const Chunk& chunk, const std::int64_t* offsets,
                       const T** units) noexcept {
  if (chunk.complete) {
    for (std::int64_t u = 0; u < chunk.width / kPairTile; ++u) {
      units[u] = head + offsets[u * kPairTile];
    }
    return;
  }
  for (std::int64_t u = 0; u < chunk.width / kPairTile; ++u) {
    units[u] = nullptr;
    for (std::int64_t i = 0; i < kPairTile && units[u] == nullptr; ++i) {
      const std::int64_t offset = offsets[u * kPairTile + i];
      const std::int64_t inside = kIsK ? 2 * i : i / 2 * (2 * kPairTile) + i % 2;
      if (offset != kAbsent) units[u] = head + offset - inside;
    }
  }
}

template <class T>
inline void pack_plain_keys(const T* const* rows, std::int64_t dims, float* panel,
                            std::int64_t width, PrefetchWalk& ahead) noexcept {
  for (std::int64_t j = 0; j < width; j += kLanes) {
    for (std::int64_t d = 0; d < dims; d += kLanes) {
      Vec block[kLanes];
      QUIRE_UNROLL
      for (int i = 0; i < kLanes; ++i) {
        block[i] = rows[j + i] != nullptr ? load_part(rows[j + i] + d, dims - d) : zero();
      }
      transpose(block);
      ahead.template steps<static_cast<int>(kLanes * kLanes * sizeof(T) / 64) + 1>();
      QUIRE_UNROLL
      for (int i = 0; i < kLanes; ++i) store(panel + (d + i) * width + j, block[i]);
    }
  }
}

template <class T>
inline void pack_tiled_keys(const T* const* units, std::int64_t dims, float* panel,
                            std::int64_t width) noexcept {
  for (std::int64_t u = 0; u < width / kPairTile; ++u) {
    for (std::int64_t d = 0; d < dims; d += 2) {
      for (std::int64_t i = 0; i < kPairTile; i += kLanes) {
        Pair x = {zero(), zero()};
        if (units[u] != nullptr) x = load_pair(units[u] + d * kPairTile + 2 * i);
        store(panel + d * width + u * kPairTile + i, x.even);
        store(panel + (d + 1) * width + u * kPairTile + i, x.odd);
      }
    }
  }
}

template <class T>
inline void pack_plain_values(const T* const* rows, std::int64_t num_keys, std::int64_t dims,
                              float* panel, std::int64_t stride, PrefetchWalk& ahead) noexcept {
  for (std::int64_t j = 0; j < num_keys; ++j) {
    ahead.step();
    for (std::int64_t d = 0; d < dims; d += kLanes) {
      store(panel + j * stride + d, rows[j] != nullptr ? load_part(rows[j] + d, dims - d) : zero());
    }
  }
}

template <class T>
inline void pack_tiled_values(const T* const* units, std::int64_t tile_stride,
                              std::int64_t num_units, std::int64_t dims, float* panel,
                              std::int64_t stride) noexcept {
  for (std::int64_t u = 0; u < num_units; ++u) {
    for (std::int64_t d = 0; d < dims; d += kLanes) {
      const std::int64_t inside = d / kPairTile * tile_stride + d % kPairTile * 2;
      for (std::int64_t i = 0; i < kPairTile; i += 2) {
        Pair x = {zero(), zero()};
        if (units[u] != nullptr) x = load_pair(units[u] + inside + i * kPairTile);
        float* row = panel + (u * kPairTile + i) * stride + d;
        store(row, x.even);
        store(row + stride, x.odd);
      }
    }
  }
}

// V that is the first dims of tiled K.
template <class T>
inline void pack_values_of_keys(const T* const* units, std::int64_t num_units, std::int64_t dims,
                                float* panel, std::int64_t stride) noexcept {
  for (std::int64_t u = 0; u < num_units; ++u) {
    for (std::int64_t i = 0; i < kPairTile; i += kLanes) {
      for (std::int64_t d = 0; d < dims; d += kLanes) {
        Vec block[kLanes];
        for (std::int64_t pair = 0; pair < kLanes / 2; ++pair) {
          Pair x = {zero(), zero()};
          if (units[u] != nullptr && d + 2 * pair < dims) {
            x = load_pair(units[u] + (d + 2 * pair) * kPairTile + 2 * i);
          }
          block[2 * pair] = x.even;
          block[2 * pair + 1] = x.odd;
        }
        transpose(block);
        float* rows = panel + (u * kPairTile + i) * stride + d;
        for (std::int64_t t = 0; t < kLanes; ++t) store(rows + t * stride, block[t]);
      }
    }
  }
}

// No infinity and no NaN in the V tiles of all units.
template <class T>
inline bool all_tiles_finite(const T* const* units, std::int64_t tile_stride,
                             std::int64_t num_units, std::int64_t dims) noexcept {
  Vec sum = zero();  // of x - x: NaN if one is not finite
  for (std::int64_t u = 0; u < num_units; ++u) {
    for (std::int64_t d = 0; d < dims; d += kPairTile) {
      const T* tile = units[u] + d / kPairTile * tile_stride;
      for (std::int64_t i = 0; i < kPairTile * kPairTile; i += 2 * kLanes) {
        const LevelPair x = load_pair(tile + i);
        sum = add(sum, add(sub(x.even, x.even), sub(x.odd, x.odd)));
      }
    }
  }
  return !any_nan(sum);
}

// The bits of an element that are all set in infinities and NaN, and only there; 0: it has none.
template <class T>
inline constexpr std::uint32_t kNotFiniteBits = 0;
template <>
inline constexpr std::uint32_t kNotFiniteBits<float> = 0x7f800000;
template <>
inline constexpr std::uint32_t kNotFiniteBits<Float16> = 0x7c00;
template <>
inline constexpr std::uint32_t kNotFiniteBits<BFloat16> = 0x7f80;
template <>
inline constexpr std::uint32_t kNotFiniteBits<Float8E4M3> = 0x7f;
template <>
inline constexpr std::uint32_t kNotFiniteBits<Float8E5M2> = 0x7c;

// A tile of 16 keys by 16 dims with 0 for what is not finite.
inline constexpr std::int64_t kTileElements = std::int64_t{kPairTile} * kPairTile;
template <class T>
inline void copy_finite_tile(const T* from, T* to) noexcept {
  using Bits = std::conditional_t<sizeof(T) == 1, std::uint8_t,
                                  std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;
  constexpr auto kBits = static_cast<Bits>(kNotFiniteBits<T>);
  Bits bits[kTileElements];
  __builtin_memcpy(bits, from, sizeof(bits));
  if constexpr (kBits != 0) {
    for (Bits& x : bits) x = (x & kBits) == kBits ? Bits{0} : x;
  }
  __builtin_memcpy(to, bits, sizeof(bits));
}
