// SPDX-License-Identifier: Apache-2.0
// src/backends/cpu/amx/instructions.inl in software, for tests on machines without AMX: eight tiles
// for each thread, with the shapes of the configuration. What the processor would refuse ends the
// program: a tile without a configuration, shapes that do not fit together.
//
// REQUIRES: bf16_instructions.inl before it.

namespace emulated {

struct Tile {
  alignas(64) std::uint8_t bytes[16][64];
  int rows;
  int row_bytes;
};
struct Tiles {
  Tile tile[8];
  bool configured;
};
inline Tiles& tiles() noexcept {
  static thread_local Tiles of_thread{};
  return of_thread;
}

inline void refuse_unless(bool holds) noexcept {
  if (!holds) std::abort();
}

// `config` has the 64 bytes that ldtilecfg reads.
inline void configure(const void* config) noexcept {
  const auto* bytes = static_cast<const std::uint8_t*>(config);
  refuse_unless(bytes[0] == 1);
  Tiles& all = tiles();
  for (int i = 0; i < 8; ++i) {
    Tile& tile = all.tile[i];
    tile = {};
    tile.row_bytes = bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i];
    tile.rows = bytes[48 + i];
    refuse_unless(tile.row_bytes <= 64 && tile.rows <= 16);
  }
  all.configured = true;
}
inline void release() noexcept {
  tiles().configured = false;
}

inline Tile& tile_at(int index) noexcept {
  refuse_unless(tiles().configured);
  return tiles().tile[index];
}

inline void load_tile(int index, const void* p, std::int64_t stride) noexcept {
  Tile& tile = tile_at(index);
  const auto* row = static_cast<const std::uint8_t*>(p);
  for (int r = 0; r < 16; ++r, row += stride) {
    for (int i = 0; i < 64; ++i) {
      tile.bytes[r][i] = r < tile.rows && i < tile.row_bytes ? row[i] : std::uint8_t{0};
    }
  }
}
inline void store_tile(int index, void* p, std::int64_t stride) noexcept {
  const Tile& tile = tile_at(index);
  auto* row = static_cast<std::uint8_t*>(p);
  for (int r = 0; r < tile.rows; ++r, row += stride) {
    for (int i = 0; i < tile.row_bytes; ++i) row[i] = tile.bytes[r][i];
  }
}
inline void zero_tile(int index) noexcept {
  Tile& tile = tile_at(index);
  for (auto& row : tile.bytes) _mm512_store_si512(row, _mm512_setzero_si512());
}
// Pair k of row m of A with pair n of row k of B, in the order of k.
inline void dot_tiles(int c_index, int a_index, int b_index) noexcept {
  Tile& c = tile_at(c_index);
  const Tile& a = tile_at(a_index);
  const Tile& b = tile_at(b_index);
  refuse_unless(a.rows == c.rows && b.row_bytes == c.row_bytes && a.row_bytes == 4 * b.rows);
  for (int m = 0; m < c.rows; ++m) {
    __m512 sum = _mm512_load_ps(c.bytes[m]);
    for (int k = 0; k < b.rows; ++k) {
      int pair;
      __builtin_memcpy(&pair, a.bytes[m] + 4 * k, sizeof(pair));
      const __m512i factor = _mm512_set1_epi32(pair);
      const __m512i x = _mm512_load_si512(b.bytes[k]);
      sum = _mm512_fmadd_ps(even_of(factor), even_of(x), sum);
      sum = _mm512_fmadd_ps(odd_of(factor), odd_of(x), sum);
    }
    _mm512_store_ps(c.bytes[m], without_subnormals(sum));
  }
}

}  // namespace emulated

inline bool ask_for_tiles() noexcept {
  return true;
}
#define QUIRE_TILE_CONFIGURE(config) emulated::configure(&(config))
#define QUIRE_TILE_RELEASE() emulated::release()
#define QUIRE_TILE_LOAD(tile, p, stride) emulated::load_tile(tile, p, stride)
#define QUIRE_TILE_STREAM(tile, p, stride) emulated::load_tile(tile, p, stride)
#define QUIRE_TILE_STORE(tile, p, stride) emulated::store_tile(tile, p, stride)
#define QUIRE_TILE_ZERO(tile) emulated::zero_tile(tile)
#define QUIRE_TILE_DOT(c, a, b) emulated::dot_tiles(c, a, b)

QUIRE_INLINE __m512i words_to_half(__m512i words) noexcept {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const __m512i first = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(words));
  const __m512i last = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(words, 1));
  const __m256i half = _mm512_cvtps_ph(_mm512_cvtepi32_ps(first), kNearest);
  return _mm512_inserti64x4(_mm512_castsi256_si512(half),
                            _mm512_cvtps_ph(_mm512_cvtepi32_ps(last), kNearest), 1);
}
